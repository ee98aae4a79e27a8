"""Engines take cells and perform them. `Local` has processes on this machine, each with threads of its own.

An engine says what happens as events; the results of a cell are in its run folder. A worker that dies takes at most its
cell with it, which is tried again and, if that fails too, noted as failed.
"""

import contextlib
import dataclasses
import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from dctps.experiments.cells import Cell
from dctps.experiments.events import DIED, Event
from dctps.experiments.perform import claimed, note_failure
from dctps.experiments.status import FAILED
from dctps.experiments.workers import Workers, cause_of_death
from dctps.train.runs import Busy
from dctps.train.settings import Runtime


class Engine(Protocol):
    """Performs cells, and says of each that it was started and how it ended; says None from time to time."""

    def run(self, cells: Sequence[Cell], runtime: Runtime) -> Iterator[Event | None]: ...


@dataclasses.dataclass
class Local:
    """An engine of `processes` processes on this machine, each with `threads` threads."""

    processes: int
    threads: int
    retries: int = 1  # how often a cell is tried again after its worker died

    def run(self, cells: Sequence[Cell], runtime: Runtime) -> Iterator[Event | None]:
        """Perform all cells."""
        runtime = dataclasses.replace(runtime, threads=self.threads, quiet=True)
        queue, deaths, workers = deque(cells), Counter[str](), Workers(runtime, self.processes + self.retries)
        try:
            while queue or workers.at_work:
                workers.start(min(self.processes, len(queue) + workers.at_work))
                for worker in workers.idle()[: len(queue)]:
                    yield worker.give(queue.popleft())
                yield None
                for event in workers.hear():
                    if event.kind == DIED:
                        deaths[event.cell.id] += 1
                        self._try_again(event, deaths[event.cell.id], queue, runtime)
                    yield event
        finally:
            workers.dismiss()

    def _try_again(self, death: Event, deaths: int, queue: deque[Cell], runtime: Runtime) -> None:
        """Put the cell of a worker that died back into the queue, or note that it failed."""
        if deaths <= self.retries:
            queue.append(death.cell)
            return
        with contextlib.suppress(Busy), claimed(death.cell, runtime.runs) as run:
            if run is not None:  # the worker may have finished the cell before it died
                cause = cause_of_death(death.row["exit code"])
                note_failure(death.cell, run, FAILED, f"its process died {deaths} times, the last time of {cause}")


def default_local(processes: int | None = None, threads: int | None = None) -> Local:
    """The local engine with all cores: a process for each, but at most eight, as each needs memory of its own."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for name, value in (("processes", processes), ("threads", threads)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    processes = processes or max(1, min(8, cores // (threads or 1)))
    return Local(processes, threads or max(1, cores // processes))
