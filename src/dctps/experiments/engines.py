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
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from dctps.experiments.cells import Cell
from dctps.experiments.perform import claimed, note_failure, perform
from dctps.experiments.status import FAILED
from dctps.train.runs import Busy, RunError
from dctps.train.settings import Runtime
from dctps.train.signals import Interrupted

STARTED, EPOCH, ENDED, BUSY, DIED = "started", "epoch", "ended", "busy", "died"
PATIENCE = 60.0  # seconds that a worker has to save its state


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happened to a cell; `row` has the metrics of an epoch, or what a worker died of."""

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
        queue, deaths, workers = deque(cells), Counter[str](), _Workers(runtime, self.processes + self.retries)
        try:
            while queue or workers.at_work:
                workers.start(min(self.processes, len(queue) + workers.at_work))
                for worker in workers.idle()[: len(queue)]:
                    yield worker.give(queue.popleft())
                yield None
                for event in workers.hear():
                    if event.kind == DIED:
                        deaths[event.cell.id] += 1
                        self._again(event, deaths[event.cell.id], queue, runtime)
                    yield event
        finally:
            workers.dismiss()

    def _again(self, death: Event, deaths: int, queue: deque[Cell], runtime: Runtime) -> None:
        if deaths <= self.retries:
            queue.append(death.cell)
            return
        with contextlib.suppress(Busy), claimed(death.cell, runtime.runs) as run:
            if run is not None:  # its last act may have been to finish
                cause = _cause(death.row["exit code"])
                note_failure(death.cell, run, FAILED, f"its process died {deaths} times, the last time of {cause}")


def default_local(processes: int | None = None, threads: int | None = None) -> Local:
    """All cores: as many processes as there are cores, but no more than eight, as each needs memory of its own."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for name, value in (("processes", processes), ("threads", threads)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    processes = processes or max(1, min(8, cores // (threads or 1)))
    return Local(processes, threads or max(1, cores // processes))


# --- the driver's side of the workers -------------------------------------------------------------------------------


class _Workers:
    """The processes that there are. If more than `patience` in a row end before they are ready, none ever will."""

    def __init__(self, runtime: Runtime, patience: int) -> None:
        self.runtime, self.patience, self.failures = runtime, patience, 0
        self.all: list[_Worker] = []

    @property
    def at_work(self) -> int:
        return sum(worker.cell is not None for worker in self.all)

    def idle(self) -> list["_Worker"]:
        return [worker for worker in self.all if worker.ready and worker.cell is None]

    def start(self, number: int) -> None:
        """As many as are missing from `number`."""
        self.all += [_Worker(self.runtime) for _ in range(number - len(self.all))]

    def hear(self) -> list[Event]:
        """What happened since the last time; waits a moment if nothing did."""
        wait([worker.pipe for worker in self.all], timeout=0.5)
        events = [event for worker in self.all for event in self._hear(worker)]
        self.all = [worker for worker in self.all if not worker.gone]
        return events

    def _hear(self, worker: "_Worker") -> list[Event]:
        fresh, events = not worker.ready, worker.hear()
        if fresh and worker.ready:
            self.failures = 0
        elif fresh and worker.gone:
            self.failures += 1
        if self.failures > self.patience:
            raise RunError(
                f"processes do not start: {self.failures} in a row ended before they were ready, the last one of "
                f"{_cause(worker.process.exitcode)}; standard error has more. "
                'A script that starts a sweep must do so under if __name__ == "__main__"'
            )
        return events

    def dismiss(self) -> None:
        """End all; those at work save their state first."""
        for worker in self.all:
            worker.process.terminate()
            worker.pipe.close()  # a training in its last step finishes instead, and would wait for more to do
        until = time.monotonic() + PATIENCE
        for worker in self.all:
            worker.process.join(max(0.0, until - time.monotonic()))
            worker.process.kill()
            worker.process.join()


class _Worker:
    """A process that does one cell after another."""

    def __init__(self, runtime: Runtime) -> None:
        context = mp.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other, runtime), daemon=True)
        resource_tracker.ensure_running()  # starting it would let the signal through
        with _held_back(signal.SIGINT):  # or Ctrl-C ends it with a traceback, in the middle of its imports
            self.process.start()
        other.close()
        self.ready = self.gone = False
        self.cell: Cell | None = None

    def give(self, cell: Cell) -> Event:
        self.cell = cell
        with contextlib.suppress(OSError):  # it has died; `hear` will say so
            self.pipe.send(cell)
        return Event(cell, STARTED)

    def hear(self) -> list[Event]:
        """What it said since the last time, and that it died if it did; an error of its own is raised here."""
        events = []
        try:
            while self.pipe.poll():
                events += self._told(self.pipe.recv())
                self.ready = True
        except (EOFError, OSError):
            self.gone = True
            self.process.join(PATIENCE)
            events += self._told((DIED, {"exit code": self.process.exitcode}))
        return events

    def _told(self, said: Any) -> list[Event]:
        if isinstance(said, Exception):
            raise RunError(str(said)) from said
        if self.cell is None:  # it is ready, or died with nothing to do
            return []
        event = Event(self.cell, *said)
        if event.kind in (ENDED, BUSY, DIED):
            self.cell = None
        return [event]


def _cause(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"an error (exit code {exit_code})"
    return f"signal {-exit_code}" + (" (out of memory?)" if exit_code == -signal.SIGKILL else "")


@contextlib.contextmanager
def _held_back(number: int) -> Iterator[None]:
    """A signal waits, here and in a process that is started meanwhile until that says otherwise."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- the worker's side ----------------------------------------------------------------------------------------------


def _work(pipe: Connection, runtime: Runtime) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver too, which then ends us in order
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_driver, daemon=True).start()
    with contextlib.suppress(EOFError, OSError, Interrupted, KeyboardInterrupt):
        pipe.send(())
        while True:
            cell: Cell = pipe.recv()
            pipe.send(_done(cell, runtime, pipe))


def _done(cell: Cell, runtime: Runtime, pipe: Connection) -> Any:
    """How a cell ended; the error, if it could not even be noted."""
    try:
        perform(cell, runtime, _teller(pipe))
    except Busy:
        return (BUSY,)
    except RunError as error:
        return error
    return (ENDED,)


def _teller(pipe: Connection) -> Callable[[dict[str, Any]], None]:
    def tell(row: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the driver has gone; the run still saves its state
            pipe.send((EPOCH, row))

    return tell


def _end_with_driver() -> None:
    driver = mp.parent_process()
    if driver is not None:
        wait([driver.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PATIENCE)
        os._exit(1)
