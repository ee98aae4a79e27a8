"""Tables of pages, made from the tables of runs in results/, so that a page has no number that a table has not.

    <!-- table scale-laptop: accuracies of ResNet18, CIFAR-10 -->
    <!-- table bytes-laptop: bytes of ResNet18, CIFAR-10 -->
    <!-- table scale-laptop: differences to no offset of ResNet18, CIFAR-10 -->
    <!-- table scale-laptop: epochs 1 5 10 at 0.001 of ResNet18, CIFAR-10 -->

`accuracies` are those on the test images at the epoch of the best validation accuracy, `bytes` has them beside the size
of the network's file, `differences` are those of runs with the same density and seed, and `epochs` have validation
accuracies. All are in percent: mean and deviation over the
seeds, and the number of seeds where it is not three. A line without results is left out.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dctps.base.words import percent
from dctps.experiments.sheet import read_sheet
from dctps.experiments.status import COLLAPSED, DONE
from dctps.experiments.summary import over_seeds

RESULTS = Path(__file__).parents[1] / "results"
REQUEST = re.compile(
    r"(?P<name>\S+): (?P<what>accuracies|bytes|differences to (?P<base>.+?)"
    r"|epochs (?P<epochs>[\d ]+?)( at (?P<at>[\d.]+))?) of (?P<panel>.+)"
)
SEEDS = 3  # what a table does not mention
Cells = Mapping[tuple[str, Any], str]  # by line and column
Value = tuple[Any, Any, int | None, float]  # line, column, seed, accuracy


def table(request: str) -> str:
    """Return the Markdown table that a comment asks for."""
    asked = REQUEST.fullmatch(request)
    if asked is None:
        raise ValueError(f"no table is called {request!r}")
    if asked["epochs"]:
        epochs = [int(epoch) for epoch in asked["epochs"].split()]
        return _epochs(asked["name"], asked["panel"], epochs, float(asked["at"]) if asked["at"] else None)
    rows = _rows(asked["name"], asked["panel"])
    values = [(r.line, r.density or 1.0, r.seed, r.test_at_best) for r in rows if r.status == DONE]
    if asked["base"]:
        return _markdown(_cells(_differences(values, asked["base"]), "{:+.1f}"), percent)
    if asked["what"] == "bytes":
        return _bytes([row for row in rows if row.status == DONE])
    cells = {(r.line, r.density or 1.0): "collapsed" for r in rows if r.status == COLLAPSED} | _cells(values)
    places = dict.fromkeys((r.line, r.density or 1.0) for r in rows)
    return _markdown({place: cells[place] for place in places if place in cells}, percent)


def _rows(name: str, panel: str) -> list[Any]:
    rows = [row for row in read_sheet(RESULTS / f"{name}.csv") if row.panel == panel]
    if not rows:
        raise ValueError(f"results/{name}.csv has no rows of {panel}")
    return rows


def _differences(values: Sequence[Value], base: str) -> list[Value]:
    """Return how far each accuracy is above that of the line `base` with the same column and seed."""
    bases = {(column, seed): accuracy for line, column, seed, accuracy in values if line == base}
    return [
        (line, column, seed, accuracy - bases[column, seed])
        for line, column, seed, accuracy in values
        if line != base and (column, seed) in bases
    ]


def _epochs(name: str, panel: str, epochs: Sequence[int], density: float | None) -> str:
    rows = [r for r in _rows(f"{name}-epochs", panel) if r.epoch in epochs and density in (None, r.density)]

    def title(row: Any) -> str:
        return row.line if density is not None else f"{row.line}, {percent(row.density or 1.0)}"

    return _markdown(_cells([(title(r), r.epoch, r.seed, r.validation) for r in rows]), "epoch {}".format, epochs)


def _bytes(rows: Sequence[Any]) -> str:
    """Return a table with a row for each network, the largest file first."""
    groups: dict[tuple[str, float], list[Any]] = {}
    for row in rows:
        groups.setdefault((row.line, row.density or 1.0), []).append(row)
    sizes = {key: over_seeds(row.file_bytes for row in group).mean or 0.0 for key, group in groups.items()}
    largest_first = sorted(groups, key=lambda key: -sizes[key])
    body = [
        f"| {line} | {percent(density)} | {sizes[line, density]:,.0f} "
        f"| {_cell([100 * row.test_at_best for row in groups[line, density]], '{:.1f}')} |"
        for line, density in largest_first
    ]
    return "\n".join(["|  | weights | file, bytes | test accuracy |", "|---|--:|--:|--:|", *body])


def _cells(values: Iterable[Value], number: str = "{:.1f}") -> dict[tuple[str, Any], str]:
    groups: dict[tuple[str, Any], list[float]] = {}
    for line, column, _, accuracy in values:
        groups.setdefault((line, column), []).append(100 * accuracy)
    return {key: _cell(accuracies, number) for key, accuracies in groups.items()}


def _cell(accuracies: Sequence[float], number: str) -> str:
    found = over_seeds(accuracies)
    text = number.format(found.mean)
    text += "" if found.deviation is None else f" ± {found.deviation:.1f}"
    seeds = f" ({found.n} seed{'s' if found.n > 1 else ''})"
    return text if found.n == SEEDS else text + seeds


def _markdown(cells: Cells, title: Callable[[Any], str], columns: Sequence[Any] | None = None) -> str:
    """Return the cells as a table, with the lines in their order and the columns from the largest number down."""
    lines = list(dict.fromkeys(line for line, _ in cells))
    columns = sorted({column for _, column in cells}, reverse=True) if columns is None else columns
    head = ["", *map(title, columns)]
    body = [[line, *(cells.get((line, column), "") for column in columns)] for line in lines]
    rule = "|".join(["---", *["--:"] * len(columns)])
    return "\n".join([f"| {' | '.join(head)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in body)])
