"""The processes of one machine: they die, hang on signals, do not start, and no cell is lost or done twice."""

import multiprocessing as mp
import os
import signal
import textwrap
from collections import defaultdict
from pathlib import Path

import pytest

from dctps.experiments.engines import Local, default_local
from dctps.experiments.events import DIED, ENDED, EPOCH, STARTED, Event
from dctps.experiments.sweep import sweep
from dctps.experiments.workers import Worker
from dctps.train.runs import RunError
from helpers.marks import needs_digits
from helpers.processes import USER_NETWORKS, drive, processes_in, until, waiting
from helpers.runs import assert_identical, runtime, state
from helpers.sweeps import Inline, cell, cells, reason, statuses

pytestmark = needs_digits


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    """A current folder with networks of our own."""
    (tmp_path / "own.py").write_text(textwrap.dedent(USER_NETWORKS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- in this process ------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_workers_do_cells_and_are_replaced_when_they_die(own):
    kinds, good = defaultdict(list), cells(4)
    once, ever, failing = cell(model="own:dying_once"), cell(model="own:dying"), cell(images=10**6)
    outcome = sweep(
        [ever, once, failing, *good],
        runtime(own / "runs"),
        Local(2, 1),
        lambda event: event and kinds[event.cell.id].append(event.kind),
    )
    assert [kinds[one.id] for one in good] == [[STARTED, EPOCH, ENDED]] * 4
    assert kinds[failing.id] == [STARTED, ENDED]
    assert kinds[once.id] == [STARTED, DIED, STARTED, EPOCH, ENDED]
    assert kinds[ever.id] == [STARTED, DIED, STARTED, DIED]
    assert statuses(own / "runs") == {one.id: "done" for one in [once, *good]} | {
        one.id: "failed" for one in (ever, failing)
    }
    assert reason(ever, own / "runs") == "its process died 2 times, the last time of signal 9 (out of memory?)"
    assert outcome.done == 5
    assert not mp.active_children()


@pytest.mark.process
def test_workers_compute_what_this_process_computes(tmp_path):
    for folder, engine in (("a", Local(1, 1)), ("b", Inline())):
        sweep(cells(1), runtime(tmp_path / folder), engine)
    assert_identical(*(cells(1)[0].run(tmp_path / folder) for folder in "ab"))


@pytest.mark.process
def test_workers_that_do_not_start_end_the_sweep(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('an installation in pieces')")
    monkeypatch.syspath_prepend(tmp_path)
    events = []
    with pytest.raises(RunError, match=r"processes do not start: 4 in a row .* of an error \(exit code 1\)"):
        sweep(cells(3), runtime(tmp_path / "runs"), Local(2, 1), events.append)
    assert set(events) == {None}  # no cell was started, so none is to blame
    assert not (tmp_path / "runs").exists()
    assert not mp.active_children()


@pytest.mark.process
def test_what_cannot_even_be_noted_ends_the_sweep(tmp_path):
    [one] = cells(1)
    (tmp_path / one.id).write_text("not a folder")
    with pytest.raises(RunError, match="cannot make the run folder"):
        sweep([one], runtime(tmp_path), Local(1, 1))
    assert not mp.active_children()


@pytest.mark.process
def test_a_signal_in_the_last_step_of_a_training_does_not_leave_its_worker_waiting_for_more(own):
    one = cell(model="own:Waiting", batch_size=30)  # of three steps
    events = Local(1, 1).run([one], runtime(own / "runs"))
    until(lambda: next(events) is None and waiting(own))
    [worker] = mp.active_children()
    events.close()
    assert worker.exitcode == 0  # not killed when its time was up
    assert one.run(own / "runs").result.exists()


def test_a_worker_that_dies_after_its_last_word_has_done_its_cell():
    worker = object.__new__(Worker)
    worker.pipe, other = mp.Pipe()
    worker.process, worker.cell, worker.ready = mp.Process(), cell(), True
    worker.process.join = lambda seconds: None
    worker.process._popen = type("Gone", (), {"poll": lambda self: -9})()
    other.send((EPOCH, {"epoch": 0}))
    other.send((ENDED,))
    other.close()
    assert worker.hear() == [Event(cell(), EPOCH, {"epoch": 0}), Event(cell(), ENDED)]
    assert worker.gone


def test_as_many_processes_as_asked_for():
    assert default_local(3, 2) == Local(3, 2)
    cores = len(os.sched_getaffinity(0))
    assert default_local(1).threads == cores
    assert default_local(threads=cores).processes == 1
    for name in ("processes", "threads"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
            default_local(**{name: 0})


# --- drivers of their own -------------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_driver_its_workers_save_their_state_and_go(number, own):
    grid, runs = cells(2, model="own:Waiting", epochs=2), own / "runs"  # of two steps
    driver = drive(grid, runs, "Local(2, 1)")
    until(lambda: waiting(own) == 2, lambda: driver.poll() is None)
    if number == signal.SIGINT:
        os.killpg(driver.pid, number)  # Ctrl-C reaches everybody
    else:
        driver.send_signal(number)
    error = driver.communicate()[1]
    until(lambda: not processes_in(own))
    assert driver.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in error
    assert ("what was under way is saved" in error) == (number != signal.SIGKILL)
    for one in grid:
        progress = state(one.run(runs))["progress"]
        assert (progress["epoch"], progress["step"]) == (1, 1)
    (own / "go").touch()
    assert sweep(grid, runtime(runs), Inline()).done == 2
    sweep(grid[:1], runtime(own / "whole"), Inline())
    assert_identical(*(grid[0].run(folder) for folder in (runs, own / "whole")))


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_ctrl_c_while_workers_start_ends_them_without_a_word(own):
    driver = drive(cells(2), own / "runs", "Local(2, 1)")
    until(lambda: sum("spawn_main" in name for name in processes_in(own).values()) == 2, lambda: driver.poll() is None)
    os.killpg(driver.pid, signal.SIGINT)
    error = driver.communicate()[1]
    assert driver.returncode == 130
    assert error == "stopped; what was under way is saved, the same command goes on from there\n"
    assert not processes_in(own)


@pytest.mark.process
def test_two_drivers_share_a_grid(own):
    grid = [cell(seed=seed, model="own:meeting") for seed in range(2)] + cells(6)
    drivers = [drive(grid, own / "runs", "Local(1, 1)") for _ in range(2)]
    said = [driver.communicate()[0].split("\n") for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0]
    trained = [[line.split()[1] for line in lines if line.startswith(EPOCH)] for lines in said]
    assert sorted(trained[0] + trained[1]) == sorted(one.id for one in grid)
    assert all(trained)  # both were at work: they met
