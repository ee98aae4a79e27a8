"""The rule `leverage`: the alpha that S can turn in a training, where the network sets the scale elsewhere."""

import math

import pytest
import torch
from torch import nn

import dctps
from dctps.core.alphas import PERSISTENCE, ScaledLayer, named_rule
from dctps.core.offsets import OFFSETS
from dctps.models import MODELS, build
from dctps.nn.tracing import rescaled_layers
from dctps.train.settings import Settings, run_id


def rescaled(net: nn.Module) -> list[str]:
    found = rescaled_layers(net)
    return [name for name, layer in net.named_modules() if layer in found]


def alphas(net: nn.Module) -> dict[str, float]:
    return {row.name: row.alpha for row in dctps.report(net).layers}


# --- the rule ---------------------------------------------------------------------------------------------------------


def test_alpha_is_the_length_the_values_reach():
    rule = dctps.Leverage(lr=1e-3, steps=2500)
    assert rule.reach == pytest.approx(PERSISTENCE * 1e-3 * 50)
    square = OFFSETS["dct"].bind((64, 64, 3, 3))  # its filters have norm 1
    four_each = ScaledLayer(square, nnz=256, is_rescaled=True)
    assert rule(four_each) == pytest.approx(2 * rule.reach)
    assert rule(four_each._replace(nnz=7)) == pytest.approx(rule.reach)  # the few filters that have a value have one
    wide = OFFSETS["dct"].bind((64, 16))  # 64 filters of 16 entries: cut to norm sqrt(16 / 64) in the mean square
    assert rule(ScaledLayer(wide, nnz=64, is_rescaled=True)) == pytest.approx(2 * rule.reach, rel=0.02)


def test_other_layers_keep_the_alpha_of_the_paper():
    offset = OFFSETS["dct"].bind((8, 8))
    assert dctps.Leverage()(ScaledLayer(offset, nnz=9)) == 1.0
    assert dctps.Leverage()(ScaledLayer(offset, norm=0.25, nnz=9, is_rescaled=True)) == pytest.approx(0.5)


@pytest.mark.parametrize(("lr", "steps"), [(0.0, 10), (-1.0, 10), (1e-3, 0), (math.nan, 10), (math.inf, 10)])
def test_bad_trainings(lr, steps):
    with pytest.raises(ValueError, match="a learning rate and a number of steps are positive, not"):
        dctps.Leverage(lr, steps)


def test_steps_of_a_filter_that_is_rescaled_add_up_like_right_angles():
    """The derivation: after T steps of size lr in random directions, orthogonal to the filter, |s| = lr sqrt(T k)."""
    k, steps, lr = 400, 300, 1e-2
    generator = torch.Generator().manual_seed(0)
    w = torch.zeros(k, dtype=torch.float64)
    for _ in range(steps):
        step = torch.randn(k, dtype=torch.float64, generator=generator)
        step -= w * (step @ w) / max(1e-12, float(w @ w))
        w += lr * math.sqrt(k) * step / step.norm()
    assert float(w.norm()) == pytest.approx(lr * math.sqrt(steps * k), rel=1e-6)


# --- which layers it is for -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [name for name in MODELS if name.startswith(("vgg", "resnet", "mobilenet"))])
def test_all_layers_of_networks_with_batchnorm(model):
    net = build(model)
    layers = [n for n, m in net.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    assert [name for name in rescaled(net) if name in layers] == layers


@pytest.mark.parametrize("model", ["lenet", "fixup_resnet20", "small_cnn"])
def test_no_layer_of_networks_without(model):
    assert rescaled(build(model)) == []


class Forked(nn.Module):
    """`both` is used by a normalisation and elsewhere; `twice` is normalised in one of its two calls."""

    def __init__(self):
        super().__init__()
        self.both, self.twice, self.once = (nn.Linear(4, 4) for _ in range(3))
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        y = self.both(x)
        z = self.norm(self.twice(self.norm(y) + y))
        return self.norm(self.once(z)) + self.twice(z)


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4))
        self.conv, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x):
        y = self.block(x)
        return self.norm(self.conv(y)) if y.sum() > 0 else y


def test_layers_whose_output_is_used_otherwise_are_left_out():
    assert rescaled(Forked()) == ["once"]


def test_what_cannot_be_traced_is_left_out_and_the_parts_of_it_are_found():
    assert rescaled(Untraceable()) == ["block.0"]


def test_a_classifier_alone_is_not_rescaled():
    assert rescaled(nn.Sequential(nn.Flatten(), nn.Linear(8, 4))) == []
    assert rescaled(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))) == ["0", "3"]


# --- in networks ------------------------------------------------------------------------------------------------------


def test_sparsify_takes_signs_and_leverage_unless_told_otherwise():
    default, named = (
        dctps.sparsify(build("resnet18", width=4), 0.05),
        dctps.sparsify(build("resnet18", width=4), 0.05, offset="dct_signed", alpha="leverage"),
    )
    assert alphas(default) == alphas(named)
    assert {row.offset for row in dctps.report(default).layers} == {"dct_signed"}
    assert max(alphas(default).values()) < 1
    assert set(alphas(dctps.sparsify(build("lenet"), 0.05)).values()) == {1.0}


def test_longer_trainings_have_a_larger_alpha():
    short, long = (
        alphas(dctps.sparsify(build("vgg11", width=4), 0.05, alpha=dctps.Leverage(steps=steps)))
        for steps in (1000, 4000)
    )
    assert long == pytest.approx({name: 2 * alpha for name, alpha in short.items()})


def test_a_training_of_its_own_can_be_written_as_a_name():
    named, made = (
        alphas(dctps.sparsify(build("vgg11", width=4), 0.05, alpha=alpha))
        for alpha in ("leverage/3e-4/4000", dctps.Leverage(3e-4, 4000))
    )
    assert named == made


def test_a_name_is_read_and_written():
    for rule in (dctps.Leverage(), dctps.Leverage(3e-4, 50_000), dctps.Leverage(lr=1e-2)):
        assert named_rule(rule.name) == rule
    assert (dctps.Leverage().name, dctps.Leverage(3e-4, 50_000).name) == ("leverage", "leverage/0.0003/50000")


def test_one_rule_is_one_run():
    names = ("leverage", "leverage/1e-3/1000", "leverage/0.001/1_000")
    assert len({run_id(Settings(density=0.1, alpha=name)) for name in names}) == 1
    assert run_id(Settings(density=0.1, alpha="leverage/1e-3/1001")) != run_id(Settings(density=0.1))


@pytest.mark.parametrize(
    "name",
    [
        *("leverage/", "leverage/1e-3", "leverage/0/9", "leverage/1e-3/1.5", "leverage/1/2/3", "leverage/nan/5"),
        *("leverage/1e-60/5", f"leverage/1e-3/{10**400}"),
    ],
)
def test_bad_names_of_trainings(name):
    message = f"alpha '{name}': leverage for a training of its own is written leverage/LR"
    with pytest.raises(ValueError, match=message):
        dctps.sparsify(build("lenet"), 0.05, alpha=name)
    with pytest.raises(ValueError, match=message):
        Settings(density=0.1, alpha=name)


def test_meta_networks_have_the_same_alphas():
    with torch.device("meta"):
        meta = build("resnet18", width=4)
    assert alphas(dctps.sparsify(meta, 0.05)) == alphas(dctps.sparsify(build("resnet18", width=4), 0.05))
