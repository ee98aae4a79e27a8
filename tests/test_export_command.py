"""`dctps export`: networks of run folders and of files, and mistakes."""

import shutil
import subprocess

import pytest
import torch
from safetensors.torch import load_file

import dctps
from dctps.cli import main
from dctps.train import Runtime, Settings, fit
from helpers.onnx_files import run

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="needs the onnx extra")

QUICK = {"model": "lenet", "data": "digits32", "epochs": 1, "images": 300, "backend": "dense"}


@pytest.fixture(scope="module", params=[0.05, None], ids=["sparse", "dense"])
def folder(request, tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    fit(Settings(density=request.param, **QUICK), Runtime(runs=runs))
    return next(runs.iterdir())


def test_a_run(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(folder), "--to", "onnx"]) == 0
    file = tmp_path / f"{folder.name}.onnx"
    printed = capsys.readouterr().out
    assert f"{file.stat().st_size:,} bytes, with dense weights" in printed
    assert "largest difference from torch:" in printed
    net = dctps.models.build("lenet")
    x = torch.randn(3, 3, 32, 32)
    if "recipes: 5 of 5" in printed:
        dctps.load(folder / "best.safetensors", net)
    else:
        net.load_state_dict(load_file(folder / "best.safetensors"))
    torch.testing.assert_close(run(file.read_bytes(), x)[0], net.eval()(x).detach(), rtol=1e-4, atol=1e-4)


def test_a_file_and_the_name_of_its_network(tmp_path, capsys):
    net = dctps.sparsify(dctps.models.build("lenet", 7, in_channels=1), 0.02)
    dctps.save(net, tmp_path / "net.safetensors")
    flags = ["--model", "lenet", "--classes", "7", "--input", "1", "32", "32", "--out", str(tmp_path / "a.onnx")]
    assert main(["export", str(tmp_path / "net.safetensors"), *flags, "--float16"]) == 0
    x = torch.randn(2, 1, 32, 32)
    torch.testing.assert_close(run((tmp_path / "a.onnx").read_bytes(), x)[0], net.eval()(x).detach(), rtol=0, atol=1e-2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.safetensors"], "there is no file or folder 'nothing.safetensors'"),
        (["net.safetensors"], "says nothing of its architecture; name its network with --model"),
        (["."], "is not the folder of a run"),
        (["net.safetensors", "--model", "lenet", "--classes", "9"], "does not fit this network"),
        (["net.safetensors", "--model", "vgg99"], "unknown model 'vgg99'"),
        (["net.safetensors", "--model", "lenet", "--input"], "--input is the shape of one input, such as 3 32 32"),
        (["net.safetensors", "--model", "lenet", "--input", "3", "-3", "32"], "in positive numbers, and not 3 -3 32"),
        (["nothing.safetensors", "--model", "lenet"], "there is no file 'nothing.safetensors'"),
        ([".", "--model", "lenet"], "is a folder, and --model says what is in a file"),
    ],
)
def test_mistakes(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    dctps.save(dctps.sparsify(dctps.models.build("lenet"), 0.02), "net.safetensors")
    assert main(["export", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["net.safetensors"]


@pytest.mark.parametrize("name", ["best.safetensors", "config.json"])
def test_a_file_of_a_run_stands_for_the_run(name, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(folder / name), "--no-check"]) == 0
    assert (tmp_path / f"{folder.name}.onnx").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("typo.safetensors", "there is no file or folder"),
        ("metrics.jsonl", "is not what dctps export takes of a run: name the folder"),
    ],
)
def test_other_files_of_a_run_are_refused(name, message, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(folder / name)]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_damaged_config_is_not_to_be_deleted(folder, tmp_path, capsys):
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text('{"colour": "red"}')
    out = ["--out", str(tmp_path / "net.onnx")]
    assert main(["export", str(tmp_path / "run"), *out]) == 2
    error = capsys.readouterr().err
    assert "unknown settings colour" in error
    assert f"dctps export {tmp_path / 'run' / 'best.safetensors'} --model NAME" in error
    assert "delete" not in error
    assert main(["export", str(tmp_path / "run" / "best.safetensors"), "--model", "lenet", *out]) == 0


COMPLETE = """
source {file}
complete -p
COMP_WORDS=(dctps-export --cl); COMP_CWORD=1
_tyro_dctps_export
echo "found ${{COMPREPLY[@]}}"
"""


@pytest.mark.process
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_completion_serves_one_program_of_one_word(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["export", "--tyro-print-completion", "bash"])
    (tmp_path / "completion").write_text(capsys.readouterr().out)
    script = COMPLETE.format(file=tmp_path / "completion")
    printed = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
    assert printed == ["complete -F _tyro_dctps_export dctps-export", "found --classes"]
