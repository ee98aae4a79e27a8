"""The initial scale of D: Fixup's published alphas, the analogue of He's initialisation, and what users may say."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from torch import nn

import dctps
from dctps import ALPHAS, OFFSETS, TransformOffset
from dctps.core.alphas import filter_norms, mean_square
from dctps.core.transforms import TRANSFORMS
from dctps.models import build
from dctps.nn.alphas import choose_alphas, stated_norms
from dctps.nn.dps_layer import DpsLayer
from helpers.offsets import Ones, recipes, shapes
from helpers.tolerances import assert_close


def alphas(net: nn.Module) -> dict[str, float]:
    return {row.name: row.alpha for row in dctps.report(net).layers}


# --- norms of the filters of D ---------------------------------------------------------------------------------------


@given(recipes, shapes)
def test_norms_are_those_of_the_matrix(recipe, shape):
    offset = recipe.bind(shape)
    expected = offset.matrix(torch.float64).norm(dim=1)
    assert_close(filter_norms(offset), expected)
    assert abs(mean_square(offset) - expected.square().mean().item()) < 1e-12  # n / q, whatever the recipe


def test_norms_of_a_users_own_offset():
    assert_close(filter_norms(Ones((3, 4))), torch.full((3,), 2.0, dtype=torch.float64))
    assert mean_square(Ones((3, 4))) == 4


# --- Fixup ------------------------------------------------------------------------------------------------------------

# conv1 of a block, by (channels, filters): as the published code computes them, and without its square root
PUBLISHED = {(16, 16): 0.438311, (16, 32): 0.368574, (32, 32): 0.438501, (32, 64): 0.368734, (64, 64): 0.438596}
EXACT = {(16, 16): 0.192117, (16, 32): 0.135847, (32, 32): 0.192283, (32, 64): 0.135965, (64, 64): 0.192366}


def fixup_alphas(net: nn.Module) -> dict[tuple[int, int], float]:
    """Those of conv1, by (channels, filters), after a look at all others."""
    own, found = alphas(net), {}
    assert len(own) == 110
    assert (own.pop("conv1"), own.pop("fc")) == (1.0, 0.0)
    for row in dctps.report(net).layers:
        if row.name.endswith(".conv2"):
            assert row.alpha == 0
        elif row.name.startswith("blocks"):
            assert found.setdefault((row.shape[1], row.shape[0]), row.alpha) == row.alpha
    return found


@pytest.mark.parametrize(("alpha", "expected"), [(1.0, PUBLISHED), ("paper", PUBLISHED), ("exact", EXACT)])
def test_fixup_takes_the_published_alphas(alpha, expected):
    net = dctps.sparsify(build("fixup_resnet110"), 1e-3, alpha=alpha)
    assert fixup_alphas(net) == pytest.approx(expected, abs=1e-6)
    trained = [p for layer in net.modules() if isinstance(layer, DpsLayer) for p in [layer.alpha]]
    assert all(isinstance(p, nn.Parameter) and p.dtype == torch.float32 for p in trained)


def test_the_default_is_the_published_rule_on_a_meta_network_too():
    with torch.device("meta"):
        net = build("fixup_resnet110")
    dctps.sparsify(net, 1e-3)
    assert fixup_alphas(net) == pytest.approx(PUBLISHED, abs=1e-6)
    assert not net.fc.bias.any()
    assert all(block.scale.item() == 1 and block.bias2b.item() == 0 for block in net.blocks)


def test_a_fixed_alpha_reaches_every_layer():
    net = dctps.sparsify(build("fixup_resnet110"), 1e-3, train_alpha=False)
    fixed = [m for m in net.modules() if isinstance(m, DpsLayer) and not isinstance(m.alpha, nn.Parameter)]
    assert len(fixed) == 110
    assert not any(name.endswith("alpha") for name, _ in net.named_parameters())
    assert fixup_alphas(net) == pytest.approx(PUBLISHED, abs=1e-6)


@pytest.mark.parametrize("alpha", [1.0, "exact", "preserve"])
def test_fixup_starts_at_zero_and_only_the_classifier_learns_first(alpha):
    net = dctps.sparsify(build("fixup_resnet20"), 1e-2, alpha=alpha)
    y = net(torch.randn(4, 3, 32, 32))
    assert torch.equal(y, torch.zeros_like(y))
    nn.functional.cross_entropy(y, torch.tensor([0, 1, 2, 3])).backward()
    moving = {name for name, p in net.named_parameters() if p.grad.abs().sum() > 0}
    assert moving == {"fc.alpha", "fc.values", "fc.bias"}


def test_fixup_s_norms_are_those_its_weights_have():
    net = build("fixup_resnet20")
    for name, norm in net.initial_norms().items():
        found = net.get_submodule(name).weight.flatten(1).norm(dim=1).mean().item()
        assert found == pytest.approx(norm, rel=0.05)  # a mean over 16 to 64 filters, each within 6 % of its own


def test_a_number_is_in_units_of_the_network_s_own_scale():
    net = dctps.sparsify(build("fixup_resnet20"), 1e-2, alpha=0.5)
    whole = dctps.sparsify(build("fixup_resnet20"), 1e-2)
    assert alphas(net) == pytest.approx({name: alpha / 2 for name, alpha in alphas(whole).items()})
    assert alphas(dctps.sparsify(build("lenet"), 0.01, alpha=0.5)) == dict.fromkeys(
        ("conv1", "conv2", "conv3", "fc1", "fc2"), 0.5
    )


def test_parts_of_a_network_state_their_norms_too_and_the_whole_overrules_them():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build("fixup_resnet20")
            self.head = nn.Linear(10, 10)

        def initial_norms(self):
            return {"head": 0.25, "inner.fc": 4.0}

    norms = stated_norms(Outer())
    assert norms["head"] == 0.25
    assert norms["inner.fc"] == 4
    assert norms["inner.blocks.0.conv1"] == build("fixup_resnet20").initial_norms()["blocks.0.conv1"]
    found = alphas(dctps.sparsify(Outer(), 1e-2))
    assert (found["head"], found["inner.fc"], found["inner.conv1"]) == (0.5, 2.0, 1.0)  # square roots, and the stem's 1


# --- preserve ---------------------------------------------------------------------------------------------------------


def test_preserve_by_hand():
    # 4 orthonormal filters of 16: sqrt(2). 64 filters of 16 entries: 64 squared norms that sum to 16, so a mean of
    # 1/4 and alpha = sqrt(8). Depthwise 36 x 9: as 36 filters of 9 entries. Hadamard 4 x 12: rows of length 16 of
    # which 12 are seen, 12/16.
    linear = lambda n, m, **options: dctps.sparsify(nn.Linear(n, m), 0.5, alpha="preserve", **options)  # noqa: E731
    assert linear(16, 4).alpha.item() == pytest.approx(math.sqrt(2))
    assert linear(16, 64).alpha.item() == pytest.approx(math.sqrt(8))
    depthwise = dctps.sparsify(nn.Conv2d(36, 36, 3, groups=36), 0.5, alpha="preserve")
    assert depthwise.alpha.item() == pytest.approx(math.sqrt(8))
    assert linear(12, 4, offset="hadamard").alpha.item() == pytest.approx(math.sqrt(2 * 16 / 12))
    assert linear(4, 3, offset=Ones((3, 4))).alpha.item() == pytest.approx(math.sqrt(1 / 2))


@given(recipes, shapes)
def test_preserve_gives_filters_he_s_mean_squared_norm(recipe, shape):
    alpha = choose_alphas("preserve", nn.Identity(), {"": recipe.bind(shape)})[""]
    weight = alpha * recipe.bind(shape).matrix(torch.float64)
    assert weight.square().sum(1).mean().item() == pytest.approx(2, abs=1e-9)


def growth(net: nn.Sequential, x: torch.Tensor, start: int = 0) -> float:
    """The factor by which the second moment of the layers' outputs changes from layer to layer, from `start` on."""
    moments = []
    with torch.no_grad():
        for layer in net:
            x = layer(x)
            if isinstance(layer, DpsLayer):
                moments.append(x.square().mean().item())
    return (moments[-1] / moments[start]) ** (1 / (len(moments) - 1 - start))


