"""Ray: what it is asked for and what becomes of its answers; most of it with a stand-in that needs no cluster."""

import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from dctps.experiments import ray_cluster, ray_engine
from dctps.experiments.events import BUSY, DIED, ENDED, STARTED
from dctps.experiments.perform import is_over
from dctps.experiments.ray_engine import AHEAD, Ray
from dctps.experiments.sweep import sweep
from dctps.train.runs import Run, RunError
from dctps.train.signals import Interrupted
from helpers.marks import needs_digits
from helpers.processes import USER_NETWORKS, drive, processes_in, until, waiting
from helpers.runs import metrics, runtime, state
from helpers.sweeps import Inline, cell, cells, reason, saved_network, statuses

pytestmark = needs_digits


class Lost(Exception):  # noqa: N818
    pass


class Raised(Lost):
    pass


class Fake:
    """Ray's calls. A task is carried out when somebody asks for its result."""

    exceptions = SimpleNamespace(RayError=Lost, RayTaskError=Raised)

    def __init__(self, *nodes: dict[str, float]) -> None:
        self.resources, self.most, self.cancelled, self.started = nodes or ({"CPU": 2.0},), 0, [], True
        self.waiting: dict[int, tuple] = {}

    def is_initialized(self):
        return self.started

    def init(self, **options):
        self.given, self.started = options, True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as Ray does

    def shutdown(self):
        self.started = False

    def nodes(self):
        return [{"Alive": True, "Resources": r} for r in self.resources] + [{"Alive": False, "Resources": {"CPU": 64}}]

    def remote(self, function):
        def submit(*given):
            number = len(self.waiting) + self.most * 1000
            self.waiting[number] = (function, given)
            self.most = max(self.most, len(self.waiting))
            return number

        return SimpleNamespace(options=lambda **asked: setattr(self, "asked", asked) or SimpleNamespace(remote=submit))

    def wait(self, references, num_returns=1, timeout=None):
        return references[:num_returns], references[num_returns:]

    def get(self, reference):
        function, given = self.waiting.pop(reference)
        return function(*given)

    def cancel(self, reference, force=False):
        self.cancelled.append(reference)


@pytest.fixture
def ray(monkeypatch, tmp_path) -> Fake:
    made = Fake()
    monkeypatch.setattr(ray_cluster, "import_ray", lambda: made)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "node"))
    (tmp_path / "node").mkdir()
    return made


# --- apart: results come back ---------------------------------------------------------------------------------------


def test_results_come_back_whole(ray, tmp_path):
    grid = [*cells(3), cell(lr=1e30), cell(images=10**6)]
    for folder, engine in (("away", Ray()), ("here", Inline())):
        assert sweep(grid, runtime(tmp_path / folder), engine).done == 3
    for one in grid:
        away, here = (one.run(tmp_path / folder) for folder in ("away", "here"))
        assert {p.name for p in away.folder.iterdir()} == {p.name for p in here.folder.iterdir()} - {"last.pt", "lock"}
        assert away.metrics.exists() == here.metrics.exists()
        assert not away.metrics.exists() or metrics(away) == metrics(here)
        assert not away.best.exists() or saved_network(away) == saved_network(here)
    assert statuses(tmp_path / "away") == statuses(tmp_path / "here")
    assert not list((tmp_path / "node").iterdir())


def test_the_result_is_written_last_and_what_an_earlier_attempt_left_is_gone(ray, tmp_path, monkeypatch):
    [one], written, write = cells(1), [], ray_engine.write_atomically
    run = Run.open(one.settings, tmp_path)
    for leftover in (run.last, run.rewind):
        leftover.write_text("of another attempt")
    monkeypatch.setattr(ray_engine, "write_atomically", lambda path, how: written.append(path.name) or write(path, how))
    sweep([one], runtime(tmp_path), Ray())
    assert written == ["best.safetensors", "metrics.jsonl", "result.json"]
    assert not run.last.exists()
    assert not run.rewind.exists()


def test_a_task_that_sends_nothing_has_failed(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_engine, "_perform_apart", lambda *given: (ENDED, {"metrics.jsonl": b""}))
    sweep(cells(1), runtime(tmp_path), Ray())
    assert reason(cells(1)[0], tmp_path) == "only metrics.jsonl came back from its Ray task"


