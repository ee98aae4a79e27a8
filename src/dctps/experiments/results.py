"""What is in a folder of runs: one row for each run that is over, and the names of those that cannot be used.

Nothing is dropped in silence: a result that cannot be read, that a newer version wrote, or whose network is gone is
listed with the reason, so that tables of means can say what is missing from them.
"""

import dataclasses
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dctps.experiments.cells import TRAIN, Cell
from dctps.experiments.status import DONE, FAILED
from dctps.experiments.tasks import TASKS
from dctps.train.runs import Run
from dctps.train.settings import Settings, from_json

_EVERY = {"id", "settings", "commit", "versions", "cpu", "threads", "finished"}  # keys of every result and failure
_FAILURE = _EVERY | {"task", "status", "reason", "details"}


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
        """The metrics of a training, epoch by epoch; lines that cannot be read are left out."""
        return Run(self.folder).read_metrics()


@dataclasses.dataclass(frozen=True)
class Broken:
    """A run that cannot be used, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


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
    """All runs in a folder, sorted by name."""
    if not runs.is_dir():
        raise ValueError(f"there is no folder {str(runs)!r}; runs are made by dctps train, sweep and reproduce")
    with os.scandir(runs) as entries:
        folders = sorted(entry.path for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    with ThreadPoolExecutor(8) as pool:  # disks of clusters answer slowly, but many requests at once
        return _results(list(pool.map(_read_run, folders)))


def read_cells(cells: Iterable[Cell], runs: Path) -> Results:
    """The runs of these cells in a folder."""
    return _results([_read_run(str(runs / name)) for name in dict.fromkeys(cell.id for cell in cells)])


def _results(found: list[Row | Broken | None]) -> Results:
    rows = [run for run in found if isinstance(run, Row)]
    broken = [run for run in found if isinstance(run, Broken)]
    return Results(rows, broken, len(found) - len(rows) - len(broken))


def failure_of(run: Run) -> Failure | None:
    """Why a run that is over has no result; None if it has one or is not over."""
    if run.result.exists() or not run.failure.exists():
        return None
    row = _read_run(str(run.folder))
    if isinstance(row, Row):
        return Failure(run.id, row.status, row.reason)
    return Failure(run.id, FAILED, f"{run.failure} is damaged")


def _read_run(folder: str) -> Row | Broken | None:
    """The row of a run folder, or why it has none; None if the run is not over."""
    name = os.path.basename(folder)
    for file in ("result.json", "failure.json"):
        try:
            with open(os.path.join(folder, file), encoding="utf-8") as stream:
                text = stream.read()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, UnicodeDecodeError) as error:
            return Broken(name, f"{file} cannot be read: {error}")
        try:
            return _row(Path(folder), name, json.loads(text))
        except _Unusable as error:
            return Broken(name, f"{file}: {error}")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            return Broken(name, f"{file} is damaged ({error})")
    return None


class _Unusable(Exception):  # noqa: N818
    """A result that can be read, but not used."""


def _row(folder: Path, name: str, content: Any) -> Row:
    if not isinstance(content, dict):
        raise _Unusable(f"it holds a {type(content).__name__}, not an object")
    task, status = content.get("task", TRAIN), content.get("status", DONE)
    _check_keys(content, task, status)
    if content["id"] != name:
        raise _Unusable(f"it is the result of {content['id']}")
    try:
        settings = from_json(content["settings"])
    except ValueError as error:
        raise _Unusable(str(error)) from None
    objection = TASKS[task].objection(content, Run(folder)) if status == DONE else None
    if objection is not None:
        raise _Unusable(objection)
    return Row(name, folder, task, status, settings, content)


def _check_keys(content: dict[str, Any], task: str, status: str) -> None:
    if status == DONE and task not in TASKS:
        raise _Unusable(f"unknown task {task!r}; a newer version may know it")
    known = _EVERY | TASKS[task].keys if status == DONE else _FAILURE
    if unknown := set(content) - known:
        raise _Unusable(f"unknown keys {', '.join(sorted(unknown))}; a newer version may know them")
    needed = known if status == DONE else {"id", "settings"}
    if missing := needed - set(content):
        raise _Unusable(f"{', '.join(sorted(missing))} is missing")
