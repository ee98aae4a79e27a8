"""Every method of the paper in the trainer: three words of configuration, resumable, in one process or several."""

import dataclasses
import json
import os
import signal

import pytest
import torch

import dctps
from dctps.methods.lottery import schedule
from dctps.train import Interrupted, fit
from dctps.train import setup as prepare
from dctps.train.images import RunBatches
from dctps.train.loop import Trainer
from dctps.train.processes import Processes
from dctps.train.runs import Run, RunError
from dctps.train.settings import Settings, run_id
from helpers.checkpoints import positions_in
from helpers.marks import needs_digits
from helpers.processes import torchrun
from helpers.runs import PAIR, SMALL, alone, assert_identical, metrics, runtime, state, train_in_two

pytestmark = needs_digits

WEIGHTS = 93_780  # of the small network that the digits train
CLASSICAL = dataclasses.replace(SMALL, offset=None, epochs=1)
RIGL = dataclasses.replace(SMALL, epochs=2, rewire="rigl", rewire_every=7)
PAIR_RIGL = dataclasses.replace(PAIR, rewire="rigl", rewire_every=10)


def changed(settings: Settings = SMALL, **changes) -> Settings:
    return dataclasses.replace(settings, **changes)


@pytest.mark.parametrize("method", sorted(dctps.METHODS))
def test_every_method_trains_exactly_as_many_weights_as_asked(method, tmp_path):
    settings = changed(CLASSICAL, method=method, density=0.05, method_steps=3)
    result = fit(settings, runtime(tmp_path))
    kept = round(0.05 * result["weights"]["size"])
    assert result["weights"] == {"asked": kept, "got": kept, "size": result["weights"]["size"]}
    needs_data = dctps.METHODS[method].needs_data
    passes = result["pruning"]["forward_passes"], result["pruning"]["backward_passes"]
    assert min(passes) >= (3 if needs_data or method == "synflow" else 0)
    assert result["pruning"]["seconds"] > 0


def test_the_methods_see_the_training_images_as_training_does(tmp_path, monkeypatch):
    seen = []

    def spy(model, method, density, *, batches, **options):
        seen.extend(batch for batch, _ in zip(batches, range(30), strict=False))
        return original(model, method, density, batches=batches, **options)

    original = prepare.prune
    monkeypatch.setattr(prepare, "prune", spy)
    fit(changed(CLASSICAL, method="snip"), runtime(tmp_path))
    dataset = dctps.data.load("digits")
    group = Processes()
    batches = RunBatches.of(dataset, CLASSICAL, torch.device("cpu"), group).training
    expected = [*batches.epoch(0), *batches.epoch(1)][:30]
    assert len(batches) < 30
    assert all(
        torch.equal(x, own) and torch.equal(y, label) for (x, y), (own, label) in zip(seen, expected, strict=True)
    )


