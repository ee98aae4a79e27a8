"""The engine of a Ray cluster: one Ray task per cell, which Ray tries again when its worker or node dies.

Nodes need this package and its data: each loads the data by itself, from `Runtime.data_root` or the $DCTPS_DATA that
the node was started with. Networks and data of a user's own must be importable there.

shared=False: nodes see nothing of the driver's disk. The driver claims a cell, a worker trains it in a temporary folder
of its node, and what belongs to a result is sent back. A cell whose worker died starts from the beginning.

shared=True: `Runtime.runs` is a folder that all nodes see under one path. Workers claim and train there, and a cell
goes on from its last checkpoint.
"""

import contextlib
import dataclasses
import fcntl
import math
import os
import re
import secrets
import shutil
import signal
import tempfile
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dctps.base.files import write_atomically
from dctps.experiments.cells import Cell
from dctps.experiments.engines import BUSY, DIED, ENDED, PATIENCE, STARTED, Event
from dctps.experiments.perform import claimed, is_over, note_failure, perform
from dctps.experiments.status import FAILED
from dctps.train.runs import Busy, Run, RunError
from dctps.train.settings import Runtime
from dctps.train.signals import Interrupted

Files = dict[str, bytes]
SENT = ("best.safetensors", "metrics.jsonl", "failure.json", "result.json")  # in this order: the result seals a run
AHEAD = 2  # cells that wait in the cluster for a free place; more would keep them from other drivers
_COLOURS = re.compile("\x1b\\[[0-9;]*m")
SHORT = 40  # letters of a path: Ray's sockets are below it, and their paths have at most 107


@dataclasses.dataclass
class Ray:
    """A cluster that is there (`address`), or one of this machine alone for as long as it is needed (None)."""

    address: str | None = None
    cpus: float = 1  # of each cell
    gpus: float = 0
    retries: int = 3  # of a cell whose worker or node died
    shared: bool = False
    threads: int | None = None  # of torch; None: the CPUs of a cell

    def run(self, cells: Sequence[Cell], runtime: Runtime) -> Iterator[Event | None]:
        runtime = self._there(runtime)
        with _connected(self.address) as (ray, scratch):
            self._check_room(ray)
            flights = _Flights(ray, self._task(ray), runtime, self.shared, scratch)
            queue = deque(cells)
            try:
                while queue or flights.aloft:
                    while queue and len(flights.aloft) < self._room(ray) + AHEAD:
                        yield from flights.launch(queue.popleft())
                    yield None
                    yield from flights.land()
            finally:
                flights.recall()

    def _there(self, runtime: Runtime) -> Runtime:
        """For a worker, which may have another current folder, and has a GPU only if it was asked for."""
        root = None if runtime.data_root is None else runtime.data_root.absolute()
        device = "cpu" if runtime.device == "auto" and not self.gpus else runtime.device
        threads = self.threads or max(1, int(self.cpus))
        return dataclasses.replace(
            runtime, runs=runtime.runs.absolute(), data_root=root, device=device, threads=threads, quiet=True
        )

    def _task(self, ray: Any) -> Any:
        function = _perform_in_place if self.shared else _perform_apart
        return ray.remote(function).options(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=self.retries)

    def _room(self, ray: Any) -> int:
        """Cells that the cluster can do at once, as it is now."""
        return sum(self._fitting(node) for node in ray.nodes() if node["Alive"])

    def _fitting(self, node: dict[str, Any]) -> int:
        asked = {"CPU": self.cpus, "GPU": self.gpus}
        return min((math.floor(node["Resources"].get(kind, 0) / n) for kind, n in asked.items() if n), default=1)

    def _check_room(self, ray: Any) -> None:
        if self._room(ray):
            return
        asked = f"{self.cpus:g} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")
        if self.address is None:
            raise RunError(f"a run asks for {asked}, which this machine does not have")
        warnings.warn(f"a run asks for {asked}; no node of the cluster has them yet, waiting for one", stacklevel=2)


# --- the driver's side ----------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Flight:
    """A cell on its way, with the claim on it if that is the driver's."""

    cell: Cell
    run: Run
    claim: contextlib.ExitStack


