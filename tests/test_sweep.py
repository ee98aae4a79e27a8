"""Sweeps: what is missing is done, once, whatever fails; here in one process, the engines have tests of their own."""

import contextlib
import dataclasses
import json
import os
import signal
import threading
import time

import pytest
import torch

from dctps.experiments import performers
from dctps.experiments import sweep as module
from dctps.experiments.cells import Cell
from dctps.experiments.events import BUSY, ENDED, STARTED
from dctps.experiments.perform import is_over, note_failure
from dctps.experiments.status import COLLAPSED, FAILED
from dctps.experiments.sweep import sweep
from dctps.train.runs import Run, RunError
from dctps.train.settings import run_id
from dctps.train.signals import Interrupted
from helpers.marks import needs_digits
from helpers.pages import training_result
from helpers.runs import runtime
from helpers.sweeps import TINY, Inline, cell, cells, file_identity, statuses

pytestmark = needs_digits

COLLAPSING = dataclasses.replace(TINY, model="fixup_resnet20", density=0.01, offset=None, method="synflow")


# --- what is done ---------------------------------------------------------------------------------------------------


def test_what_is_missing_is_done_and_nothing_twice(tmp_path):
    engine, grid = Inline(), cells(4)
    assert sweep(grid[:2], runtime(tmp_path), engine).done == 2
    before = [file_identity(one.run(tmp_path).result) for one in grid[:2]]
    outcome = sweep(grid, runtime(tmp_path), engine)
    assert (outcome.done, outcome.failures, outcome.cells) == (4, [], grid)
    assert sweep(grid, runtime(tmp_path), engine).done == 4
    assert [file_identity(one.run(tmp_path).result) for one in grid[:2]] == before
    assert engine.rounds == [grid[:2], grid[2:]]
    assert statuses(tmp_path) == {one.id: "done" for one in grid}


def test_the_same_run_in_two_places_of_a_grid_is_done_once(tmp_path):
    engine, one = Inline(), cell()
    others = [dataclasses.replace(one, panel="b"), Cell(one.settings, task="counts"), one]
    outcome = sweep([one, *others], runtime(tmp_path), engine)
    assert [[(c.task, c.panel) for c in grid] for grid in engine.rounds] == [[("train", ""), ("counts", "")]]
    assert outcome.done == 2


def test_what_is_shown(tmp_path):
    shown = []
    sweep(cells(2), runtime(tmp_path), Inline(), shown.append)
    assert [(e.cell, e.kind) for e in shown] == [(one, kind) for one in cells(2) for kind in (STARTED, ENDED)]


@pytest.mark.parametrize("task", ["counts", "jacobian"])
def test_other_tasks_have_their_threads_too(task, tmp_path):
    before = torch.get_num_threads()
    try:
        one = Cell(TINY, task=task)
        sweep([one], dataclasses.replace(runtime(tmp_path), threads=before + 1), Inline())
        assert json.loads(one.run(tmp_path).result.read_text())["threads"] == before + 1
    finally:
        torch.set_num_threads(before)


# --- what fails -----------------------------------------------------------------------------------------------------


def test_what_fails_is_a_row_with_its_reason_and_the_sweep_goes_on(tmp_path):
    grid = [cell(images=10**6), cell(model="lenet"), cell(lr=1e30), cell(), Cell(TINY, task="dance")]
    outcome = sweep(grid, runtime(tmp_path), Inline())
    assert outcome.done == 1
    assert [failure.name for failure in outcome.failed] == [one.id for one in grid if one != grid[3]]
    words = ["images 1000000: digits has", "lenet does not take the 1 x 8 x 8 images", "the loss is", "unknown task"]
    for failure, word in zip(outcome.failed, words, strict=True):
        assert word in failure.reason
    assert statuses(tmp_path) == {one.id: "done" if one == grid[3] else FAILED for one in grid}


