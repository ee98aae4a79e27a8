"""Results as CSV: a row per run, layer, singular value or epoch, from which figures can be drawn again.

Each row says to which experiment, scale, panel and line of a figure it belongs, so that a file holds all that its
figure needs. Runs without a result have a row too, with their status, so that what is missing stays visible.
"""

import csv
import dataclasses
import io
import math
import typing
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dctps.base.files import write_atomically
from dctps.base.plain_files import RecordError, read_text
from dctps.base.records import parse
from dctps.base.registry import lookup
from dctps.experiments.cells import Cell
from dctps.experiments.results import Results, Row
from dctps.experiments.status import COLLAPSED, DONE
from dctps.experiments.tasks import TASKS
from dctps.experiments.tasks.task import Columns, SheetRow
from dctps.train.runs import Run, RunError

MISSING, BROKEN = "missing", "broken"  # statuses beside done, collapsed and failed: no result, or an unusable one
RESULTS = DONE, COLLAPSED  # a method that collapsed is a result, too


# --- from results to rows -------------------------------------------------------------------------------------------


def sheet_rows(
    experiment: str,
    scale: str,
    cells: Iterable[Cell],
    results: Results,
    kind: type[SheetRow] | None = None,
    kept: Iterable[SheetRow] = (),
) -> list[SheetRow]:
    """The rows of an experiment at a scale, both by name; cells that `results` does not have are missing.

    A run that an experiment names twice for one line is there once.
    kind: the class of the rows, if not the one that the task of a cell usually has.
    kept: rows of other tables, which stand for the runs that have no result in `results`, wherever they were drawn.
    """
    found = {row.id: row for row in results.rows}
    broken = {run.name: run.reason for run in results.broken}
    elsewhere, here = _by_run(kept), {row.id for row in results.rows if row.status in RESULTS}
    rows: list[SheetRow] = []
    for cell in {(cell.id, cell.panel, cell.line): cell for cell in cells}.values():
        if cell.id not in here and cell.id in elsewhere:
            names: dict[str, Any] = {"experiment": experiment, "scale": scale, "panel": cell.panel, "line": cell.line}
            rows += [dataclasses.replace(row, **names) for row in elsewhere[cell.id]]
            continue
        row_class = kind or lookup(TASKS, cell.task, "task").row
        shared = {**_origin(cell), **_outcome(found.get(cell.id), broken.get(cell.id)), "id": cell.id}
        try:
            added = _task_columns(cell, found.get(cell.id), row_class)
        except RunError as error:  # its metrics are damaged
            added, shared = [{}], {**shared, "status": BROKEN, "reason": str(error)}
        rows += [row_class(experiment, scale, **shared, **columns) for columns in added]
    return rows


def _by_run(rows: Iterable[SheetRow]) -> dict[str, list[SheetRow]]:
    """The rows of each run by its id; where several lines have the run, those of the first."""
    lines: dict[str, dict[tuple[str, str, str], list[SheetRow]]] = {}
    for row in rows:
        lines.setdefault(row.id, {}).setdefault((row.experiment, row.panel, row.line), []).append(row)
    return {run: next(iter(of_lines.values())) for run, of_lines in lines.items()}


def _origin(cell: Cell) -> dict[str, Any]:
    names = ("model", "data", "width", "images", "epochs", "density", "seed")
    settings = {name: getattr(cell.settings, name) for name in names}
    return {"panel": cell.panel, "line": cell.line, "task": cell.task, **settings}


def _outcome(row: Row | None, broken: str | None) -> dict[str, Any]:
    if row is None:
        return {"status": MISSING if broken is None else BROKEN, "reason": broken or "", "commit": ""}
    return {"status": row.status, "reason": row.reason, "commit": row.content.get("commit") or ""}


def _task_columns(cell: Cell, row: Row | None, row_class: type[SheetRow]) -> list[Columns]:
    """The columns that the task adds, row by row; one row without them where there is no result."""
    if row is None or row.status != DONE:
        return [{}]
    return TASKS[cell.task].sheets[row_class](row.content, Run(row.folder))


def results_of(sheet: Path) -> list[SheetRow]:
    """The rows of a table that are results: runs that are done, and methods that collapsed; none where no file is."""
    return [row for row in read_sheet(sheet) if row.status in RESULTS] if sheet.exists() else []


# --- rows in and out of files ---------------------------------------------------------------------------------------


def write_sheet(rows: Sequence[SheetRow], path: Path) -> None:
    """Write rows of one class as CSV, atomically, with numbers that are read back exactly."""
    if not rows:
        raise ValueError(f"there are no lines to write into {path}")
    if len({type(row) for row in rows}) > 1:
        raise ValueError(f"{path} cannot hold rows of several kinds; write one sheet for each task")
    names = [field.name for field in dataclasses.fields(rows[0])]

    def write(file: Path) -> None:
        # names of files and texts of errors may hold what no encoding can write
        with file.open("w", newline="", encoding="utf-8", errors="backslashreplace") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(names)
            writer.writerows([getattr(row, name) for name in names] for row in rows)

    write_atomically(path, write)


def read_sheet(path: Path) -> list[SheetRow]:
    """The rows that `write_sheet` wrote; ValueError with the place for anything else."""
    try:
        reader = csv.reader(io.StringIO(read_text(path), newline=""))
        names = next(reader, [])
        row_class = _class_of(names, path)
        return [_parsed(row_class, names, texts, f"{path}, line {reader.line_num}") for texts in reader]
    except (RecordError, csv.Error) as error:  # it is no text, or has a cell that is too large
        raise ValueError(f"{path} is not a sheet of results: {error}") from error


def _class_of(names: list[str], path: Path) -> type[SheetRow]:
    for row_class in _row_classes():
        if names == [field.name for field in dataclasses.fields(row_class)]:
            return row_class
    raise ValueError(f"{path} is not a sheet of results of this version: its columns are {', '.join(names) or 'none'}")


def _row_classes() -> Iterator[type[SheetRow]]:
    return (row_class for task in TASKS.values() for row_class in task.sheets)


def _parsed(row_class: type[SheetRow], names: list[str], texts: list[str], where: str) -> SheetRow:
    if len(texts) != len(names):
        raise ValueError(f"{where}: {len(texts)} cells for {len(names)} columns")
    hints = typing.get_type_hints(row_class)
    try:
        return row_class(**{name: _value(hints[name], text) for name, text in zip(names, texts, strict=True)})
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _value(hint: Any, text: str) -> Any:
    kinds = typing.get_args(hint)
    if not text and type(None) in kinds:
        return None
    kind = (kinds or (hint,))[0]
    value = kind(text)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return parse(int, value) if kind is int else value
