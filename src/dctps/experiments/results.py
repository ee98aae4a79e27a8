"""What is in a folder of runs: one row for each run that is over, and the names of those that cannot be used.

Nothing is dropped in silence: a result that cannot be read, that a newer version wrote, or whose network is gone is
listed with the reason, so that tables of means can say what is missing from them.
"""

import dataclasses
import functools
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dctps.base.plain_files import RecordError, parse_text, read_text
from dctps.base.words import printable, shown
from dctps.experiments.cells import TRAIN, Cell
from dctps.experiments.status import DONE, FAILED, FailureRecord
from dctps.experiments.tasks import TASKS
from dctps.train.finetuning.records import FinetuneRun
from dctps.train.records import parse_outcome
from dctps.train.runs import Run
from dctps.train.settings import Settings


@dataclasses.dataclass(frozen=True)
class Row:
    """A run that is over, with what its result.json or failure.json holds."""

    id: str
    folder: Path
    task: str
    status: str  # done, collapsed or failed
    settings: Settings
    content: dict[str, Any]

    @property
    def reason(self) -> str:
        """Why the run has no result; empty if it has one."""
        return str(self.content.get("reason", ""))

    def epochs(self) -> list[dict[str, Any]]:
        """The metrics of a training, epoch by epoch, as metrics.jsonl has them; `RunError` if it is damaged."""
        return self._epochs

    @functools.cached_property
    def _epochs(self) -> list[dict[str, Any]]:
        return [vars(row) for row in Run(self.folder).read_metrics()]


@dataclasses.dataclass(frozen=True)
class Broken:
    """A run that cannot be used, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Unfinished:
    """A run that is not over."""

    name: str


@dataclasses.dataclass(frozen=True)
class Results:
    """The rows of a folder, what is broken in it, and how many runs are not over."""

    rows: list[Row]
    broken: list[Broken]
    unfinished: int = 0

    def of(self, cells: Iterable[Cell]) -> list[tuple[Cell, Row]]:
        """The cells that have a row, with it."""
        found = {row.id: row for row in self.rows}
        return [(cell, found[cell.id]) for cell in cells if cell.id in found]


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a run has no result."""

    name: str
    status: str
    reason: str


def read(runs: Path) -> Results:
    """All runs in a folder, sorted by name; folders in it that are no runs, or fine-tunings, are passed over."""
    if not runs.is_dir():
        raise ValueError(f"there is no folder {str(runs)!r}; runs are made by dctps train, sweep and reproduce")
    with os.scandir(runs) as entries:
        others = (".", FinetuneRun.prefix)  # fine-tunings are no tasks of experiments
        folders = sorted(entry.path for entry in entries if entry.is_dir() and not entry.name.startswith(others))
    with ThreadPoolExecutor(8) as pool:  # disks of clusters answer slowly, but many requests at once
        return _results(list(pool.map(_read_usable, folders)))


def read_cells(cells: Iterable[Cell], runs: Path) -> Results:
    """The runs of these cells in a folder."""
    return _results([_read_usable(str(runs / name)) for name in dict.fromkeys(cell.id for cell in cells)])


def _results(found: list[Row | Broken | Unfinished | None]) -> Results:
    rows = [run for run in found if isinstance(run, Row)]
    broken = [run for run in found if isinstance(run, Broken)]
    return Results(rows, broken, sum(isinstance(run, Unfinished) for run in found))


def failure_of(run: Run) -> Failure | None:
    """Why a run that is over has no result, or one that cannot be read; None if all is well or the run is not over."""
    found = read_run(run.folder)
    if isinstance(found, Row) and found.status != DONE:
        return Failure(run.id, found.status, printable(found.reason))
    if isinstance(found, Broken):
        return Failure(
            run.id, FAILED, printable(f"{run.folder / found.reason}; delete the file to perform the run again")
        )
    return None


def _read_usable(folder: str) -> Row | Broken | Unfinished | None:
    """The run in a folder, as `read_run` has it; a result that its task objects to is broken."""
    row = read_run(Path(folder))
    if not isinstance(row, Row) or row.status != DONE:
        return row
    objection = TASKS[row.task].objection(row.content, Run(row.folder))
    return row if objection is None else Broken(row.id, f"result.json: {objection}")


def read_run(folder: Path) -> Row | Broken | Unfinished | None:
    """The row of a run folder, or why it has none; None if it is no folder of a run."""
    run = Run(folder)
    for path, row in ((run.result, _result_row), (run.failure, _failure_row)):
        try:
            return row(run, parse_text(read_text(path)))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return Broken(run.id, f"{path.name} cannot be read: {error.strerror}")
        except ValueError as error:
            return Broken(run.id, f"{path.name}: {error}")
    return Unfinished(run.id) if run.config.exists() else None


def _result_row(run: Run, content: Any) -> Row:
    name = content.get("task", TRAIN) if isinstance(content, dict) else TRAIN
    if not isinstance(name, str) or name not in TASKS:
        raise RecordError(f"is {shown(name)}, an unknown task; a newer version may know it", ".task")
    result = parse_outcome(TASKS[name].result, content, run.id)
    return Row(run.id, run.folder, name, DONE, result.settings, content)


def _failure_row(run: Run, content: Any) -> Row:
    failure = parse_outcome(FailureRecord, content, run.id)
    return Row(run.id, run.folder, failure.task, failure.status, failure.settings, content)