def deep(kind: str) -> tuple[nn.Sequential, torch.Tensor]:
    """Twelve layers with ReLU and without normalisation, of widths that D is cut to and widths it is padded to."""
    widths = [256, 640, 256, 320] * 3 + [256]
    pairs = list(itertools.pairwise(widths))
    if kind == "linear":
        layers = [m for n, f in pairs for m in (nn.Linear(n, f, bias=False), nn.ReLU())]
        return nn.Sequential(*layers), torch.randn(128, 256)
    conv = {"kernel_size": 3, "padding": 1, "padding_mode": "circular", "bias": False}  # no border that sees zeros
    layers = [m for n, f in pairs for m in (nn.Conv2d(n // 4, f // 4, **conv), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(4, 64, 8, 8)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_preserve_keeps_the_second_moment_through_deep_relu_networks(transform, kind):
    """As He's initialisation: in expectation over the draw, here the mean over four; one draw is within 20 %.

    The tolerance is what He's own normal weights need in these networks: eight draws range from 0.93 to 1.11.
    """

    def drawn(seed, alpha):
        net, x = deep(kind)
        offset = f"{transform}/spatial/position/random/{seed}"
        return growth(dctps.sparsify(net, 0.01, offset=offset, alpha=alpha), x)

    kept = [drawn(seed, "preserve") for seed in range(4)]
    assert sum(kept) / 4 == pytest.approx(1, abs=0.1)
    assert kept == pytest.approx([1] * 4, abs=0.2)
    assert drawn(0, 1.0) < 0.6  # half, and less where D is padded


@pytest.mark.parametrize("offset", [name for name, recipe in OFFSETS.items() if recipe.signs != "none"])
def test_preserve_with_the_named_offsets_that_have_signs(offset):
    net, x = deep("linear")
    assert growth(dctps.sparsify(net, 0.01, offset=offset, alpha="preserve"), x) == pytest.approx(1, abs=0.15)


def test_preserve_overshoots_under_an_offset_without_signs():
    """Non-negative inputs are mostly low frequency: ReLU then passes nearly all, and alpha = 1 is about right."""

    def without_signs(alpha):
        net = nn.Sequential(*[m for _ in range(12) for m in (nn.Linear(256, 256, bias=False), nn.ReLU())])
        return growth(dctps.sparsify(net, 0.01, offset="dct", alpha=alpha), torch.randn(128, 256), start=2)

    assert without_signs("preserve") == pytest.approx(2, abs=0.1)
    assert without_signs(1.0) == pytest.approx(1, abs=0.05)


# --- what users may say -----------------------------------------------------------------------------------------------


def test_alphas_by_name_and_pattern():
    net = dctps.sparsify(build("lenet"), 0.01, alpha={"conv2": 0.5, "conv*": 2.0})
    assert alphas(net) == {"conv1": 2.0, "conv2": 0.5, "conv3": 2.0, "fc1": 1.0, "fc2": 1.0}
    net = dctps.sparsify(build("fixup_resnet20"), 0.01, alpha={"*": 1.0})  # a number for a layer is that number
    assert set(alphas(net).values()) == {1.0}
    net = dctps.sparsify(build("fixup_resnet20"), 0.01, alpha={"fc": 0.5})
    assert (net.fc.alpha.item(), net.blocks[0].conv2.alpha.item()) == (0.5, 0.0)


def test_alphas_by_a_function():
    net = dctps.sparsify(build("lenet"), 0.01, alpha=lambda name, offset: offset.shape[0] if "fc" in name else 0.25)
    assert alphas(net) == {"conv1": 0.25, "conv2": 0.25, "conv3": 0.25, "fc1": 82.0, "fc2": 10.0}


@pytest.mark.parametrize("alpha", [*ALPHAS, 0.5, {"fc1": 2.0}, lambda name, offset: 3.0])
def test_without_an_offset_there_is_no_alpha(alpha):
    net = dctps.sparsify(build("lenet"), 0.01, offset=None, alpha=alpha)
    assert set(alphas(net).values()) == {None}


class Odd(nn.Sequential):
    """States a norm that no filter can have."""

    def initial_norms(self):
        return {"0": -1.0}


@pytest.mark.parametrize(
    ("build_net", "options", "message"),
    [
        (
            lambda: build("lenet"),
            {"alpha": "he"},
            "unknown alpha 'he'; choose one of: paper, exact, preserve, leverage",
        ),
        (lambda: build("lenet"), {"alpha": "he", "offset": None}, "unknown alpha 'he'"),
        (lambda: build("lenet"), {"alpha": None}, "alpha cannot be None; it is a number, or for all layers: one of"),
        (lambda: build("lenet"), {"alpha": {"conv9": 1.0}}, "alpha for 'conv9' matches no layer; there are: conv1"),
        (lambda: build("lenet"), {"alpha": {"fc1": "preserve"}}, "the alpha of layer 'fc1' cannot be 'preserve'"),
        (lambda: build("lenet"), {"alpha": lambda name, offset: None}, "the alpha of layer 'conv1' cannot be None"),
        (lambda: build("lenet"), {"alpha": math.nan}, "layer 'conv1': alpha must be a finite number, not nan"),
        (lambda: build("fixup_resnet20"), {"alpha": math.inf}, "alpha must be a finite number"),
        (lambda: Odd(nn.Linear(8, 8)), {}, "layer '0': the network states an initial norm of -1.0"),
    ],
)
def test_bad_alphas_change_nothing(build_net, options, message):
    net = build_net()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    with pytest.raises(ValueError, match=message):
        dctps.sparsify(net, 0.1, **options)
    assert [name for name, _ in net.named_parameters()] == list(before)
    assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())


def test_a_zero_offset_has_no_norm_to_scale():
    class Zeros(Ones):
        def matrix(self):
            return torch.zeros(self.shape)

    with pytest.raises(ValueError, match="layer '': its offset is zero, no alpha can give it a norm"):
        dctps.sparsify(nn.Linear(4, 3), 0.5, offset=Zeros((3, 4)), alpha="preserve")


def test_rules_follow_the_offset_of_each_layer():
    recipe = TransformOffset("hadamard", signs="channel", rows="random")
    net = dctps.sparsify(nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 24)), 0.5, offset=recipe, alpha="preserve")
    assert alphas(net) == pytest.approx({"0": math.sqrt(2 * 16 / 12), "1": math.sqrt(2 * 32 / 8)})
