"""`dctps export`: networks of run folders and of files, and mistakes."""

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
    ],
)
def test_mistakes(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    dctps.save(dctps.sparsify(dctps.models.build("lenet"), 0.02), "net.safetensors")
    assert main(["export", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["net.safetensors"]
