"""More epochs of a finished run: bit-equal to the longer run, or refused with the reason."""

import dataclasses

import pytest

from dctps.cli import main
from dctps.train import fit
from dctps.train.loop import Trainer
from dctps.train.runs import Run, RunError
from helpers.marks import needs_digits
from helpers.runs import SMALL, assert_identical, runtime
from helpers.sweeps import saved_network

pytestmark = needs_digits
SHORT = dataclasses.replace(SMALL, epochs=3, images=400)
LONG = dataclasses.replace(SHORT, epochs=5)
FLAGS = "--model=small_cnn --data=digits --density=0.02 --lr=3e-3 --batch-size=64 --images=400"


def accuracies(result):
    return result["accuracy"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"density": None, "optimizer": "sgd", "schedule": "multistep", "milestones": (2, 4)},
        {"offset": None, "method": "synflow", "method_steps": 2},
    ],
    ids=["sparse", "dense multistep", "synflow"],
)
def test_a_longer_run_that_goes_on_is_bit_equal_to_one_from_the_start(changes, tmp_path):
    short, long = (dataclasses.replace(settings, **changes) for settings in (SHORT, LONG))
    fit(short, runtime(tmp_path / "a"))
    trained, begun = [], Trainer._train_epoch

    def counted(self, signals):
        trained.append(self.progress.epoch)
        begun(self, signals)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_train_epoch", counted)
        result = fit(long, runtime(tmp_path / "a"), continue_from=Run.at(short, tmp_path / "a").folder)
    assert trained == [3, 4]  # counted from 0: the fourth and the fifth
    whole = fit(long, runtime(tmp_path / "b"))
    assert accuracies(result) == accuracies(whole)
    one, two = (Run.at(long, tmp_path / name) for name in ("a", "b"))
    for run in (one, two):  # the time that a method took is not the same
        saved = dataclasses.asdict(run.load_state())
        if saved["progress"]["pruning"] is not None:
            saved["progress"]["pruning"]["seconds"] = 0.0
        run.save_state(saved)
    assert_identical(one, two)
    assert saved_network(one)[1] == saved_network(two)[1]
    assert Run.at(short, tmp_path / "a").finished() is not None  # the shorter run is left as it was


def test_an_interrupted_continuation_goes_on_with_the_same_call(tmp_path, monkeypatch):
    fit(SHORT, runtime(tmp_path / "a"))
    before, record = Run.at(SHORT, tmp_path / "a").folder, Trainer._record

    def stop(self, row):
        record(self, row)
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "_record", stop)
    with pytest.raises(KeyboardInterrupt):
        fit(LONG, runtime(tmp_path / "a"), continue_from=before)
    monkeypatch.undo()
    fit(LONG, runtime(tmp_path / "a"), continue_from=before)
    fit(LONG, runtime(tmp_path / "b"))
    assert_identical(Run.at(LONG, tmp_path / "a"), Run.at(LONG, tmp_path / "b"))


def test_the_command_takes_the_settings_of_the_run(tmp_path, capsys):
    places = ["--runs", str(tmp_path), "--quiet", "--threads", "1", "--no-keep-memory"]
    assert main(["train", *FLAGS.split(), "--epochs", "3", *places]) == 0
    before = str(Run.at(SHORT, tmp_path).folder)
    assert main(["train", "--continue-from", before, "--epochs", "5", *places]) == 0
    assert [row.epoch for row in Run.at(LONG, tmp_path).read_metrics()] == [0, 1, 2, 3, 4]
    assert main(["train", "--continue-from", before, "--epochs", "6", "--lr", "0.1", *places]) == 2
    assert "more epochs, not with another lr" in capsys.readouterr().err
    assert main(["train", "--continue-from", before, "--preset", "paper-adam", *places]) == 2
    assert "say one of --preset, --continue-from" in capsys.readouterr().err
    assert main(["train", "--continue-from", str(tmp_path / "nothing"), *places]) == 2
    assert "nothing/config.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "longer", "message"),
    [
        ({"schedule": "cosine"}, {}, "schedule cosine depends on the number of epochs: the first 3 of 5"),
        ({"rewire": "rigl"}, {}, "rewire rigl depends on the number of epochs"),
        ({"method": "imp", "offset": None, "imp_round": 0}, {}, "method imp depends on the number of epochs"),
        ({}, {"epochs": 2}, "epochs 2: the run has 3 already"),
        ({}, {"seed": 1, "lr": 0.5}, "not with another lr, seed"),
    ],
)
def test_what_depends_on_the_number_of_epochs_is_refused(changes, longer, message, tmp_path):
    before = Run.open(dataclasses.replace(SHORT, **changes), tmp_path / "old")
    settings = dataclasses.replace(LONG, **changes | longer)
    with pytest.raises(ValueError, match=message):
        fit(settings, runtime(tmp_path / "new"), continue_from=before.folder)
    assert not (tmp_path / "new").exists()


def test_a_run_that_is_not_finished_or_has_no_state_is_refused(tmp_path):
    before = Run.open(SHORT, tmp_path / "old")
    with pytest.raises(RunError, match="is not finished"):
        fit(LONG, runtime(tmp_path / "new"), continue_from=before.folder)
    fit(SHORT, runtime(tmp_path / "old"))
    before.last.unlink()
    with pytest.raises(RunError, match=r"has no last\.pt to go on from"):
        fit(LONG, runtime(tmp_path / "new"), continue_from=before.folder)
    assert not (tmp_path / "new").exists()