class _Flights:
    """The cells in the cluster."""

    def __init__(self, ray: Any, task: Any, runtime: Runtime, shared: bool, scratch: str | None) -> None:
        self.ray, self.task, self.runtime, self.shared, self.scratch = ray, task, runtime, shared, scratch
        self.aloft: dict[Any, _Flight] = {}

    def launch(self, cell: Cell) -> Iterator[Event]:
        yield Event(cell, STARTED)
        with contextlib.ExitStack() as claim:
            if not self.shared:
                try:
                    if claim.enter_context(claimed(cell, self.runtime.runs)) is None:
                        yield Event(cell, ENDED)
                        return
                except Busy:
                    yield Event(cell, BUSY)
                    return
            reference = self.task.remote(cell, self.runtime, self.scratch)
            self.aloft[reference] = _Flight(cell, cell.run(self.runtime.runs), claim.pop_all())

    def land(self) -> Iterator[Event]:
        """How the next cell ended, if it does in a moment."""
        landed, _ = self.ray.wait(list(self.aloft), timeout=0.5) if self.aloft else ([], [])
        for reference in landed:
            flight = self.aloft.pop(reference)
            with flight.claim:
                kind = self._outcome(reference, flight)
            yield Event(flight.cell, kind)

    def _outcome(self, reference: Any, flight: _Flight) -> str:
        try:
            kind, files = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            self._give_up(flight, error)
            return DIED
        if not self.shared:
            _bring_home(flight, files)
        return str(kind)

    def _give_up(self, flight: _Flight, error: Exception) -> None:
        text = _COLOURS.sub("", str(error)).strip() or type(error).__name__
        line = text.splitlines()[-1 if isinstance(error, self.ray.exceptions.RayTaskError) else 0]
        with contextlib.suppress(Busy):
            again = claimed(flight.cell, self.runtime.runs) if self.shared else contextlib.nullcontext(flight.run)
            with again as run:
                if run is not None:  # its last act may have been to finish
                    note_failure(flight.cell, run, FAILED, f"its Ray task failed for good: {line}", text)

    def recall(self) -> None:
        """End what is under way; where there is something to save it is saved first."""
        for reference in self.aloft:
            self.ray.cancel(reference)
        if self.aloft:
            _, late = self.ray.wait(list(self.aloft), num_returns=len(self.aloft), timeout=PATIENCE)
            for reference in late:
                self.ray.cancel(reference, force=True)
        for flight in self.aloft.values():
            flight.claim.close()
        self.aloft.clear()


def _bring_home(flight: _Flight, files: Files) -> None:
    """Write what a worker sent into the run folder, the result last."""
    run = flight.run
    try:
        for leftover in (run.last, run.rewind):  # of an earlier attempt on this machine, at odds with this result
            leftover.unlink(missing_ok=True)
        for name in SENT:
            if name in files:
                _write(run.folder / name, files[name])
    except OSError as error:
        raise RunError(f"cannot write into {run.folder}: {error.strerror or error}") from error
    if not is_over(run):
        note_failure(flight.cell, run, FAILED, f"only {', '.join(files) or 'nothing'} came back from its Ray task")


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda file: file.write_bytes(content))


# --- a worker's side ------------------------------------------------------------------------------------------------


def _perform_in_place(cell: Cell, runtime: Runtime, scratch: str | None) -> tuple[str, Files]:
    try:
        with _ending_in_order():
            perform(cell, runtime)
    except Busy:
        return BUSY, {}
    return ENDED, {}


def _perform_apart(cell: Cell, runtime: Runtime, scratch: str | None) -> tuple[str, Files]:
    """As `perform`, but in a temporary folder; the files of the run."""
    with _ending_in_order(), _temporary(Path(scratch or tempfile.gettempdir()), "dctps-run-") as runs:
        perform(cell, dataclasses.replace(runtime, runs=runs))
        found = [cell.run(runs).folder / name for name in SENT]
        return ENDED, {file.name: file.read_bytes() for file in found if file.exists()}


@contextlib.contextmanager
def _ending_in_order() -> Iterator[None]:
    """A worker that a signal ended leaves, so that Ray knows: it tries the cell again unless it was called off."""
    try:
        yield
    except Interrupted:
        os._exit(1)


# --- the cluster ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[tuple[Any, str | None]]:
    """Ray, and a folder for the workers' files if they are to be in a certain one."""
    ray = _ray()
    if ray.is_initialized():  # by the caller, who will also end it
        yield ray, None
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "CRITICAL"}
    with contextlib.ExitStack() as stack:
        scratch = None if address is not None else str(stack.enter_context(_temporary(_short_folder(), "dctps-ray-")))
        if scratch is not None:
            _set_token()
            options |= {"include_dashboard": False, "_temp_dir": scratch}
        _init(ray, address or "local", options)
        stack.callback(ray.shutdown)
        yield ray, scratch


def _init(ray: Any, address: str, options: dict[str, Any]) -> None:
    try:
        with _own_signals():
            ray.init(address=address, **options)
    except Exception as error:  # of many kinds, plain Exception among them
        what = "start a Ray cluster" if address == "local" else f"join the Ray cluster at {address}"
        raise RunError(f"cannot {what}: {str(error).splitlines()[0]}") from error


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")  # all that Ray would print on our terminal
    try:
        import ray
        import ray.exceptions
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("sweeps on a cluster need Ray; install it with: pip install 'dctps[ray]'") from error
    return ray


def _set_token() -> None:
    """A password of this process for its cluster; Ray would keep one below the home folder."""
    if "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself; a sweep has its own way to end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _short_folder() -> Path:
    usual = Path(tempfile.gettempdir())
    return usual if len(str(usual)) <= SHORT else Path("/tmp")


@contextlib.contextmanager
def _temporary(parent: Path, prefix: str) -> Iterator[Path]:
    """A folder for a while. What killed processes have left of theirs goes, too: nobody holds its lock any more."""
    for orphan in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError), _lock(orphan, fcntl.LOCK_NB):
            shutil.rmtree(orphan, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        folder = _fresh(parent, prefix, stack)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def _fresh(parent: Path, prefix: str, stack: contextlib.ExitStack) -> Path:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as lock:
            lock.enter_context(_lock(folder))
            if folder.exists():  # nobody took it for an orphan before it had its lock
                stack.push(lock.pop_all())
                return folder


@contextlib.contextmanager
def _lock(folder: Path, how: int = 0) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | how)
        yield
    finally:
        os.close(handle)