def test_a_collapse_leaves_no_folder(tmp_path):
    settings = Settings(model="fixup_resnet20", data="digits", density=0.01, offset=None, method="synflow")
    with pytest.raises(dctps.CollapseError):
        fit(settings, runtime(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_method_may_choose_the_support_of_an_offset(tmp_path):
    settings = changed(CLASSICAL, method="synflow", offset="dct", method_steps=5)
    fit(settings, runtime(tmp_path))
    net = dctps.models.build("small_cnn", in_channels=1)
    dctps.load(tmp_path / run_id(settings) / "best.safetensors", net)
    assert all(row.offset == "dct" for row in dctps.report(net).layers)


@pytest.mark.parametrize("rewire", ["rigl", "set", "dsr"])
@pytest.mark.parametrize("offset", ["dct", None])
def test_rewiring_moves_weights_and_keeps_their_number(rewire, offset, tmp_path):
    settings = changed(RIGL, rewire=rewire, offset=offset)
    result = fit(settings, runtime(tmp_path))
    assert result["rewirings"] == sum(
        1 for t in range(1, 31) if t % 7 == 0 and (rewire != "dsr" or not offset or t > 20)
    )
    assert result["weights"]["got"] == result["weights"]["asked"]
    before, _ = prepare.prepare(settings, dctps.data.load("digits"), torch.device("cpu"))
    after = state(Run(tmp_path / run_id(settings)))["model"]
    old = {name: layer.support for name, layer in before.named_modules() if hasattr(layer, "support")}
    moved = [n for n, support in old.items() if support.positions.tolist() != positions_in(after, n).tolist()]
    assert moved
    file = tmp_path / run_id(settings) / "best.safetensors"
    assert (
        dctps.report(dctps.load(file, dctps.models.build("small_cnn", in_channels=1))).nnz == result["weights"]["got"]
    )


def interrupted(settings: Settings, folder, step: int) -> None:
    """Train, but a signal arrives in this step."""
    original = Trainer._step

    def stop(self, *arguments):
        if self.progress.epoch * len(self.training) + self.progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_step", stop)
        with pytest.raises(Interrupted):
            fit(settings, runtime(folder))


@pytest.mark.parametrize(
    ("settings", "step"),
    [
        (RIGL, 13),  # while the gradients of the next step are watched
        (RIGL, 24),
        (changed(RIGL, rewire="set", offset=None), 24),
        (changed(RIGL, rewire="dsr", offset=None), 24),
        (changed(RIGL, method="force", method_steps=3, offset=None), 24),
    ],
    ids=lambda value: f"{value.method or ''}-{value.rewire}" if isinstance(value, Settings) else str(value),
)
def test_resume_is_bit_equal_with_rewiring(settings, step, tmp_path):
    interrupted(settings, tmp_path / "two", step)
    result = fit(settings, runtime(tmp_path / "two"))
    whole = fit(settings, runtime(tmp_path / "one"))
    one, two = (Run(tmp_path / name / run_id(settings)) for name in ("one", "two"))
    assert_identical(one, two)
    assert result["accuracy"] == whole["accuracy"]
    assert (result["pruning"] or {}).get("forward_passes") == (whole["pruning"] or {}).get("forward_passes")


def test_a_run_that_goes_on_is_not_scored_again(tmp_path, monkeypatch):
    settings = changed(CLASSICAL, method="snip", epochs=2)
    interrupted(settings, tmp_path, 3)

    def never(*args, **options):
        raise AssertionError("scored again")

    monkeypatch.setattr(prepare, "prune", never)
    assert fit(settings, runtime(tmp_path))["pruning"]["forward_passes"] == 1


# --- lottery tickets ------------------------------------------------------------------------------------------------

IMP = changed(CLASSICAL, method="imp", method_steps=2, density=0.04)


def test_lottery_tickets_are_runs_that_build_on_one_another(tmp_path):
    result = fit(IMP, runtime(tmp_path))
    size = result["weights"]["size"]
    counts = schedule(size, 0.04, 2)
    rounds = [changed(IMP, imp_round=0), changed(IMP, imp_round=1), IMP]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(map(run_id, rounds))
    states = [state(Run(tmp_path / run_id(own)))["model"] for own in rounds]
    names = [key.removesuffix(".values") for key in states[2] if key.endswith(".values")]
    assert [sum(len(positions_in(own, n)) for n in names) for own in states[1:]] == counts
    assert result["weights"]["got"] == counts[-1] == round(0.04 * size)
    for earlier, later in [(states[0], states[1]), (states[1], states[2])]:  # the largest of the round before
        kept, dropped = [], []
        for name in names:
            magnitudes = torch.zeros_like(states[0][f"{name}.weight"]).flatten()
            places = positions_in(earlier, name)
            places = torch.arange(magnitudes.numel()) if places is None else places.long()
            magnitudes[places] = earlier.get(f"{name}.values", states[0][f"{name}.weight"].flatten()).abs()
            chosen = torch.zeros_like(magnitudes, dtype=torch.bool)
            chosen[positions_in(later, name).long()] = True
            kept.append(magnitudes[chosen])
            dropped.append(magnitudes[~chosen])
        assert torch.cat(kept).min() >= torch.cat(dropped).max()


def test_lottery_tickets_start_from_the_initial_values(tmp_path):
    fit(IMP, runtime(tmp_path))
    saved = state(Run(tmp_path / run_id(IMP)))["model"]
    dataset, device = dctps.data.load("digits"), torch.device("cpu")
    plain = prepare.build(IMP, dataset, device)
    ticket, _ = prepare.prepare(IMP, dataset, device, saved=saved)
    for name, layer in ticket.named_modules():
        if hasattr(layer, "support"):
            initial = plain.get_submodule(name).weight.detach().flatten()[layer.positions.long()]
            assert torch.equal(layer.values.detach(), initial)


def test_an_interrupted_round_goes_on(tmp_path):
    interrupted(IMP, tmp_path, 9)  # in the dense round
    assert fit(IMP, runtime(tmp_path))["accuracy"] == fit(IMP, runtime(tmp_path / "other"))["accuracy"]


def test_late_rewinding_starts_from_the_dense_round(tmp_path):
    settings = changed(IMP, imp_rewind=5)
    seen = []
    original = Trainer._step

    def spy(self, *arguments):
        seen.append(
            (self.settings.imp_round, self.progress.step, {k: v.clone() for k, v in self.model.state_dict().items()})
        )
        return original(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_step", spy)
        fit(settings, runtime(tmp_path))
    dense = next(own for number, step, own in seen if number == 0 and step == 5)  # as it was after five steps
    for number in (1, None):
        _, step, first = next(row for row in seen if row[0] == number)
        assert step == 5
        for name in (key.removesuffix(".values") for key in first if key.endswith(".values")):
            kept = dense[f"{name}.weight"].flatten()[positions_in(first, name).long()]
            assert torch.equal(first[f"{name}.values"], kept)


def test_a_round_without_its_state_is_an_error(tmp_path):
    fit(changed(IMP, imp_round=1), runtime(tmp_path))
    Run(tmp_path / run_id(changed(IMP, imp_round=1))).last.unlink()
    with pytest.raises(RunError, match=r"no last\.pt"):
        fit(IMP, runtime(tmp_path))


# --- subspaces and BatchNorm ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("projection", ["dense", "sparse", "fastfood"])
def test_projections_train_and_go_on(projection, tmp_path):
    settings = changed(SMALL, density=0.001, projection=projection)
    interrupted(settings, tmp_path / "two", 15)
    result = fit(settings, runtime(tmp_path / "two"))
    fit(settings, runtime(tmp_path / "one"))
    assert_identical(*(Run(tmp_path / name / run_id(settings)) for name in ("one", "two")))
    size = result["weights"]["size"]
    assert result["weights"] == {"asked": round(0.001 * size), "got": round(0.001 * size), "size": size}
    assert result["bytes"]["file"] < 4 * size / 10  # neither the weights nor the projection are in it
    losses = [row["loss"] for row in metrics(Run(tmp_path / "one" / run_id(settings)))]
    assert losses[1] < losses[0]


def test_few_scales_and_shifts(tmp_path):
    normed = Settings(model="resnet18", width=8, data="digits", density=0.05, epochs=1, batch_size=64)
    few = changed(normed, norm_density=0.1)
    bytes_of = {s.norm_density: fit(s, runtime(tmp_path))["bytes"]["file"] for s in (normed, few)}
    assert bytes_of[0.1] < bytes_of[None]


def test_few_scales_and_shifts_of_a_dense_network(tmp_path):
    settings = Settings(model="resnet18", width=8, data="digits", norm_density=0.1, epochs=1, batch_size=64)
    result = fit(settings, runtime(tmp_path))
    net = dctps.models.build("resnet18", in_channels=1, width=8)
    dctps.load(tmp_path / run_id(settings) / "best.safetensors", net)
    channels = sum(row.size for row in dctps.report(net).norms)
    kept = sum(row.nnz for row in dctps.report(net).norms)
    assert kept == round(0.1 * channels)
    assert result["bytes"]["dense_per_step"] - result["bytes"]["per_step"] == 8 * (channels - kept)


@pytest.mark.parametrize("alpha", ["preserve", 0.5])
def test_alpha_by_rule(alpha, tmp_path):
    settings = changed(SMALL, alpha=alpha, train_alpha=False, epochs=1)
    fit(settings, runtime(tmp_path))
    saved = state(Run(tmp_path / run_id(settings)))["model"]
    alphas = [float(tensor) for key, tensor in saved.items() if key.endswith(".alpha")]
    assert all(a == 0.5 for a in alphas) if alpha == 0.5 else all(a > 1 for a in alphas)


# --- several processes ----------------------------------------------------------------------------------------------


@pytest.mark.process
def test_two_processes_rewire_alike_and_follow_one(tmp_path, monkeypatch):
    first, _ = train_in_two(PAIR_RIGL, tmp_path / "two")  # checks that both hold the same supports
    fit(PAIR_RIGL, runtime(tmp_path / "one"))
    alone = state(Run(tmp_path / "one" / run_id(PAIR_RIGL)))["model"]
    for key, tensor in alone.items():
        if key.endswith("_extra_state"):
            assert torch.equal(first[key], tensor), key
        else:  # the bound and its reason are those of two processes without rewiring
            torch.testing.assert_close(first[key], tensor, rtol=1e-3, atol=5e-4)


@pytest.mark.process
@pytest.mark.parametrize(
    "words",
    [["--method", "force", "--method-steps", "2", "--offset", "None"], ["--rewire", "set", "--rewire-every", "5"]],
)
def test_torchrun_with_methods(words, tmp_path):
    command = ["-m", "dctps", "train", "--model", "small_cnn", "--data", "digits", "--density", "0.02", "--epochs", "1"]
    run = torchrun(*command, *words, "--runs", str(tmp_path))
    assert run.returncode == 0, run.stderr[-3000:]
    (result,) = tmp_path.glob("*/result.json")
    assert json.loads(result.read_text())["processes"] == 2


# --- bad settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"density": None, "method": "snip"}, "method snip needs a density"),
        ({"density": None, "rewire": "rigl"}, "rewire rigl needs a density"),
        ({"density": None, "projection": "dense"}, "projection dense needs a density"),
        ({"projection": "dense", "rewire": "rigl"}, "no sparse weights"),
        ({"rewire": "wiggle"}, "unknown rewire 'wiggle'; choose one of: rigl, set, dsr"),
        ({"imp_round": 1}, "belong to the method imp"),
        ({"method": "imp"}, "say --offset none"),
        ({"imp_rewind": 3}, "for the method imp"),
        ({"method_steps": 0, "method": "snip"}, "method_steps must be positive"),
        ({"norm_density": 1.5}, r"norm_density must be in \(0, 1\]"),
        ({"drop_fraction": 0.0}, r"drop_fraction must be in \(0, 1\]"),
        ({"alpha": True}, "setting alpha cannot be True"),
    ],
)
def test_settings_that_do_not_go_together(changes, message):
    with pytest.raises(ValueError, match=message):
        changed(SMALL, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "snap"}, "unknown method 'snap'; choose one of: .*synflow.*imp"),
        ({"projection": "slanted"}, "unknown projection 'slanted'"),
        ({"alpha": "conserve"}, "conserve"),
        ({"method": "imp", "method_steps": 2, "imp_round": 9, "offset": None}, "is reached in 2 rounds"),
        ({"method": "imp", "offset": None, "imp_rewind": 1000}, "training has 42 steps"),
        ({"rewire": "rigl", "rewire_every": 1000}, "rewire more often or longer"),
    ],
)
def test_settings_that_the_network_refuses(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        fit(changed(SMALL, **changes), runtime(tmp_path))
    assert not any(tmp_path.glob("*/last.pt"))


@pytest.mark.parametrize("frozen", ["values", "norms"])
def test_frozen_parameters_stay_and_the_others_learn(frozen, tmp_path):
    settings = Settings(model="resnet18", width=4, data="digits32", images=200, epochs=1, density=0.05, frozen=frozen)
    trainer = alone(settings, tmp_path)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    changed = {name for name, p in trainer.model.named_parameters() if not torch.equal(p, before[name])}
    values = {name for name in before if name.endswith(".values")}
    norms = {name for name in before if "bn" in name or "shortcut.1" in name}
    stay = {"values": values - {"fc.values"}, "norms": norms}[frozen]
    assert stay
    assert changed == set(before) - stay
