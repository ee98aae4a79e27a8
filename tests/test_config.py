"""Settings: ids that never change, JSON in and out, flags, learning rates and roles."""

import dataclasses
import hashlib
import json
import math

import pytest
import torch

import dctps
from dctps.cli.train import Arguments, _base, _parse
from dctps.models import build
from dctps.train.optimise import OPTIMISERS, build_optimiser, learning_rate, parameter_groups, set_learning_rate
from dctps.train.settings import PRESETS, Settings, from_json, non_defaults, run_id, to_json


def test_ids_are_pinned():
    # finished runs are found by these for ever: a new setting must not change them, nor a changed default
    assert run_id(Settings()) == "44136fa355b3"
    assert run_id(PRESETS["paper-lenet"]) == "b9076772db1a"
    assert run_id(Settings(model="vgg19", density=1e-3, milestones=(1, 2), seed=3, offset=None)) == "8aadc7dd7f3b"


def test_ids_outlive_a_change_of_defaults():
    published = {"offset": "dct", "alpha": 1.0}  # the first defaults
    assert run_id(Settings(density=0.01, **published)) == hashed({"density": 0.01})
    assert run_id(Settings(density=0.01)) == hashed({"density": 0.01, "offset": "dct_signed", "alpha": "leverage"})
    # where there is no offset, its later default changes nothing
    assert run_id(Settings(density=0.01, offset=None)) == hashed({"density": 0.01, "offset": None})
    projection = {"density": 0.01, "projection": "sparse"}
    assert run_id(Settings(**projection)) == run_id(Settings(**projection, **published)) == hashed(projection)
    assert run_id(Settings(seed=1)) == run_id(Settings(seed=1, **published)) == hashed({"seed": 1})
    assert run_id(Settings(density=0.01, offset=None, alpha=0.5)) == hashed(
        {"density": 0.01, "offset": None, "alpha": 0.5}
    )


def hashed(content: dict) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def test_ids_are_of_what_differs():
    assert non_defaults(Settings(lr=1e-3, seed=4)) == {"seed": 4}
    assert run_id(Settings(seed=0)) == run_id(Settings())
    assert run_id(Settings(seed=1)) != run_id(Settings())
    assert run_id(Settings(weight_decay=0)) == run_id(Settings(weight_decay=-0.0)) == run_id(Settings(weight_decay=0.0))
    assert run_id(from_json({"lr": 1})) == run_id(Settings(lr=1.0))


@pytest.mark.parametrize("settings", [*PRESETS.values(), Settings(density=0.01, offset=None, milestones=())])
def test_json_round_trip(settings):
    assert from_json(json.loads(json.dumps(to_json(settings)))) == settings


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "JSON object, not list"),
        ({"epoch": 3}, "unknown settings epoch; there are: alloc"),
        ({"epochs": "3"}, "setting epochs cannot be '3'"),
        ({"epochs": True}, "setting epochs cannot be True"),
        ({"augment": 1}, "setting augment cannot be 1"),
        ({"lr": None}, "setting lr cannot be None"),
        ({"optimizer": "lion"}, "unknown optimizer 'lion'; choose one of: adam, adamw, sgd"),
        ({"epochs": 0}, "epochs must be positive"),
        ({"milestones": 120}, "setting milestones cannot be 120"),
        ({"milestones": [1.5]}, r"setting milestones cannot be \(1.5,\)"),
        ({"weight_decay": float("nan")}, "setting weight_decay cannot be nan"),
        ({"lr": float("inf")}, "setting lr cannot be inf"),
        ({"alpha_lr": -1.0}, "alpha_lr must be positive"),
        ({"values_lr": 0.0}, "values_lr must be positive"),
        ({"frozen": "alphas"}, "unknown frozen 'alphas'; choose one of: values, norms"),
        ({"frozen": "values"}, "frozen values are those of sparse layers that stay in place"),
        ({"frozen": "values", "density": 0.1, "rewire": "rigl"}, "leave rewire out"),
        ({"frozen": "norms", "density": 0.1, "projection": "sparse"}, "leave frozen out"),
        ({"width": -3}, "width must be positive"),
        ({"density": 2.0}, r"density must be in \(0, 1\]"),
        ({"seed": -1}, "must not be negative"),
    ],
)
def test_bad_settings(content, message):
    with pytest.raises(ValueError, match=message):
        from_json(content)


