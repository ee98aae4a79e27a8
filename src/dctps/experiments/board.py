"""What people see of a sweep: a live table on a terminal, plain lines of text elsewhere."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from dctps.base.words import duration, percent, printable
from dctps.experiments.cells import Cell, distinct
from dctps.experiments.events import ENDED, EPOCH, OVER, STARTED, Event
from dctps.experiments.perform import is_over
from dctps.experiments.results import failure_of
from dctps.experiments.status import COLLAPSED, DONE, FAILED
from dctps.experiments.titles import panel_as_run
from dctps.train.records import epoch_number

RUNNING, WAITING = "running", "waiting"  # states of a cell that is not over


class Board:
    """Shows how many cells of each line are done, running, collapsed and failed, and the time left."""

    def __init__(self, cells: Sequence[Cell], runs: Path, quiet: bool = False) -> None:
        self.cells, self.runs = distinct(cells), runs
        self.console = Console(quiet=quiet, highlight=False)
        self.live = Live(console=self.console, auto_refresh=False) if sys.stdout.isatty() and not quiet else None
        self.state = {cell.id: _state(cell, runs) for cell in self.cells}
        self.fraction: dict[str, float] = {}  # how much of a running cell is done, counted in epochs
        self.started, self.before = time.monotonic(), self._over()
        self.shown = 0.0

    def __enter__(self) -> "Board":
        if self.live is not None:
            self.live.start()
        else:
            self._say(f"{len(self.cells)} runs, {round(self.before)} of them done before")
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.update(self._table(), refresh=True)
            self.live.stop()

    def __call__(self, event: Event | None) -> None:
        if event is not None:
            self._update(event)
        if self.live is not None and time.monotonic() - self.shown > 0.5:
            self.shown = time.monotonic()
            self.live.update(self._table(), refresh=True)

    def _update(self, event: Event) -> None:
        cell = event.cell
        if event.kind == EPOCH:
            self.fraction[cell.id] = epoch_number(event.row["epoch"]) / cell.settings.epochs
            return
        self.fraction.pop(cell.id, None)
        if event.kind in OVER:
            self.state[cell.id] = _state(cell, self.runs)
            if event.kind == ENDED and self.live is None:
                self._say_state(cell)
        elif event.kind == STARTED:
            self.state[cell.id] = RUNNING

    def _say_state(self, cell: Cell) -> None:
        over = sum(state in (DONE, COLLAPSED, FAILED) for state in self.state.values())
        failure = failure_of(cell.run(self.runs))
        reason = f" ({failure.reason})" if failure else ""
        self._say(f"{over}/{len(self.cells)}  {describe(cell)}: {self.state[cell.id]}{reason}  {self._left()}")

    def _say(self, text: str) -> None:
        self.console.print(printable(text), markup=False, soft_wrap=True)

    def _over(self) -> float:
        """How many cells are over; a running cell counts by the fraction of its epochs."""
        return sum(state in (DONE, COLLAPSED, FAILED) for state in self.state.values()) + sum(self.fraction.values())

    def _left(self) -> str:
        done, seconds = self._over() - self.before, time.monotonic() - self.started
        if done < 0.1 or seconds < 1:
            return ""
        return f"{duration(seconds / done * (len(self.cells) - self._over()))} left"

    def _table(self) -> Table:
        table = Table("line", title=f"{self._over():.1f} of {len(self.cells)} runs  {self._left()}")
        for column in (DONE, RUNNING, WAITING, COLLAPSED, FAILED):
            table.add_column(column, justify="right")
        for line in dict.fromkeys(map(_line, self.cells)):
            states = Counter(self.state[cell.id] for cell in self.cells if _line(cell) == line)
            counts = (str(states[name] or "") for name in (DONE, RUNNING, WAITING, COLLAPSED, FAILED))
            table.add_row(printable(", ".join(part for part in line if part)) or "runs", *counts)
        return table


def _state(cell: Cell, runs: Path) -> str:
    run = cell.run(runs)
    if not is_over(run):
        return WAITING
    failure = failure_of(run)
    return DONE if failure is None else failure.status


def describe(cell: Cell) -> str:
    """A cell in a few words: panel, line, density and seed."""
    density = [] if cell.settings.density is None else [percent(cell.settings.density)]
    return ", ".join([*(part for part in _line(cell) if part), *density, f"seed {cell.settings.seed}"])


def _line(cell: Cell) -> tuple[str, str]:
    """The panel of a cell, with the data that are really used, and its line."""
    return panel_as_run(cell.panel, cell.settings.data), cell.line
