"""The engine of a Ray cluster: one Ray task per cell, which Ray tries again when its worker or node dies.

Nodes need this package and its data: each loads the data by itself, from `Runtime.data_root` or the $DCTPS_DATA that
the node was started with. Networks and data of users must be importable there.

shared=False: nodes see nothing of the driver's disk. The driver claims a cell, a worker trains it in a temporary folder
of its node, and the files of the result are sent back. A cell whose worker died starts from the beginning.

shared=True: `Runtime.runs` is a folder that all nodes see under one path. Workers claim and train there, and a cell
goes on from its last checkpoint.
"""

import contextlib
import dataclasses
import math
import os
import re
import tempfile
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dctps.base.files import write_atomically
from dctps.experiments.cells import Cell
from dctps.experiments.events import BUSY, DIED, ENDED, STARTED, Event
from dctps.experiments.perform import claimed, is_over, note_failure, perform
from dctps.experiments.ray_cluster import connected, temporary_folder
from dctps.experiments.status import FAILED
from dctps.experiments.workers import PATIENCE
from dctps.train.runs import Busy, Run, RunError
from dctps.train.settings import Runtime
from dctps.train.signals import Interrupted

Files = dict[str, bytes]
SENT = ("best.safetensors", "metrics.jsonl", "failure.json", "result.json")  # in this order: the result seals a run
AHEAD = 2  # cells that wait in the cluster for a free place; more would keep them from other drivers
_COLOURS = re.compile("\x1b\\[[0-9;]*m")


@dataclasses.dataclass
class Ray:
    """A running cluster (`address`), or one of this machine alone for as long as it is needed (None)."""

    address: str | None = None
    cpus: float = 1  # CPUs of each cell
    gpus: float = 0  # GPUs of each cell
    retries: int = 3  # how often a cell is tried again after its worker or node died
    shared: bool = False
    threads: int | None = None  # threads of torch; None takes as many as a cell has CPUs

    def run(self, cells: Sequence[Cell], runtime: Runtime) -> Iterator[Event | None]:
        """Perform all cells."""
        runtime = self._worker_runtime(runtime)
        with connected(self.address) as (ray, scratch):
            self._check_capacity(ray)
            submitted = _Submitted(ray, self._remote_function(ray), runtime, self.shared, scratch)
            queue = deque(cells)
            try:
                while queue or submitted.cells:
                    while queue and len(submitted.cells) < self._capacity(ray) + AHEAD:
                        yield from submitted.submit(queue.popleft())
                    yield None
                    yield from submitted.collect()
            finally:
                submitted.cancel()

    def _worker_runtime(self, runtime: Runtime) -> Runtime:
        """The runtime of a worker, which may have another current folder, and has a GPU only if one was asked for."""
        root = None if runtime.data_root is None else runtime.data_root.absolute()
        device = "cpu" if runtime.device == "auto" and not self.gpus else runtime.device
        threads = self.threads or max(1, int(self.cpus))
        return dataclasses.replace(
            runtime, runs=runtime.runs.absolute(), data_root=root, device=device, threads=threads, quiet=True
        )

    def _remote_function(self, ray: Any) -> Any:
        function = _perform_in_place if self.shared else _perform_apart
        return ray.remote(function).options(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=self.retries)

    def _capacity(self, ray: Any) -> int:
        """How many cells the cluster can perform at once, as it is now."""
        return sum(self._node_capacity(node) for node in ray.nodes() if node["Alive"])

    def _node_capacity(self, node: dict[str, Any]) -> int:
        asked = {"CPU": self.cpus, "GPU": self.gpus}
        return min((math.floor(node["Resources"].get(kind, 0) / n) for kind, n in asked.items() if n), default=1)

    def _check_capacity(self, ray: Any) -> None:
        if self._capacity(ray):
            return
        asked = f"{self.cpus:g} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")
        if self.address is None:
            raise RunError(f"a run asks for {asked}, which this machine does not have")
        warnings.warn(f"a run asks for {asked}; no node of the cluster has them yet, waiting for one", stacklevel=2)


# --- the driver's side ----------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _SubmittedCell:
    """A cell in the cluster, with the claim on it if that is the driver's."""

    cell: Cell
    run: Run
    claim: contextlib.ExitStack