def test_a_disk_that_takes_no_results_ends_the_sweep(ray, tmp_path, monkeypatch):
    def full(path, how):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ray_engine, "write_atomically", full)
    with pytest.raises(RunError, match=r"cannot write into .*: No space left on device"):
        sweep(cells(1), runtime(tmp_path), Ray())
    assert not is_over(cells(1)[0].run(tmp_path))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Lost("The worker died.\nCheck its logs."), "The worker died."),
        (
            Raised("\x1b[36mray::f()\x1b[39m (pid=1)\nTraceback\nImportError: no dctps here"),
            "ImportError: no dctps here",
        ),
    ],
)
def test_what_ray_gives_up_is_noted(error, said, shared, ray, tmp_path, monkeypatch):
    def lose(*given):
        raise error

    monkeypatch.setattr(ray_engine, "_perform_in_place" if shared else "_perform_apart", lose)
    [one], kinds = cells(1), []
    outcome = sweep([one], runtime(tmp_path), Ray(shared=shared), lambda event: event and kinds.append(event.kind))
    assert outcome.failed[0].reason == f"its Ray task failed for good: {said}"
    assert "\x1b" not in json.loads(one.run(tmp_path).failure.read_text())["details"]
    assert kinds == [STARTED, DIED]


def test_the_driver_holds_the_claim_while_a_cell_is_away(ray, tmp_path):
    grid = cells(2)
    events = Ray().run(grid, runtime(tmp_path))
    assert [next(events).kind, next(events).kind, next(events)] == [STARTED, STARTED, None]
    other = Ray().run(grid, runtime(tmp_path))
    assert [event.kind for event in other if event] == [STARTED, BUSY, STARTED, BUSY]
    events.close()
    assert len(ray.cancelled) == 2
    for one in grid:
        assert not is_over(one.run(tmp_path))
        with one.run(tmp_path).claimed():
            pass


def test_what_is_over_meanwhile_is_not_sent_away(ray, tmp_path):
    sweep(cells(1), runtime(tmp_path), Inline())
    events = [event.kind for event in Ray().run(cells(1), runtime(tmp_path)) if event]
    assert events == [STARTED, ENDED]
    assert ray.most == 0


# --- in place: workers see the folder -------------------------------------------------------------------------------


def test_workers_train_in_a_shared_folder(ray, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep(cells(2), runtime(Path("runs")), Ray(shared=True))
    assert all(one.run(tmp_path / "runs").last.exists() for one in cells(2))


def test_a_cell_that_another_worker_is_at_is_busy(ray, tmp_path):
    grid = cells(2)
    with Run.open(grid[0].settings, tmp_path).claimed():
        events = [(e.cell, e.kind) for e in Ray(shared=True).run(grid, runtime(tmp_path)) if e and e.kind != STARTED]
    assert events == [(grid[0], BUSY), (grid[1], ENDED)]


@pytest.mark.parametrize("function", [ray_engine._perform_in_place, ray_engine._perform_apart])
def test_a_worker_that_was_interrupted_leaves_for_ray_to_see(function, ray, tmp_path, monkeypatch):
    def interrupted(cell, runtime):
        raise Interrupted("stopped", 143)

    def leave(code):
        assert not list((tmp_path / "node").iterdir())  # in order
        raise SystemExit(code)

    monkeypatch.setattr(ray_engine, "perform", interrupted)
    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit):
        function(cell(), runtime(tmp_path), None)


# --- what Ray is asked for ------------------------------------------------------------------------------------------


def test_no_more_cells_than_there_is_room_for(ray, tmp_path, monkeypatch):
    ray.resources = ({"CPU": 5.0, "GPU": 1.0}, {"CPU": 3.0, "GPU": 1.0}, {"CPU": 1.0}, {})
    monkeypatch.setattr(ray_engine, "_perform_apart", lambda *given: (ENDED, {"result.json": b"{}"}))
    sweep(cells(20), runtime(tmp_path / "a"), Ray(cpus=2, retries=7))
    assert ray.most == 2 + 1 + AHEAD
    assert ray.asked == {"num_cpus": 2, "num_gpus": 0, "max_retries": 7}
    ray.most = 0
    sweep(cells(20), runtime(tmp_path / "b"), Ray(cpus=1, gpus=0.5))
    assert ray.most == 2 + 2 + AHEAD


def test_what_nobody_has_is_said(ray, tmp_path, monkeypatch):
    with pytest.raises(RunError, match="a run asks for 3 CPUs and 1 GPUs, which this machine does not have"):
        sweep(cells(1), runtime(tmp_path), Ray(cpus=3, gpus=1))
    with pytest.warns(UserWarning, match="a run asks for 3 CPUs; no node of the cluster has them yet"):
        assert sweep(cells(1), runtime(tmp_path), Ray("there:6379", cpus=3)).done == 1


def test_what_a_worker_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = dataclasses.replace(runtime(Path("runs")), data_root=Path("data"))
    there = Ray(cpus=2.5)._worker_runtime(given)
    assert (there.runs, there.data_root) == (tmp_path / "runs", tmp_path / "data")
    assert (there.threads, there.device, there.quiet) == (2, "cpu", True)
    assert Ray(cpus=0.5)._worker_runtime(given).threads == 1
    assert Ray(gpus=1)._worker_runtime(given).device == "auto"
    assert Ray(threads=4)._worker_runtime(dataclasses.replace(given, device="cuda")).device == "cuda"
    assert Ray(threads=4)._worker_runtime(given).threads == 4


