"""The networks: the paper's parameter table, the order of their layers, and what they compute at the start."""

import math

import pytest
import torch
from torch import nn

import dctps
from dctps.models import MODELS, build
from dctps.models.fixup_resnet import FixupBlock
from dctps.models.mobilenetv2 import InvertedResidual
from dctps.models.resnet import BasicBlock, Bottleneck
from dctps.nn.prunable import prunable
from helpers.network_shapes import NETWORKS

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


# Sizes of the feature maps of a 32 x 32 image, and after how many convolutions and linear layers each begins.
# ResNet50: the stride is on the 3 x 3 of the first block of a stage, so its 1 x 1 before still sees the larger map.
MAPS = {
    "lenet": [(0, (28, 28)), (1, (10, 10)), (2, (1, 1)), (3, ())],
    "vgg19": [(0, (32, 32)), (2, (16, 16)), (4, (8, 8)), (8, (4, 4)), (12, (2, 2)), (16, ())],
    "resnet18": [(0, (32, 32)), (5, (16, 16)), (10, (8, 8)), (15, (4, 4)), (20, ())],
    "resnet50": [(0, (32, 32)), (12, (16, 16)), (25, (8, 8)), (44, (4, 4)), (53, ())],
    "mobilenetv2": [(0, (32, 32)), (13, (16, 16)), (22, (8, 8)), (44, (4, 4)), (57, ())],
    "fixup_resnet110": [(0, (32, 32)), (37, (16, 16)), (73, (8, 8)), (109, ())],
}


@pytest.mark.parametrize("name", MAPS)
def test_feature_maps_shrink_where_they_should(name):
    net, sizes = build(name).eval(), []
    for layer in prunable(net).values():
        layer.register_forward_hook(lambda module, inputs, y: sizes.append(tuple(y.shape[2:])))
    with torch.no_grad():
        net(torch.randn(1, 3, 32, 32))
    changes = [(i, size) for i, size in enumerate(sizes) if i == 0 or sizes[i - 1] != size]
    assert changes == MAPS[name]


def test_blocks_by_their_formulas():
    """Each block against its formula written out, in eval mode with random statistics."""
    F = nn.functional
    x = torch.randn(2, 16, 6, 6)

    def randomised(block):
        for tensor in [*block.parameters(), *block.buffers()]:
            if tensor.is_floating_point():
                nn.init.uniform_(tensor, 0.5, 1.5)
        return block.eval()

    b = randomised(BasicBlock(16, 16, 1))
    torch.testing.assert_close(b(x), F.relu(b.bn2(b.conv2(F.relu(b.bn1(b.conv1(x))))) + x))
    b = randomised(Bottleneck(16, 8, 2))
    inner = F.relu(b.bn2(b.conv2(F.relu(b.bn1(b.conv1(x))))))
    torch.testing.assert_close(b(x), F.relu(b.bn3(b.conv3(inner)) + b.shortcut[1](b.shortcut[0](x))))
    for out, stride in ((16, 1), (24, 1), (24, 2)):
        b = randomised(InvertedResidual(16, out, 6, stride))
        y = b.bn3(b.conv3(F.relu(b.bn2(b.conv2(F.relu(b.bn1(b.conv1(x))))))))
        added = x if out == 16 else b.shortcut[1](b.shortcut[0](x)) if stride == 1 else 0
        torch.testing.assert_close(b(x), y + added)
    b = randomised(FixupBlock(16, 32, 2))
    y = b.scale * b.conv2(F.relu(b.conv1(x + b.bias1a) + b.bias1b) + b.bias2a) + b.bias2b
    skip = F.pad((x + b.bias1a)[:, :, ::2, ::2], (0, 0, 0, 0, 0, 16))
    torch.testing.assert_close(b(x), F.relu(y + skip))


def test_lenet_by_its_formula():
    F, net, x = nn.functional, build("lenet"), torch.randn(2, 3, 32, 32)
    y = F.relu(F.conv2d(x, net.conv1.weight)).unfold(2, 2, 2).unfold(3, 2, 2).mean((-1, -2))
    y = F.relu(F.conv2d(y, net.conv2.weight)).unfold(2, 2, 2).unfold(3, 2, 2).mean((-1, -2))
    y = F.relu(y.flatten(1) @ net.conv3.weight.flatten(1).T)
    expected = F.relu(y @ net.fc1.weight.T) @ net.fc2.weight.T
    torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-4)


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