def test_flags_presets_and_files(tmp_path):
    assert _parse(["--density", "0.01", "--offset", "None"], Settings()).settings == Settings(density=0.01, offset=None)
    lenet = _base(_parse(["--preset", "paper-lenet"], Settings()).start)
    assert lenet == PRESETS["paper-lenet"]
    assert _parse(["--preset", "paper-lenet", "--epochs", "15"], lenet).settings == dataclasses.replace(
        lenet, epochs=15
    )
    (tmp_path / "run.json").write_text(json.dumps({"model": "vgg19", "milestones": [3]}))
    start = _parse(["--config", str(tmp_path / "run.json")], Settings()).start
    assert _base(start) == Settings(model="vgg19", milestones=(3,))
    assert Arguments().settings == Settings()
    with pytest.raises(ValueError, match="unknown preset 'paper'; choose one of: paper-adam"):
        _base(_parse(["--preset", "paper"], Settings()).start)


def test_learning_rates_over_the_epochs():
    sgd = PRESETS["paper-sgd"]
    rates = [learning_rate(sgd, epoch) for epoch in (0, 119, 120, 159, 160, 199)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    legacy = dataclasses.replace(sgd, legacy_lr_order=True)
    assert [learning_rate(legacy, e) for e in (118, 119, 159)] == pytest.approx([0.1, 0.01, 0.001])
    cosine = Settings(schedule="cosine", epochs=10, lr=2.0)
    assert [learning_rate(cosine, e) for e in (0, 5)] == pytest.approx([2.0, 1.0])
    assert learning_rate(Settings(), 150) == 1e-3


def test_roles():
    settings = Settings(alpha_lr=1e-2)
    net = dctps.sparsify(build("fixup_resnet20"), 0.05)
    groups = {group["role"]: group for group in parameter_groups(net, settings)}
    counts = {role: len(group["params"]) for role, group in groups.items()}
    assert counts == {"weights": 20, "alpha": 20, "slow": 9 * 5 + 2 + 1}
    assert sum(counts.values()) == len(list(net.parameters()))
    optimiser = build_optimiser(net, settings)
    set_learning_rate(optimiser, 0.5 * settings.lr)
    rates = {group["role"]: group["lr"] for group in optimiser.param_groups}
    assert rates == pytest.approx({"weights": 5e-4, "alpha": 5e-3, "slow": 5e-5})
    assert {g["weight_decay"] for g in optimiser.param_groups} == {5e-4}


def test_values_may_have_a_learning_rate_of_their_own():
    net = dctps.sparsify(build("resnet18", width=4), 0.05)
    net.conv1.values.requires_grad_(False)
    groups = {group["role"]: group for group in parameter_groups(net, Settings(values_lr=1e-2))}
    layers = [m for m in net.modules() if hasattr(m, "values")]
    assert [id(p) for p in groups["values"]["params"]] == [id(layer.values) for layer in layers[1:]]
    assert groups["values"]["factor"] == pytest.approx(10)
    assert sum(len(group["params"]) for group in groups.values()) == len(list(net.parameters())) - 1
    assert "values" not in {group["role"] for group in parameter_groups(net, Settings())}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_weight_decay_is_coupled_except_for_adamw(name):
    """One step on a zero gradient: adam and sgd treat the decay as a gradient, adamw shrinks the weight."""
    parameter = torch.nn.Parameter(torch.tensor([2.0]))
    groups = [{"params": [parameter], "factor": 1.0, "role": "weights"}]
    optimiser = OPTIMISERS[name](groups, Settings(lr=0.1, weight_decay=0.5, momentum=0.0))
    parameter.grad = torch.zeros(1)
    optimiser.step()
    expected = {"adam": 2 - 0.1, "adamw": 2 * (1 - 0.05), "sgd": 2 - 0.1 * 0.5 * 2}[name]
    assert math.isclose(parameter.item(), expected, rel_tol=1e-5)
