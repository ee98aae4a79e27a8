"""The worker processes of the local engine: they perform one cell after another and say how it went.

Workers belong to their driver: when it ends, however it ends, they save their state and end too.
"""

import contextlib
import multiprocessing as mp
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from dctps.experiments.cells import Cell
from dctps.experiments.events import BUSY, DIED, ENDED, EPOCH, OVER, STARTED, Event
from dctps.experiments.perform import perform
from dctps.train.runs import Busy, RunError
from dctps.train.settings import Runtime
from dctps.train.signals import Interrupted

PATIENCE = 60.0  # seconds that a worker has to save its state


# --- the driver's side ----------------------------------------------------------------------------------------------


class Workers:
    """All worker processes. `RunError` if more than `patience` in a row end before they are ready."""

    def __init__(self, runtime: Runtime, patience: int) -> None:
        self.runtime, self.patience, self.failures = runtime, patience, 0
        self.all: list[Worker] = []

    @property
    def at_work(self) -> int:
        """How many workers have a cell."""
        return sum(worker.cell is not None for worker in self.all)

    def idle(self) -> list["Worker"]:
        """The workers that are ready for a cell."""
        return [worker for worker in self.all if worker.ready and worker.cell is None]

    def start(self, number: int) -> None:
        """Start workers until there are `number`."""
        self.all += [Worker(self.runtime) for _ in range(number - len(self.all))]

    def hear(self) -> list[Event]:
        """What happened since the last call; waits a moment if nothing did."""
        wait([worker.pipe for worker in self.all], timeout=0.5)
        events = [event for worker in self.all for event in self._hear(worker)]
        self.all = [worker for worker in self.all if not worker.gone]
        return events

    def _hear(self, worker: "Worker") -> list[Event]:
        fresh, events = not worker.ready, worker.hear()
        if fresh and worker.ready:
            self.failures = 0
        elif fresh and worker.gone:
            self.failures += 1
        if self.failures > self.patience:
            raise RunError(
                f"processes do not start: {self.failures} in a row ended before they were ready, the last one of "
                f"{cause_of_death(worker.process.exitcode)}; standard error has more. "
                'A script that starts a sweep must do so under if __name__ == "__main__"'
            )
        return events

    def dismiss(self) -> None:
        """End all workers; those at work save their state first."""
        for worker in self.all:
            worker.process.terminate()
            worker.pipe.close()  # a training in its last step finishes instead, and would wait for another cell
        until = time.monotonic() + PATIENCE
        for worker in self.all:
            worker.process.join(max(0.0, until - time.monotonic()))
            worker.process.kill()
            worker.process.join()


class Worker:
    """A process that performs one cell after another."""

    def __init__(self, runtime: Runtime) -> None:
        context = mp.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_work, args=(other, runtime), daemon=True)
        resource_tracker.ensure_running()  # it would let the signal through if it were started below
        with _blocked(signal.SIGINT):  # Ctrl-C would end the process with a traceback in the middle of its imports
            self.process.start()
        other.close()
        self.ready = self.gone = False
        self.cell: Cell | None = None

    def give(self, cell: Cell) -> Event:
        """Hand a cell to the worker."""
        self.cell = cell
        with contextlib.suppress(OSError):  # the worker has died; `hear` will say so
            self.pipe.send(cell)
        return Event(cell, STARTED)

    def hear(self) -> list[Event]:
        """What the worker said since the last call, and whether it died; an error that it sent is raised here."""
        events = []
        try:
            while self.pipe.poll():
                events += self._events_of(self.pipe.recv())
                self.ready = True
        except (EOFError, OSError):
            self.gone = True
            self.process.join(PATIENCE)
            events += self._events_of((DIED, {"exit code": self.process.exitcode}))
        return events

    def _events_of(self, message: Any) -> list[Event]:
        if isinstance(message, Exception):
            raise RunError(str(message)) from message
        if self.cell is None:  # the worker is ready, or died without a cell
            return []
        event = Event(self.cell, *message)
        if event.kind in OVER:
            self.cell = None
        return [event]


def cause_of_death(exit_code: int | None) -> str:
    """Why a process ended, in words."""
    if exit_code is None or exit_code >= 0:
        return f"an error (exit code {exit_code})"
    return f"signal {-exit_code}" + (" (out of memory?)" if exit_code == -signal.SIGKILL else "")


@contextlib.contextmanager
def _blocked(number: int) -> Iterator[None]:
    """Keep a signal waiting, here and in processes that are started meanwhile, until they unblock it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- the worker's side ----------------------------------------------------------------------------------------------


def _work(pipe: Connection, runtime: Runtime) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver too, which then ends its workers in order
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_driver, daemon=True).start()
    with contextlib.suppress(EOFError, OSError, Interrupted, KeyboardInterrupt):
        pipe.send(())
        while True:
            cell: Cell = pipe.recv()
            pipe.send(_perform(cell, runtime, pipe))


def _perform(cell: Cell, runtime: Runtime, pipe: Connection) -> Any:
    """Perform a cell; returns how it ended, or the error if not even that could be noted in its folder."""
    try:
        perform(cell, runtime, _epoch_sender(pipe))
    except Busy:
        return (BUSY,)
    except RunError as error:
        return error
    return (ENDED,)


def _epoch_sender(pipe: Connection) -> Callable[[dict[str, Any]], None]:
    def send(row: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the driver has ended; the run still saves its state
            pipe.send((EPOCH, row))

    return send


def _end_with_driver() -> None:
    driver = mp.parent_process()
    if driver is not None:
        wait([driver.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PATIENCE)
        os._exit(1)
