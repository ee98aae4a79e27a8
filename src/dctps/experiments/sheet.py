"""Results as CSV: a line per run, or per layer, singular value or epoch of it, from which figures can be drawn again.

Each line says to which experiment, scale, panel and line of a figure it belongs, so that a file holds all that its
figure needs. Runs without a result have a line too, with their status: what is missing stays visible.
"""

import csv
import dataclasses
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from dctps.base.files import write_atomically
from dctps.base.registry import lookup
from dctps.experiments.cells import TRAIN, Cell
from dctps.experiments.results import DONE, Results, Row

MISSING, BROKEN = "missing", "broken"  # beside done, collapsed and failed: no result yet, or one that cannot be used


@dataclasses.dataclass(frozen=True)
class Entry:
    """What every line has: where it is drawn, what was run and what became of it. An empty cell is None."""

    experiment: str
    scale: str
    panel: str
    line: str
    task: str
    model: str
    data: str
    width: int | None
    images: int | None
    epochs: int
    density: float | None
    seed: int
    status: str
    reason: str
    commit: str
    id: str


@dataclasses.dataclass(frozen=True)
class Training(Entry):
    """A training: accuracies as fractions, numbers of trainable weights, bytes of the network's file, seconds."""

    best_validation: float | None = None
    best_epoch: int | None = None
    test_at_best: float | None = None
    final_validation: float | None = None
    final_test: float | None = None
    weights_asked: int | None = None
    weights_got: int | None = None
    weights_size: int | None = None
    file_bytes: int | None = None
    seconds: float | None = None
    pruning_seconds: float | None = None
    pruning_passes: int | None = None  # forward, of one batch each
    rewire_every: int | None = None  # steps


@dataclasses.dataclass(frozen=True)
class Layer(Entry):
    """A prunable layer: its number (from 1), name, trainable weights and size; `others` are those of the network."""

    index: int | None = None
    name: str = ""
    nnz: int | None = None
    size: int | None = None
    others: int | None = None  # parameters that are no weights: biases, BatchNorm, alphas


@dataclasses.dataclass(frozen=True)
class SingularValue(Entry):
    """The singular value of the Jacobian with this number (from 1, largest first), over some images."""

    index: int | None = None
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    examples: int | None = None


@dataclasses.dataclass(frozen=True)
class Epoch(Entry):
    """An epoch of a training (from 1): accuracies as fractions, the mean loss of its steps."""

    epoch: int | None = None
    loss: float | None = None
    train: float | None = None
    validation: float | None = None


KINDS: dict[str, type[Entry]] = {TRAIN: Training, "counts": Layer, "jacobian": SingularValue}

# --- from runs ------------------------------------------------------------------------------------------------------


def entries(
    experiment: str, scale: str, cells: Iterable[Cell], results: Results, kind: type[Entry] | None = None
) -> list[Entry]:
    """The lines of an experiment, by the names of it and its scale; cells without a row among `results` are missing.

    A run that an experiment names twice for one line is there once. `kind`: of the lines, if not that of the task.
    """
    rows = {row.id: row for row in results.rows}
    broken = {one.name: one.reason for one in results.broken}
    found: list[Entry] = []
    for cell in {(cell.id, cell.panel, cell.line): cell for cell in cells}.values():
        row = rows.get(cell.id)
        state = _state(row, broken.get(cell.id))
        made = lookup(KINDS, cell.task, "task") if kind is None else kind
        own = _OWN[made](row) if row is not None and row.status == DONE else [{}]
        found += [made(experiment, scale, **_place(cell), **state, id=cell.id, **numbers) for numbers in own]
    return found


def _place(cell: Cell) -> dict[str, Any]:
    names = ("model", "data", "width", "images", "epochs", "density", "seed")
    settings = {name: getattr(cell.settings, name) for name in names}
    return {"panel": cell.panel, "line": cell.line, "task": cell.task, **settings}