def test_a_cluster_is_there_for_as_long_as_it_is_needed_and_takes_no_signals(ray, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    ray.started, seen = False, []
    sweep(cells(1), runtime(tmp_path / "runs"), Ray(), lambda e: seen.append(signal.getsignal(signal.SIGTERM)))
    assert signal.SIG_DFL not in seen
    assert not ray.started
    assert ray.given["address"] == "local"
    assert not Path(ray.given["_temp_dir"]).exists()
    assert os.environ["RAY_AUTH_TOKEN"]
    sweep(cells(2), runtime(tmp_path / "runs"), Ray("there:6379"))
    assert ray.given["address"] == "there:6379"
    assert "_temp_dir" not in ray.given


def test_a_cluster_that_is_not_there(ray, tmp_path, monkeypatch):
    def init(**options):
        raise ConnectionError("Could not find it\nat all")

    ray.started, ray.init = False, init
    with pytest.raises(RunError, match=r"cannot join the Ray cluster at there:6379: Could not find it$"):
        sweep(cells(1), runtime(tmp_path), Ray("there:6379"))
    with pytest.raises(RunError, match=r"cannot start a Ray cluster: Could not find it$"):
        sweep(cells(1), runtime(tmp_path), Ray())


def test_without_ray(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[ray\]'"):
        sweep(cells(1), runtime(tmp_path), Ray())


@pytest.mark.process
def test_folders_of_killed_processes_are_removed(tmp_path):
    """But not those of living ones, nor anything else."""
    (tmp_path / "other").mkdir()
    hold = "import sys, time; from pathlib import Path; from dctps.experiments.ray_cluster import temporary_folder"
    hold += "\nwith temporary_folder(Path(sys.argv[1]), 'it-') as folder:"
    hold += "\n print(folder, flush=True)\n time.sleep(1000)"
    command = [sys.executable, "-c", hold, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        theirs = Path(process.stdout.readline().strip())
        (theirs / "file").touch()
        with ray_cluster.temporary_folder(tmp_path, "it-") as ours:
            found = sorted(tmp_path.iterdir())
        process.kill()
    assert found == sorted([tmp_path / "other", theirs, ours])
    with ray_cluster.temporary_folder(tmp_path, "it-") as ours:
        assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "other", ours])
    assert list(tmp_path.iterdir()) == [tmp_path / "other"]


# --- Ray itself -----------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    """A current folder with networks of our own, and a home folder to look into."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs the ray extra")
    (tmp_path / "own.py").write_text(textwrap.dedent(USER_NETWORKS))
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "0")  # other programs may need the memory of this machine
    monkeypatch.setenv("RAY_worker_niceness", "0")  # or its processors
    return tmp_path


def temporary() -> set[Path]:
    return set(Path("/tmp").glob("dctps-ray-*")) | set(Path("/tmp").glob("dctps-run-*"))


@pytest.mark.process
@pytest.mark.parametrize("shared", [False, True])
def test_a_cluster_of_this_machine(shared, own, capfd):
    before, grid = temporary(), [cell(model="own:dying"), cell(model="own:dying_once"), cell(lr=1e30), *cells(2)]
    sweep(grid, runtime(own / "runs"), Ray(retries=1, shared=shared))
    expected = ["failed", "done", "failed", "done", "done"]
    assert statuses(own / "runs") == {one.id: status for one, status in zip(grid, expected, strict=True)}
    assert "its Ray task failed for good: The worker died unexpectedly" in reason(grid[0], own / "runs")
    sweep(grid[-2:], runtime(own / "whole"), Inline())
    for one in grid[-2:]:
        here, there = one.run(own / "whole"), one.run(own / "runs")
        assert saved_network(here) == saved_network(there)
        assert metrics(here) == metrics(there)
    assert not list((own / "home").iterdir())
    assert temporary() <= before
    assert capfd.readouterr().out == ""
    until(lambda: not processes_in(own))


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_cluster_ends_with_its_driver(number, own):
    before, grid, runs = temporary(), cells(2, model="own:Waiting", epochs=2), own / "runs"  # of two steps
    driver = drive(grid, runs, "Ray(shared=True)")
    until(lambda: waiting(own) == 2, lambda: driver.poll() is None)
    driver.send_signal(number)
    error = driver.communicate()[1]
    assert driver.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in error
    until(lambda: not processes_in(own))
    for one in grid:
        progress = state(one.run(runs))["progress"]
        assert (progress["epoch"], progress["step"]) == (1, 0 if number == signal.SIGKILL else 1)
    with ray_cluster.temporary_folder(Path("/tmp"), "dctps-ray-"):  # as the next sweep
        pass
    assert temporary() <= before
    (own / "go").touch()
    assert sweep(grid, runtime(runs), Inline()).done == 2
