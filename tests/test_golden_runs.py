"""Run folders of an earlier version are read for ever, and epochs have one meaning wherever they are shown.

The folder was made before files were checked field by field. In its files epochs are counted from 0.
"""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

from dctps.analysis.page.curves import curves
from dctps.cli import main
from dctps.experiments.cells import Cell
from dctps.experiments.results import read
from dctps.experiments.sheet import sheet_rows
from dctps.experiments.tasks.training import EpochRow
from dctps.train import fit
from dctps.train.records import epoch_number
from dctps.train.runs import Run
from dctps.train.state import _of_shape
from helpers.marks import needs_digits
from helpers.runs import runtime

GOLDEN = Path(__file__).with_name("golden") / "folder-v1"
DCTPS, SYNFLOW = GOLDEN / "dc6bb6422ce9", GOLDEN / "5b580962eacb"


@pytest.fixture
def copy(tmp_path):
    return Path(shutil.copytree(GOLDEN, tmp_path / "runs"))


def test_every_file_is_read():
    results = read(GOLDEN)
    assert not results.broken
    assert not results.unfinished
    assert sorted((row.task, row.status) for row in results.rows) == [
        ("counts", "done"),
        ("jacobian", "done"),
        ("train", "done"),
        ("train", "done"),
        ("train", "failed"),
    ]
    for folder in (DCTPS, SYNFLOW):
        run = Run(folder)
        assert run.finished()["settings"]["epochs"] == run.settings().epochs == len(run.read_metrics())
        assert run.load_state().progress.epoch == run.settings().epochs


@needs_digits
def test_a_run_is_finished_again_from_its_state(copy):
    run = Run(copy / DCTPS.name)
    before = run.finished()
    run.result.unlink()
    after = fit(run.settings(), runtime(copy))
    names = ("best_validation", "best_epoch", "test_at_best")
    assert [after["accuracy"][name] for name in names] == [before["accuracy"][name] for name in names]
    assert after["pruning"] == before["pruning"]


@needs_digits
@pytest.mark.parametrize("folder", [DCTPS, SYNFLOW], ids=["with alphas", "without"])
def test_a_run_goes_on_with_more_epochs(copy, folder):
    run = Run(copy / folder.name)
    longer = dataclasses.replace(run.settings(), epochs=run.settings().epochs + 1)
    fit(longer, runtime(copy), continue_from=run.folder)
    rows = Run.at(longer, copy).read_metrics()
    assert [vars(row) for row in rows[:-1]] == [vars(row) for row in run.read_metrics()]
    assert len(rows) == longer.epochs


def test_epochs_count_from_0_in_files_and_from_1_wherever_they_are_shown(capsys, tmp_path):
    run = Run(DCTPS)
    stored = run.finished()["accuracy"]["best_epoch"]
    best = max(run.read_metrics(), key=lambda row: row.validation)  # the first of equals
    assert (stored, best.epoch) == (2, 2)
    shown = epoch_number(stored)
    results, cell = read(GOLDEN), Cell(run.settings())
    (row,) = sheet_rows("x", "y", [cell], results)
    assert row.best_epoch == shown == 3
    epochs = sheet_rows("x", "y", [cell], results, EpochRow)
    assert [one.epoch for one in epochs] == [1, 2, 3]
    assert max(epochs, key=lambda one: one.validation).epoch == shown
    for path in (run.folder, run.last):
        assert main(["inspect", str(path)]) == 0
    said = capsys.readouterr().out
    assert "at the best validation epoch (3)" in said
    assert "after epoch 3" in said
    (done,) = [one for one in results.rows if one.id == run.id]
    assert curves([done], 1)[0]["epoch"] == [0, 1, 2]  # the script of the page adds 1


@needs_digits
def test_a_finished_run_says_its_best_epoch_from_1(copy, capsys):
    fit(Run(DCTPS).settings(), dataclasses.replace(runtime(copy), quiet=False))
    assert "at the best validation epoch (3)" in capsys.readouterr().out


def test_moments_of_alphas_get_their_axis():
    golden = torch.load(Path(__file__).with_name("golden") / "state-with-positions.pt")["optimiser"]["state"]
    alphas = [state for state in golden.values() if state["exp_avg"].dim() == 0]
    assert alphas
    for state in alphas:
        shapes = {key: tuple(value.shape) for key, value in _of_shape(state, torch.Size([1])).items()}
        assert shapes == {"step": (), "exp_avg": (1,), "exp_avg_sq": (1,)}
