"""The table of all runs, column by column. A column of words is a list of the different words and their indices."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dctps.analysis.page.costs import BYTES_TIP, OPS_TIP, operations, weight_bytes
from dctps.analysis.page.looks import order
from dctps.analysis.page.values import accuracy, rounded
from dctps.experiments.cells import TRAIN
from dctps.experiments.naming import method_name
from dctps.experiments.numbers import number
from dctps.experiments.results import Row
from dctps.experiments.titles import data_title, network_title
from dctps.train.settings import non_defaults

_IN_COLUMNS = {"model", "data", "density", "epochs", "seed"}


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the table."""

    name: str
    kind: str  # how the page writes the values: "text" or a kind of number
    value: Callable[[Row], Any]
    tip: str = ""  # what the values mean
    filtered: bool = False  # whether the page offers a choice among its values


COLUMNS = (
    Column("method", "text", lambda row: method_name(row.settings), filtered=True),
    Column("network", "text", lambda row: network_title(row.settings.model), filtered=True),
    Column("data", "text", lambda row: data_title(row.settings.data), filtered=True),
    Column("density", "percent", lambda row: row.settings.density, "Fraction of the weights that was asked to train."),
    Column(
        "epochs",
        "integer",
        lambda row: row.settings.epochs if row.task == TRAIN else None,
        "Passes over the training images that were asked for.",
    ),
    Column("seed", "integer", lambda row: row.settings.seed),
    Column("status", "text", lambda row: row.status, filtered=True),
    Column(
        "test",
        "accuracy",
        lambda row: _percent(row, "test"),
        "Test accuracy at the epoch with the best validation accuracy.",
    ),
    Column("validation", "accuracy", lambda row: _percent(row, "validation"), "Best validation accuracy."),
    Column(
        "weights",
        "integer",
        lambda row: number(row.content, "weights", "got"),
        "Number of weights that train; in a dense network all weights of linear layers and convolutions.",
    ),
    Column("file bytes", "integer", lambda row: number(row.content, "bytes", "file"), "Size of best.safetensors."),
    Column("without BatchNorm", "integer", lambda row: weight_bytes(row) if row.task == TRAIN else None, BYTES_TIP),
    Column(
        "seconds",
        "seconds",
        lambda row: number(row.content, "seconds"),
        "Seconds of training, in all sittings together.",
    ),
    Column("task", "text", lambda row: row.task, "Only trainings have an accuracy.", filtered=True),
    Column(
        "commit", "text", lambda row: str(row.content.get("commit") or ""), "Commit of the source that made the run."
    ),
    Column(
        "other settings",
        "text",
        lambda row: _other(row),
        "Settings that differ from their defaults, under the names that dctps train gives them.",
    ),
)


def _percent(row: Row, kind: str) -> float | None:
    value = accuracy(row, kind)
    return None if value is None else rounded(100 * value)


def _other(row: Row) -> str:
    """Return the settings that have no column and differ from their defaults."""
    pairs = [(name, value) for name, value in non_defaults(row.settings).items() if name not in _IN_COLUMNS]
    return ", ".join(f"{name} {value if isinstance(value, str) else json.dumps(value)}" for name, value in pairs)


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Return the rows as the table shows them first: by network, data set, method, density and seed."""

    def place(row: Row) -> tuple[Any, ...]:
        s = row.settings
        return row.task != TRAIN, row.task, s.model, s.data, order(method_name(s)), -(s.density or 2.0), s.seed, row.id

    return sorted(rows, key=place)


def table(rows: Sequence[Row], ops: bool = False) -> list[dict[str, Any]]:
    """Return the columns of the table, without the tasks if all are trainings, with multiply-adds if asked for."""
    all_trained = all(row.task == TRAIN for row in rows)
    columns = [c for c in COLUMNS if not (c.name == "task" and all_trained)]
    encoded = [_encoded(column, [column.value(row) for row in rows]) for column in columns]
    if ops:
        extra = Column("multiply-adds", "integer", lambda row: None, OPS_TIP)
        place = [column.name for column in columns].index("seconds")
        encoded.insert(place, _encoded(extra, operations(rows)))
    return encoded


def _encoded(column: Column, values: Sequence[Any]) -> dict[str, Any]:
    head = {"name": column.name, "kind": column.kind, "tip": column.tip, "filtered": column.filtered}
    if column.kind != "text":
        return {**head, "values": list(values)}
    numbers = {word: index for index, word in enumerate(dict.fromkeys(values))}
    return {**head, "words": list(numbers), "values": [numbers[word] for word in values]}
