"""The networks: the paper's parameter table, the order of their layers, and what they compute at the start."""

import math

import pytest
import torch
from torch import nn

import dctps
from dctps.models import MODELS, build
from dctps.survey import prunable
from shapes import NETWORKS

# paper, appendix "Parameter Breakdown by Architecture": layers, weights, bias & BN, total
TABLE = {
    "resnet50": (54, 23_467_712, 53_130, 23_520_842),
    "vgg19": (17, 20_024_000, 11_018, 20_035_018),
    "mobilenetv2": (58, 2_261_824, 35_098, 2_296_922),
    "fixup_resnet110": (110, 1_719_856, 282, 1_720_138),
    "resnet18": (21, 11_164_352, 9_610, 11_173_962),
    "lenet": (5, 61_510, 0, 61_510),
}


def on_meta(name: str, **options) -> nn.Module:
    with torch.device("meta"):
        return build(name, **options)


@pytest.mark.parametrize("name", TABLE)
def test_the_parameter_table_of_the_paper(name):
    net = on_meta(name)
    weights = [layer.weight for layer in prunable(net).values()]
    total = sum(p.numel() for p in net.parameters())
    count = sum(w.numel() for w in weights)
    assert (len(weights), count, total - count, total) == TABLE[name]


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_stand_in_the_published_order(name):
    assert [tuple(layer.weight.shape) for layer in prunable(on_meta(name)).values()] == NETWORKS[name]


@pytest.mark.parametrize(
    ("name", "classes", "weights"),
    [("resnet50", 100, 23_652_032), ("vgg19", 100, 20_070_080), ("resnet18", 200, 11_261_632)],
)
def test_other_class_counts(name, classes, weights):
    net = on_meta(name, num_classes=classes)
    assert sum(layer.weight.numel() for layer in prunable(net).values()) == weights


def test_options():
    assert sum(p.numel() for p in on_meta("lenet", hidden=84).parameters()) == 61_770
    assert on_meta("resnet18", width=16).fc.in_features == 128


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_gets_a_gradient(name):
    if name in ("resnet50", "resnet101", "fixup_resnet110"):
        pytest.skip("the same classes as their smaller siblings; seconds each")
    options = {"width": 8} if name.startswith("resnet") else {}
    net = build(name, num_classes=7, **options)
    if name.startswith("fixup"):  # zero weights at the start stop gradients
        for parameter in net.parameters():
            nn.init.normal_(parameter, std=0.1)
    y = net(torch.randn(2, 3, 32, 32))
    assert y.shape == (2, 7)
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())


@pytest.mark.parametrize("name", ["vgg11", "resnet18", "mobilenetv2", "fixup_resnet20"])
def test_64_pixels(name):
    options = {"width": 8} if name == "resnet18" else {}
    assert build(name, num_classes=20, **options)(torch.randn(2, 3, 64, 64)).shape == (2, 20)


def test_initialisation_is_he_normal_by_dense_fan_in():
    net = build("vgg11")
    for layer in prunable(net).values():
        expected = math.sqrt(2 / math.prod(layer.weight.shape[1:]))
        assert abs(layer.weight.std().item() / expected - 1) < 0.1
    depthwise = build("mobilenetv2").blocks[3].conv2.weight
    assert abs(depthwise.std().item() / math.sqrt(2 / 9) - 1) < 0.1


def test_fixup_starts_at_zero_and_only_the_classifier_learns_first():
    net = build("fixup_resnet20")
    y = net(torch.randn(4, 3, 32, 32))
    assert torch.equal(y, torch.zeros_like(y))
    nn.functional.cross_entropy(y, torch.tensor([0, 1, 2, 3])).backward()
    moving = [name for name, p in net.named_parameters() if p.grad.abs().sum() > 0]
    assert moving == ["fc.weight", "fc.bias"]
    assert abs(net.blocks[0].conv1.weight.std().item() / (math.sqrt(2 / 144) / 3) - 1) < 0.1  # 9 blocks


def test_fixup_s_slow_parameters_are_its_biases_and_scales():
    net = on_meta("fixup_resnet110")
    slow = {id(p) for p in net.slow_parameters()}
    names = [name for name, p in net.named_parameters() if id(p) in slow]
    assert (sum("bias" in n for n in names), sum("scale" in n for n in names), len(names)) == (219, 54, 273)


@pytest.mark.parametrize("name", ["lenet", "resnet18", "mobilenetv2"])
def test_networks_convert_and_count(name):
    net = dctps.sparsify(on_meta(name), 1e-2)
    assert dctps.report(net).nnz == math.floor(0.01 * TABLE[name][1] + 0.5)


def test_unknown_models():
    with pytest.raises(ValueError, match="unknown model 'resnet9'; choose one of: small_cnn, lenet, vgg11"):
        build("resnet9")
