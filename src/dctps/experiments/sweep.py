"""A sweep: an engine performs those cells of a grid that are not over yet.

The folder of runs is all the state there is. Starting again performs what is missing and nothing twice. Several drivers
may work on one folder; each leaves the cells alone that another has.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence

from dctps.experiments.cells import Cell, distinct
from dctps.experiments.engines import Engine
from dctps.experiments.events import BUSY, Event
from dctps.experiments.perform import is_over
from dctps.experiments.results import Failure, failure_of
from dctps.experiments.status import COLLAPSED, FAILED
from dctps.train.runs import Busy, Run, RunError
from dctps.train.settings import Runtime
from dctps.train.signals import Interrupted, Signals

POLL = 2.0  # seconds until a driver looks again at the cells that another driver has


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of the cells of a grid."""

    cells: list[Cell]
    failures: list[Failure]  # collapses among them

    @property
    def collapsed(self) -> int:
        """How many pruning methods collapsed."""
        return sum(failure.status == COLLAPSED for failure in self.failures)

    @property
    def failed(self) -> list[Failure]:
        """The runs that an error ended."""
        return [failure for failure in self.failures if failure.status == FAILED]

    @property
    def done(self) -> int:
        """How many runs have a result."""
        return len(self.cells) - len(self.failures)


def sweep(
    cells: Sequence[Cell],
    runtime: Runtime,
    engine: Engine,
    show: Callable[[Event | None], object] = lambda event: None,
    *,
    retry: bool = False,
) -> Outcome:
    """Perform the cells that are not over; `Interrupted` after a signal, when running cells have saved their state.

    show: called with each event, and with None from time to time.
    retry: also perform the cells that failed before (a collapse is a result and stays).
    """
    cells = distinct(cells)
    if retry:
        _forget_failures(cells, runtime)
    with Signals() as signals:
        while missing := _missing(cells, runtime):
            if BUSY in _round(missing, runtime, engine, show, signals):
                _await_others(_missing(cells, runtime), runtime, signals, show)
    failures = [failure_of(cell.run(runtime.runs)) for cell in cells]
    return Outcome(cells, [failure for failure in failures if failure is not None])


def _missing(cells: Sequence[Cell], runtime: Runtime) -> list[Cell]:
    return [cell for cell in cells if not is_over(cell.run(runtime.runs))]


def _round(
    missing: Sequence[Cell],
    runtime: Runtime,
    engine: Engine,
    show: Callable[[Event | None], object],
    signals: Signals,
) -> set[str]:
    """Let the engine perform the missing cells once; returns the kinds of their last events."""
    last, events = dict[str, str](), engine.run(missing, runtime)
    try:
        for event in events:
            show(event)
            if event is not None:
                last[event.cell.id] = event.kind
            _check(signals)
    finally:
        events.close()  # type: ignore[attr-defined]
    return set(last.values())


def _await_others(
    missing: Sequence[Cell], runtime: Runtime, signals: Signals, show: Callable[[Event | None], object]
) -> None:
    """Wait until one of the cells is over or free; an engine that looked for itself would start processes each time."""
    busy = bool(missing)
    while busy:
        _pause(signals, show)
        busy = all(_is_busy(cell.run(runtime.runs)) for cell in missing)


def _is_busy(run: Run) -> bool:
    if is_over(run):
        return False
    try:
        with run.claimed(), run.locked():  # `dctps train` takes the lock alone, without a claim
            return False
    except RunError as error:
        return isinstance(error, Busy)  # the engine will meet any other error too


def _pause(signals: Signals, show: Callable[[Event | None], object]) -> None:
    until = time.monotonic() + POLL
    while time.monotonic() < until:
        show(None)
        _check(signals)
        time.sleep(0.2)


def _check(signals: Signals) -> None:
    if signals.received is not None:
        message = "stopped; what was under way is saved, the same command goes on from there"
        raise Interrupted(message, 128 + signals.received)


def _forget_failures(cells: Sequence[Cell], runtime: Runtime) -> None:
    for cell in cells:
        run = cell.run(runtime.runs)
        failure = failure_of(run)
        if failure is not None and failure.status == FAILED:
            run.failure.unlink(missing_ok=True)  # another driver may do the same
