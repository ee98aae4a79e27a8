"""A sweep: an engine does those cells of a grid that have no result yet, and people see how far it is.

The folder of runs is all the state there is. Starting again does what is missing and nothing twice; several drivers
may work on one folder, each leaving alone what another is at.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence

from dctps.experiments.cells import Cell, distinct
from dctps.experiments.engines import BUSY, Engine, Event
from dctps.experiments.perform import is_over
from dctps.experiments.results import Failure, failure_of
from dctps.experiments.status import COLLAPSED, FAILED
from dctps.train.runs import Busy, Run, RunError
from dctps.train.settings import Runtime
from dctps.train.signals import Interrupted, Signals

POLL = 2.0  # seconds between looks at what another driver is doing


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a grid."""

    cells: list[Cell]
    failures: list[Failure]

    @property
    def collapsed(self) -> int:
        return sum(failure.status == COLLAPSED for failure in self.failures)

    @property
    def failed(self) -> list[Failure]:
        return [failure for failure in self.failures if failure.status == FAILED]

    @property
    def done(self) -> int:
        return len(self.cells) - len(self.failures)


def sweep(
    cells: Sequence[Cell],
    runtime: Runtime,
    engine: Engine,
    show: Callable[[Event | None], object] = lambda event: None,
    *,
    retry: bool = False,
) -> Outcome:
    """Do what is missing. `Interrupted` after a signal: what was under way is saved and goes on with the next call.

    retry: also what failed before (a collapse is a result and stays).
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
    """One pass over the missing cells; the kinds of the events that say how each of them ended."""
    said, events = dict[str, str](), engine.run(missing, runtime)
    try:
        for event in events:
            show(event)
            if event is not None:
                said[event.cell.id] = event.kind
            _check(signals)
    finally:
        events.close()  # type: ignore[attr-defined]
    return set(said.values())


def _await_others(
    missing: Sequence[Cell], runtime: Runtime, signals: Signals, show: Callable[[Event | None], object]
) -> None:
    """Until one of the cells is over or left; an engine that looked for itself would start processes each time."""
    busy = bool(missing)
    while busy:
        _pause(signals, show)
        busy = all(_is_busy(cell.run(runtime.runs)) for cell in missing)


def _is_busy(run: Run) -> bool:
    if is_over(run):
        return False
    try:
        with run.claimed(), run.locked():  # `dctps train` takes the second alone
            return False
    except RunError as error:
        return isinstance(error, Busy)  # whatever else it is the engine will find, too


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
