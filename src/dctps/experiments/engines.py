"""Engines: they take cells and do them. `Local` has processes on this machine, each with threads of its own.

An engine tells what happens as events; what came of a cell is in its run folder. Workers belong to their driver: when
it goes, however it goes, they save their state and end. A worker that dies takes at most its cell with it, which is
tried again and, if that goes no better, noted as failed.
"""

import contextlib
import dataclasses
import multiprocessing as mp
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from dctps.config import Runtime
from dctps.experiments.cells import Cell
from dctps.experiments.tasks import FAILED, note, perform
from dctps.runs import Busy, Run
from dctps.train import Interrupted

STARTED, EPOCH, ENDED, BUSY, DIED = "started", "epoch", "ended", "busy", "died"
PATIENCE = 60.0  # seconds that a worker has to save its state


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happened to a cell; `row` has the metrics of an epoch."""

    cell: Cell
    kind: str
    row: dict[str, Any] = dataclasses.field(default_factory=dict)


class Engine(Protocol):
    """Does cells, and tells of each that it was started and how it ended; None from time to time."""

    def run(self, cells: Sequence[Cell], runtime: Runtime) -> Iterator[Event | None]: ...


@dataclasses.dataclass
class Local:
    """Processes of this machine, each with its share of the cores unless `threads` says otherwise."""

    processes: int
    threads: int
    retries: int = 1  # of a cell whose worker died

    def run(self, cells: Sequence[Cell], runtime: Runtime) -> Iterator[Event | None]:
        runtime = dataclasses.replace(runtime, threads=self.threads, quiet=True)
        queue, tries = deque(cells), dict.fromkeys((cell.id for cell in cells), 0)
        workers = [_Worker(runtime) for _ in range(min(self.processes, len(queue)))]
        try:
            while queue or any(worker.cell for worker in workers):
                for worker in workers:
                    if worker.cell is None and queue:
                        worker.give(queue.popleft())
                yield None
                for event in _heard(workers):
                    if event.kind == DIED:
                        tries[event.cell.id] += 1
                        self._again(event.cell, tries[event.cell.id], queue, runtime)
                    yield event
                workers = [worker if worker.alive or worker.cell else _Worker(runtime) for worker in workers]
        finally:
            _dismiss(workers)

    def _again(self, cell: Cell, tries: int, queue: deque[Cell], runtime: Runtime) -> None:
        if tries <= self.retries:
            queue.append(cell)
            return
        with contextlib.suppress(Busy):
            run = Run(runtime.runs / cell.id)
            with run.claimed():
                note(cell, run, FAILED, f"its process was killed {tries} times (out of memory?)")


def default_local(processes: int | None = None, threads: int | None = None) -> Local:
    """All cores: as many processes as there are cores, but no more than eight, as each needs memory of its own."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for name, value in (("processes", processes), ("threads", threads)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    processes = processes or max(1, min(8, cores // (threads or 1)))
    return Local(processes, threads or max(1, cores // processes))


# --- the driver's side of a worker ----------------------------------------------------------------------------------


class _Worker:
    """A process that does one cell after another."""

    def __init__(self, runtime: Runtime) -> None:
        context = mp.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other, runtime), daemon=True)
        self.process.start()
        other.close()
        self.cell: Cell | None = None

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def give(self, cell: Cell) -> None:
        self.cell = cell
        with contextlib.suppress(OSError):  # it has died; `hear` will say so
            self.pipe.send(cell)

    def hear(self) -> list[Event]:
        """What it said since the last time, or that it died."""
        events = []
        try:
            while self.pipe.poll():
                events.append(self.pipe.recv())
        except (EOFError, OSError):
            self.process.join(PATIENCE)
            events += [Event(self.cell, DIED)] if self.cell is not None else []
        if any(event.kind in (ENDED, BUSY, DIED) for event in events):
            self.cell = None
        return events


def _heard(workers: Sequence[_Worker]) -> list[Event]:
    wait([worker.pipe for worker in workers if worker.cell], timeout=0.5)
    return [event for worker in workers if worker.cell for event in worker.hear()]


def _dismiss(workers: Sequence[_Worker]) -> None:
    """End all workers; those at work save their state first."""
    for worker in workers:
        if worker.alive:
            worker.process.terminate()
    until = time.monotonic() + PATIENCE
    for worker in workers:
        worker.process.join(max(0.0, until - time.monotonic()))
        if worker.alive:
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()


# --- the worker's side ----------------------------------------------------------------------------------------------


def _work(pipe: Connection, runtime: Runtime) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver too, which then ends us in order
    threading.Thread(target=_end_with_driver, daemon=True).start()
    with contextlib.suppress(EOFError, OSError, Interrupted):
        while True:
            cell: Cell = pipe.recv()
            pipe.send(Event(cell, STARTED))
            try:
                perform(cell, runtime, _teller(pipe, cell))
            except Busy:
                pipe.send(Event(cell, BUSY))
            else:
                pipe.send(Event(cell, ENDED))


def _teller(pipe: Connection, cell: Cell) -> Any:
    def tell(row: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the driver has gone; the run still saves its state
            pipe.send(Event(cell, EPOCH, row))

    return tell


def _end_with_driver() -> None:
    driver = mp.parent_process()
    if driver is not None:
        wait([driver.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PATIENCE)
        os._exit(1)
