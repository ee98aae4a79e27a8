"""What `sparsify` and `report` say of networks that others made: trained, adapted, quantised, on another device."""

import os
import warnings

import pytest
import torch
from torch import nn

import dctps
from helpers.networks import assert_unchanged, cnn, snapshot


class Adapter(nn.Module):
    """Like a layer of peft's LoRA: a frozen layer, and a product of two small ones that starts at zero."""

    __module__ = "peft.tuners.lora.layer"

    def __init__(self):
        super().__init__()
        self.base_layer, self.lora_A, self.lora_B = nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(2, 8)
        self.base_layer.requires_grad_(False)
        nn.init.zeros_(self.lora_B.weight)


def test_adapters_are_refused_unless_asked():
    net = nn.Sequential(nn.Linear(8, 8), Adapter())
    before = snapshot(net)
    with pytest.raises(ValueError, match=r"1\.lora_A, 1\.lora_B belong to adapters of peft, which must start at zero"):
        dctps.sparsify(net, 0.5)
    assert_unchanged(net, before)
    assert len(dctps.report(dctps.sparsify(net, 0.5, exclude="*lora_*")).layers) == 1
    assert len(dctps.report(dctps.sparsify(nn.Sequential(Adapter()), 0.5, adapters=True)).layers) == 2


class Quantised(torch.Tensor):
    """Like the weights that libraries of quantisation put into plain layers."""


def test_quantised_weights_stay_and_the_report_says_why():
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    net[0].weight = nn.Parameter(torch.zeros(8, 8).as_subclass(Quantised))
    dctps.sparsify(net, 0.5)
    assert dict(dctps.report(net).left_dense) == {
        "0": "its weight is a Quantised (quantised, sharded or otherwise wrapped)"
    }


@pytest.mark.parametrize("evidence", ["gradients", "BatchNorm layers have seen data", "comes from 'some/model'"])
def test_weights_that_were_trained_are_not_dropped_without_a_word(evidence):
    net = cnn()
    if evidence == "gradients":
        net(torch.randn(2, 3, 12, 12)).sum().backward()
        for norm in (m for m in net.modules() if isinstance(m, nn.BatchNorm2d)):
            norm.reset_running_stats()
    elif evidence.startswith("comes"):
        net.config = type("Config", (), {"__module__": "transformers.x", "_name_or_path": "some/model"})()
    else:
        net(torch.randn(2, 3, 12, 12))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dctps.sparsify(cnn(), 0.1)  # a new network
    with pytest.warns(UserWarning, match=rf"{evidence}.*replaces the weights of 3 layers.*offset=None keeps") as caught:
        dctps.sparsify(net, 0.1)
    assert caught[0].filename == __file__
    assert "former weights replaced: W starts at alpha D (offset=None keeps" in str(dctps.report(net))


def test_weights_that_are_kept_need_no_word():
    net = cnn()
    net(torch.randn(2, 3, 12, 12)).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dctps.sparsify(net, 0.1, offset=None)
    assert "replaced" not in str(dctps.report(net))


def test_the_report_tells_the_share_of_the_whole_network(tmp_path):
    encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    dense = sum(p.numel() for p in encoder.parameters())
    dense_bytes = sum(t.nbytes for t in encoder.state_dict().values())
    dctps.sparsify(encoder, 0.01)
    sizes = dctps.report(encoder).sizes
    assert sizes.parameters == dense
    assert sizes.trainable == sum(p.numel() for p in encoder.parameters() if p.requires_grad)
    assert sizes.trainable > 0.5 * dense  # attention is left dense
    assert sizes.dense_bytes == dense_bytes
    text = str(dctps.report(encoder))
    assert f"whole network: {sizes.trainable:,} of {dense:,} parameters train" in text


@pytest.mark.parametrize("seeded", [True, False])
@pytest.mark.parametrize("offset", [None, "dct"])
def test_the_bytes_of_the_report_are_those_of_the_file(seeded, offset, tmp_path):
    net = dctps.sparsify_norms(dctps.sparsify(cnn(), 0.1, offset=offset), 0.5)
    if not seeded:
        dctps.set_density(net, 0.2)
    dctps.save(net, tmp_path / "net.safetensors")
    content = (tmp_path / "net.safetensors").read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    assert dctps.report(net).sizes.file_bytes == len(content) - header
    net = dctps.densify(net)
    dense = sum(t.nbytes for t in net.state_dict().values())
    assert dctps.report(dctps.sparsify(net, 0.1, offset=None)).sizes.dense_bytes == dense


def test_a_device_is_not_ignored(monkeypatch, path):
    moved = []
    monkeypatch.setattr(nn.Module, "to", lambda self, device: moved.append(device) or self)
    dctps.sparsify(cnn(), 0.1)
    assert moved == []
    dctps.sparsify(cnn(), 0.1, device="cpu")
    assert moved == [torch.device("cpu")]
    net = dctps.sparsify(cnn(), 0.1)
    dctps.save(net, path)
    dctps.load(path, cnn(), device="cpu")
    assert moved == [torch.device("cpu")] * 2
    for call in (lambda: dctps.sparsify(cnn(), 0.1, device="meta"), lambda: dctps.load(path, cnn(), device="meta")):
        with pytest.raises(ValueError, match="device='meta' holds no numbers"):
            call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda net, path: dctps.sparsify(0.1, net),
            r"sparsify\(model, density\) .*, not 0.1; the arguments are swapped",
        ),
        (lambda net, path: dctps.sparsify(net, "0.1"), "density is a number such as 0.01, not '0.1'"),
        (lambda net, path: dctps.sparsify(net, True), "density is a number such as 0.01, not True"),
        (lambda net, path: dctps.sparsify("lenet", 0.1), "takes a network of torch as its model, not 'lenet'"),
        (lambda net, path: dctps.sparsify(nn.Linear, 0.1), "takes a network of torch as its model, not a type"),
        (lambda net, path: dctps.save(path, net), r"save\(model, path\) .*; the arguments are swapped"),
        (lambda net, path: dctps.load(net, path), r"load\(path, model\) .*; the arguments are swapped"),
        (lambda net, path: dctps.load(path, "lenet"), "takes a network of torch as its model, not 'lenet'"),
    ],
)
def test_swapped_and_foreign_arguments_are_named(call, message, tmp_path):
    path = str(tmp_path / "net.safetensors")
    with pytest.raises(TypeError, match=message):
        call(cnn(), path)
    assert not os.path.exists(path)