def _state(row: Row | None, broken: str | None) -> dict[str, Any]:
    if row is None:
        return {"status": MISSING if broken is None else BROKEN, "reason": broken or "", "commit": ""}
    return {"status": row.status, "reason": row.reason, "commit": row.content.get("commit") or ""}


def _training(row: Row) -> list[dict[str, Any]]:
    content = row.content
    names = ("best_validation", "best_epoch", "test_at_best", "final_validation", "final_test")
    accuracy = {name: content["accuracy"][name] for name in names}
    weights = {f"weights_{name}": content["weights"].get(name) for name in ("asked", "got", "size")}
    costs = {"file_bytes": content["bytes"]["file"], "seconds": content["seconds"]}
    pruning, settings = content["pruning"] or {}, content["settings"]
    costs |= {"pruning_seconds": pruning.get("seconds"), "pruning_passes": pruning.get("forward_passes")}
    every = settings["rewire_every"] if settings.get("rewire") else None
    return [{**accuracy, **weights, **costs, "rewire_every": every}]


def _layers(row: Row) -> list[dict[str, Any]]:
    others = row.content["others"]
    return [{"index": i, **layer, "others": others} for i, layer in enumerate(row.content["layers"], 1)]


def _values(row: Row) -> list[dict[str, Any]]:
    spectra = row.content["singular_values"]  # one per image
    return [
        {"index": i, "mean": sum(own) / len(own), "low": min(own), "high": max(own), "examples": len(own)}
        for i, own in enumerate(zip(*spectra, strict=True), 1)
    ]


def _epochs(row: Row) -> list[dict[str, Any]]:
    names = ("loss", "train", "validation")
    return [{"epoch": own["epoch"] + 1, **{name: own.get(name) for name in names}} for own in row.epochs()] or [{}]


_OWN: dict[type[Entry], Callable[[Row], list[dict[str, Any]]]] = {
    Training: _training,
    Layer: _layers,
    SingularValue: _values,
    Epoch: _epochs,
}

# --- in and out of files --------------------------------------------------------------------------------------------


def write_sheet(lines: Sequence[Entry], path: Path) -> None:
    """As CSV, atomically. The lines are of one kind; numbers are written so that they are read back exactly."""
    if not lines:
        raise ValueError(f"no lines to write into {path}")
    if len({type(line) for line in lines}) > 1:
        raise ValueError(f"lines of several kinds in one sheet, {path}: write one for each task")
    names = [field.name for field in dataclasses.fields(lines[0])]

    def write(file: Path) -> None:
        with file.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(names)
            writer.writerows([getattr(line, name) for name in names] for line in lines)

    write_atomically(path, write)


def read_sheet(path: Path) -> list[Entry]:
    """The lines that `write_sheet` wrote; ValueError with the place for anything else."""
    with path.open(newline="", encoding="utf-8") as stream:
        reader = csv.reader(stream)
        names = next(reader, [])
        kind = _kind(names, path)
        return [_parsed(kind, names, texts, f"{path}, line {reader.line_num}") for texts in reader]


def _kind(names: list[str], path: Path) -> type[Entry]:
    for kind in _OWN:
        if names == [field.name for field in dataclasses.fields(kind)]:
            return kind
    raise ValueError(f"{path} is not a sheet of results of this version: its columns are {', '.join(names) or 'none'}")


def _parsed(kind: type[Entry], names: list[str], texts: list[str], where: str) -> Entry:
    if len(texts) != len(names):
        raise ValueError(f"{where}: {len(texts)} cells for {len(names)} columns")
    hints = typing.get_type_hints(kind)
    try:
        return kind(**{name: _value(hints[name], text) for name, text in zip(names, texts, strict=True)})
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _value(hint: Any, text: str) -> Any:
    kinds = typing.get_args(hint)
    if not text and type(None) in kinds:
        return None
    return (kinds or (hint,))[0](text)