class _Submitted:
    """The cells in the cluster, by the references that Ray gives them."""

    def __init__(self, ray: Any, remote: Any, runtime: Runtime, shared: bool, scratch: str | None) -> None:
        self.ray, self.remote, self.runtime, self.shared, self.scratch = ray, remote, runtime, shared, scratch
        self.cells: dict[Any, _SubmittedCell] = {}

    def submit(self, cell: Cell) -> Iterator[Event]:
        """Hand a cell to the cluster, unless it is over or another process has it."""
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
            reference = self.remote.remote(cell, self.runtime, self.scratch)
            self.cells[reference] = _SubmittedCell(cell, cell.run(self.runtime.runs), claim.pop_all())

    def collect(self) -> Iterator[Event]:
        """How the next cell ended, if one ends within a moment."""
        ready, _ = self.ray.wait(list(self.cells), timeout=0.5) if self.cells else ([], [])
        for reference in ready:
            submitted = self.cells.pop(reference)
            with submitted.claim:
                kind = self._outcome(reference, submitted)
            yield Event(submitted.cell, kind)

    def _outcome(self, reference: Any, submitted: _SubmittedCell) -> str:
        try:
            kind, files = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            self._note_failure(submitted, error)
            return DIED
        if not self.shared:
            _write_files(submitted, files)
        return str(kind)

    def _note_failure(self, submitted: _SubmittedCell, error: Exception) -> None:
        text = _COLOURS.sub("", str(error)).strip() or type(error).__name__
        line = text.splitlines()[-1 if isinstance(error, self.ray.exceptions.RayTaskError) else 0]
        with contextlib.suppress(Busy):
            again = claimed(submitted.cell, self.runtime.runs) if self.shared else contextlib.nullcontext(submitted.run)
            with again as run:
                if run is not None:  # the worker may have finished the cell before it died
                    note_failure(submitted.cell, run, FAILED, f"its Ray task failed for good: {line}", text)

    def cancel(self) -> None:
        """End all cells in the cluster; their state is saved first where it can be."""
        for reference in self.cells:
            self.ray.cancel(reference)
        if self.cells:
            _, late = self.ray.wait(list(self.cells), num_returns=len(self.cells), timeout=PATIENCE)
            for reference in late:
                self.ray.cancel(reference, force=True)
        for submitted in self.cells.values():
            submitted.claim.close()
        self.cells.clear()


def _write_files(submitted: _SubmittedCell, files: Files) -> None:
    """Write what a worker sent into the run folder, the result last."""
    run = submitted.run
    try:
        for leftover in (run.last, run.rewind):  # an earlier attempt on this machine would contradict this result
            leftover.unlink(missing_ok=True)
        for name in SENT:
            if name in files:
                _write(run.folder / name, files[name])
    except OSError as error:
        raise RunError(f"cannot write into {run.folder}: {error.strerror or error}") from error
    if not is_over(run):
        reason = f"only {', '.join(files) or 'nothing'} came back from its Ray task"
        note_failure(submitted.cell, run, FAILED, reason)


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda file: file.write_bytes(content))


# --- a worker's side ------------------------------------------------------------------------------------------------


def _perform_in_place(cell: Cell, runtime: Runtime, scratch: str | None) -> tuple[str, Files]:
    """Perform a cell in the shared folder of runs."""
    try:
        with _exit_if_interrupted():
            perform(cell, runtime)
    except Busy:
        return BUSY, {}
    return ENDED, {}


def _perform_apart(cell: Cell, runtime: Runtime, scratch: str | None) -> tuple[str, Files]:
    """Perform a cell in a temporary folder; returns the files of the run."""
    with _exit_if_interrupted(), temporary_folder(Path(scratch or tempfile.gettempdir()), "dctps-run-") as runs:
        perform(cell, dataclasses.replace(runtime, runs=runs))
        found = [cell.run(runs).folder / name for name in SENT]
        return ENDED, {file.name: file.read_bytes() for file in found if file.exists()}


@contextlib.contextmanager
def _exit_if_interrupted() -> Iterator[None]:
    """End the process if a signal ended the run: Ray then tries the cell again, unless it was cancelled."""
    try:
        yield
    except Interrupted:
        os._exit(1)
