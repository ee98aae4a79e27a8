"""`dctps export` of fine-tunings: on images by the folder of the run, on texts by the call that the error names."""

import json
import shutil

import pytest
import torch

import dctps
from dctps.cli import main
from dctps.train import finetune
from dctps.train.finetuning.records import FinetuneRun
from helpers.finetune_runs import image_settings, network, text_settings, write_bert, write_images, write_table
from helpers.onnx_files import run
from helpers.runs import runtime

for package in ("onnx", "onnxscript", "onnxruntime", "PIL", "transformers"):
    pytest.importorskip(package, reason="needs the onnx, data and transformers extras")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images") / "photos")


@pytest.fixture(scope="module")
def folder(images, tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    settings = image_settings(images, epochs=1, train=("classifier", "norms"))
    finetune(settings, runtime(runs))
    return FinetuneRun.at(settings, runs).folder


@pytest.mark.parametrize("name", ["", "best.safetensors", "config.json"])
def test_a_fine_tuning_on_images(name, folder, tmp_path, capsys):
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    assert main(["export", str(folder / name), "--out", str(tmp_path / "net.onnx")]) == 0
    assert "largest difference from torch" in capsys.readouterr().out
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before
    net, x = dctps.load(folder / "best.safetensors", network()).eval(), torch.randn(3, 3, 12, 12)
    torch.testing.assert_close(run((tmp_path / "net.onnx").read_bytes(), x)[0], net(x).detach(), rtol=1e-4, atol=1e-4)


def vit(folder):
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.ViTConfig(**sizes, image_size=16, patch_size=8, num_labels=7)
    with torch.random.fork_rng():
        transformers.ViTForImageClassification(config).save_pretrained(folder)
    return folder


def test_a_network_of_transformers_for_images(images, tmp_path, capsys):
    settings = image_settings(images, model=str(vit(tmp_path / "vit")), epochs=1)
    finetune(settings, runtime(tmp_path / "runs"))
    shutil.move(FinetuneRun.at(settings, tmp_path / "runs").folder, tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "net.onnx")]) == 0
    assert run((tmp_path / "net.onnx").read_bytes(), torch.randn(5, 3, 16, 16))[0].shape == (5, 3)


def changed(folder, to, what):
    """A copy of a run with another setting, or without a file."""
    shutil.copytree(folder, to)
    if what == "data":
        config = json.loads((to / "config.json").read_text())
        (to / "config.json").write_text(json.dumps(config | {"data": "nowhere"}))
    elif what == "result.json, damaged":
        (to / "result.json").write_text("{}")
    else:
        (to / what).unlink()
    return to


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("result.json", "a fine-tuning that is not finished; the same dctps finetune goes on with it"),
        ("result.json, damaged", "result.json is damaged"),
        ("data", "no folder or table nowhere); put the folder nowhere back"),
    ],
)
def test_mistakes(what, message, folder, tmp_path, capsys):
    assert main(["export", str(changed(folder, tmp_path / "run", what)), "--out", str(tmp_path / "net.onnx")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "delete" not in error
    assert not (tmp_path / "net.onnx").exists()


def test_texts_are_exported_by_the_call_that_the_error_names(tmp_path, monkeypatch, capsys):
    import transformers

    bert = write_bert(tmp_path / "bert")
    settings = text_settings(write_table(tmp_path / "train.tsv"), bert, epochs=1)
    finetune(settings, runtime(tmp_path / "runs"))
    assert main(["export", str(FinetuneRun.at(settings, tmp_path / "runs").folder)]) == 2
    code = capsys.readouterr().err.partition("in Python: ")[2].replace("max_length=64", "max_length=16")
    monkeypatch.chdir(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert)
    names = {"dctps": dctps, "transformers": transformers, "tokenizer": tokenizer}
    exec(code, names)
    tokens = tokenizer(["the film is good", "so bad"], padding="max_length", max_length=16, return_tensors="pt")
    with torch.no_grad():
        expected = names["net"].eval()(**tokens).logits
    import onnxruntime

    session = onnxruntime.InferenceSession("net.onnx", providers=["CPUExecutionProvider"])
    found = session.run(None, {i.name: tokens[i.name].numpy() for i in session.get_inputs()})[0]
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-4)