def test_a_collapse_is_a_result_and_is_not_repeated(tmp_path):
    grid, engine = [Cell(COLLAPSING), cell(images=10**6), cell()], Inline()
    outcome = sweep(grid, runtime(tmp_path), engine)
    assert (outcome.done, outcome.collapsed, len(outcome.failed)) == (1, 1, 1)
    assert statuses(tmp_path) == {grid[0].id: COLLAPSED, grid[1].id: FAILED, grid[2].id: "done"}
    sweep(grid, runtime(tmp_path), engine)
    assert len(engine.rounds) == 1
    sweep(grid, runtime(tmp_path), engine, retry=True)
    assert engine.rounds[1:] == [[grid[1]]]
    assert statuses(tmp_path)[grid[1].id] == FAILED


def test_what_failed_for_a_reason_that_is_gone_succeeds_when_repeated(tmp_path):
    one = cell()
    note_failure(one, Run.open(one.settings, tmp_path), FAILED, "the moon was full")
    assert sweep([one], runtime(tmp_path), Inline()).failed[0].reason == "the moon was full"
    assert sweep([one], runtime(tmp_path), Inline(), retry=True).done == 1
    assert statuses(tmp_path) == {one.id: "done"}


def test_a_folder_of_other_settings_fails_that_cell_alone(tmp_path):
    one, other = cells(2)
    Run.open(other.settings, tmp_path).folder.rename(tmp_path / one.id)
    outcome = sweep([one, other], runtime(tmp_path), Inline())
    assert outcome.done == 1
    assert "holds the run of other settings" in outcome.failed[0].reason


def test_a_folder_that_cannot_be_made_ends_the_sweep(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(RunError, match=r"cannot make the run folder .* choose another with --runs"):
        sweep(cells(2), runtime(tmp_path / "file"), Inline())


# --- others at work -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["claimed", "locked"])  # by another driver, by `dctps train`
def test_what_others_are_at_is_waited_for(what, tmp_path, monkeypatch):
    """And while it is, no engine is started to see whether it is over."""
    monkeypatch.setattr(module, "POLL", 0.01)
    grid, engine, shown = cells(2), Inline(), []
    with contextlib.ExitStack() as other:
        other.enter_context(getattr(Run.open(grid[0].settings, tmp_path), what)())

        def show(event):
            shown.append(event and event.kind)
            if shown.count(None) == 3:
                other.close()

        assert sweep(grid, runtime(tmp_path), engine, show).done == 2
    assert engine.rounds == [grid, grid[:1]]
    assert [kind for kind in shown if kind] == [STARTED, BUSY, STARTED, ENDED, STARTED, ENDED]


def test_what_another_driver_finishes_is_not_done_again(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "POLL", 0.01)
    [one], engine = cells(1), Inline()
    run = Run.open(one.settings, tmp_path)
    with contextlib.ExitStack() as other:
        other.enter_context(run.claimed())

        def show(event):
            if event is None and not run.result.exists():
                run.save_result({"id": one.id})
                other.close()

        sweep([one], runtime(tmp_path), engine, show)
    assert len(engine.rounds) == 1
    assert json.loads(run.result.read_text()) == {"id": one.id}


def test_two_sweeps_at_the_same_time_do_each_cell_once(tmp_path, monkeypatch):
    """In threads, which take the locks of files from each other as processes do."""
    grid, trained, outcomes = cells(20), [], []

    def pretend(settings, runtime, on_epoch):
        trained.append(run_id(settings))
        time.sleep(0.01)
        Run.open(settings, runtime.runs).save_result(training_result(settings))

    monkeypatch.setattr(module, "POLL", 0.01)
    monkeypatch.setattr(performers, "fit", pretend)
    both = [lambda: outcomes.append(sweep(grid, runtime(tmp_path), Inline()).done)] * 2
    threads = [threading.Thread(target=one) for one in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [20, 20]
    assert sorted(trained) == sorted(one.id for one in grid)


# --- signals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_sweep_in_order_and_the_next_goes_on(number, tmp_path):
    grid, engine, before = cells(3), Inline(), signal.getsignal(number)

    def show(event):
        if event.kind == ENDED:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted, match="the same command goes on from there") as caught:
        sweep(grid, runtime(tmp_path), engine, show)
    assert caught.value.code == 128 + number
    assert engine.closed == 1
    assert signal.getsignal(number) == before
    assert [is_over(one.run(tmp_path)) for one in grid] == [True, False, False]
    assert sweep(grid, runtime(tmp_path), engine).done == 3
    assert engine.rounds == [grid, grid[1:]]
