"""Sweeps under fire: workers, nodes and drivers are killed again and again, and nothing of it is to be seen afterwards.

Kills fall where the runs on disk have come so far, at places drawn from a seed; never by the clock.
"""

import contextlib
import dataclasses
import importlib.util
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dctps.experiments.cells import Cell
from dctps.experiments.engines import Local
from dctps.experiments.results import read
from dctps.experiments.sweep import sweep
from helpers.marks import needs_digits
from helpers.processes import drive, processes_in
from helpers.runs import metrics, result, runtime
from helpers.sweeps import TINY, file_identity, saved_network

pytestmark = [
    needs_digits,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc"),
]

EPOCHS = 4
KINDS = [
    {"density": 0.02},
    {"density": 0.02, "rewire": "rigl", "rewire_every": 2},
    {"density": 0.05, "offset": None, "method": "snip"},
    {"density": None, "optimizer": "sgd", "lr": 0.05},
]
GRID = [
    Cell(dataclasses.replace(TINY, epochs=EPOCHS, batch_size=30, seed=seed, **kind))
    for seed in range(10)
    for kind in KINDS
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert sweep(GRID, runtime(folder), Local(2, 1)).done == len(GRID)
    return folder


def assert_the_same(runs: Path, others: Path) -> None:
    """Every run whole, and in all that matters equal to the other of its name."""
    found = read(runs)
    assert (len(found.rows), found.broken, found.unfinished) == (len(GRID), [], 0)
    for cell in GRID:
        one, other = cell.run(runs), cell.run(others)
        assert [row["epoch"] for row in metrics(one)] == list(range(EPOCHS))
        assert metrics(one) == metrics(other)
        assert result(one) == result(other)
        assert saved_network(one) == saved_network(other)
    assert not list(runs.rglob("*.tmp"))


class Watch:
    """Looks at the runs all the time: how far they are, and that a result, once there, stays as it is."""

    def __init__(self, runs: Path) -> None:
        self.runs, self.results = runs, dict[str, tuple[int, int]]()
        self.driver: Any = None

    def epochs(self) -> int:
        """Written down so far, in all runs."""
        total = 0
        for cell in GRID:
            run = cell.run(self.runs)
            if cell.id in self.results or run.result.exists():
                assert self.results.setdefault(cell.id, file_identity(run.result)) == file_identity(run.result), (
                    "done twice"
                )
            total += run.metrics.read_bytes().count(b"\n") if run.metrics.exists() else 0
        return total

    def until(self, condition: Callable[[], Any]) -> None:
        end = time.monotonic() + 1200
        while not condition():
            assert self.driver.poll() is None, self.driver.communicate()[1]
            assert time.monotonic() < end, "nothing happens"
            self.epochs()
            time.sleep(0.002)

    def finish(self) -> None:
        while self.driver.poll() is None:
            self.epochs()
            time.sleep(0.05)
        assert self.driver.returncode == 0, self.driver.communicate()[1]
        assert self.epochs() == len(GRID) * EPOCHS


def disturb(watch: Watch, start: Callable[[], Any], kills: dict[str, Callable[[], None]], plan: list[str]) -> None:
    """Sweep to the end, with a kill of each planned kind at random places, in random order."""
    chance = random.Random(0)
    chance.shuffle(plan)
    places = sorted(chance.sample(range(len(GRID) * EPOCHS * 3 // 4), len(plan)))
    watch.driver = start()
    for place, what in zip(places, plan, strict=True):
        watch.until(lambda place=place: watch.epochs() > place)
        if what == "driver":
            watch.driver.kill()
            watch.driver.communicate()
            watch.driver = start()  # at once: what the last one left may still be at work
        else:
            kills[what]()
    watch.finish()


def kill_one_of(watch: Watch, find: Callable[[], list[int]]) -> None:
    def killed() -> bool:
        for pid in random.Random(watch.epochs()).sample(found := sorted(find()), len(found)):
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    watch.until(killed)


# --- processes of this machine --------------------------------------------------------------------------------------


def test_processes(undisturbed, tmp_path):
    watch = Watch(tmp_path / "runs")

    def workers() -> list[int]:
        return [pid for pid, name in processes_in(tmp_path).items() if "spawn_main" in name]

    kills = {"worker": lambda: kill_one_of(watch, workers)}
    plan = ["worker"] * 6 + ["driver"] * 3
    disturb(watch, lambda: drive(GRID, watch.runs, "Local(2, 1, retries=100)"), kills, plan)
    assert_the_same(watch.runs, undisturbed)
    assert not processes_in(tmp_path)


# --- a cluster ------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> Iterator[Any]:
    """A head without processors, for the driver, and two nodes with one each, all on this machine."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs the ray extra")
    settings = {"RAY_memory_monitor_refresh_ms": 0, "RAY_worker_niceness": 0, "RAY_USAGE_STATS_ENABLED": 0}
    settings |= {"RAY_health_check_period_ms": 1000, "RAY_health_check_initial_delay_ms": 1000}
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:  # a short path, for sockets
        settings |= {"RAY_TMPDIR": folder, "TMPDIR": folder, "HOME": tmp_path}
        for name, value in settings.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.chdir(tmp_path)
        from ray.cluster_utils import Cluster

        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        made.folder = Path(folder)
        try:
            for _ in range(2):
                made.add_node(num_cpus=1)
            yield made
        finally:
            made.shutdown()


@pytest.mark.parametrize("shared", [False, True])
def test_a_cluster(shared, undisturbed, cluster, tmp_path):
    watch = Watch(tmp_path / "runs")

    def workers() -> list[int]:
        return [pid for pid, name in processes_in(tmp_path).items() if name.startswith("ray::_perform")]

    def node() -> None:
        cluster.remove_node(min(cluster.worker_nodes, key=lambda node: node.unique_id), allow_graceful=False)
        cluster.add_node(num_cpus=1)

    kills = {"worker": lambda: kill_one_of(watch, workers), "node": node}
    plan = ["worker"] * 4 + ["node"] * 2 + ["driver"] * 2
    engine = f"Ray({cluster.address!r}, retries=100, shared={shared})"
    disturb(watch, lambda: drive(GRID, watch.runs, engine), kills, plan)
    assert_the_same(watch.runs, undisturbed)
    assert not list(cluster.folder.glob("dctps-*"))
