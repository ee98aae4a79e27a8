"""Tables of pages, made from the tables of runs in results/, so that a page has no number that a table has not.

    <!-- table scale-laptop: accuracies of ResNet18, CIFAR-10 -->
    <!-- table bytes-laptop: bytes of ResNet18, CIFAR-10 -->
    <!-- table scale-laptop: differences to no offset of ResNet18, CIFAR-10 -->
    <!-- table scale-laptop: epochs 1 5 10 at 0.001 of ResNet18, CIFAR-10 -->

`accuracies` are those on the test images at the epoch of the best validation accuracy, `bytes` has them beside the size
of the network's file, `differences` are those of runs with the same density and seed, and `epochs` have validation
accuracies. All are in percent: mean and deviation over the seeds, and the number of seeds where it is not three. A line
without results is left out; a table without any is an error.
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
    r"|epochs (?P<epochs>\d+( \d+)*)( at (?P<at>\d+(\.\d+)?))?) of (?P<panel>.+)"
)
SEEDS = 3  # what a table does not mention
Cells = Mapping[tuple[str, Any], str]  # by line and column
Value = tuple[str, Any, int | None, float | None]  # line, column, seed, accuracy; None if its method collapsed


def table(request: str) -> str:
    """Return the Markdown table that a comment asks for; raise ValueError, with the request, if it would be empty."""
    asked = REQUEST.fullmatch(request)
    if asked is None:
        raise ValueError(f"no table is called {request!r}")
    kind = "epochs" if asked["epochs"] else asked["what"].split()[0]
    try:
        return TABLES[kind](asked, _rows(asked["name"] + ("-epochs" if kind == "epochs" else ""), asked["panel"]))
    except (ValueError, OSError) as error:
        raise ValueError(f"table {request!r}: {error}") from error


def _rows(name: str, panel: str) -> list[Any]:
    """Return the results of a panel, line by line: a row for each run that is done or has collapsed, or each epoch."""
    rows = [row for row in read_sheet(RESULTS / f"{name}.csv") if row.panel == panel]
    found = [row for row in rows if row.status in (DONE, COLLAPSED)]
    if not found:
        raise ValueError(f"results/{name}.csv has no results of {panel}")
    order = list(dict.fromkeys(row.line for row in rows))
    return sorted(found, key=lambda row: order.index(row.line))


# --- the kinds of tables --------------------------------------------------------------------------------------------


def _accuracies(asked: re.Match[str], rows: Sequence[Any]) -> str:
    return _markdown(_cells(_values(rows)), percent)


def _values(rows: Sequence[Any]) -> list[Value]:
    return [(r.line, r.density or 1.0, r.seed, r.test_at_best if r.status == DONE else None) for r in rows]


def _differences(asked: re.Match[str], rows: Sequence[Any]) -> str:
    """Return how far each accuracy is above that of the line `base` with the same density and seed."""
    known = [value for value in _values(rows) if value[3] is not None]
    bases = {(density, seed): accuracy for line, density, seed, accuracy in known if line == asked["base"]}
    pairs = [value for value in known if value[0] != asked["base"] and value[1:3] in bases]
    if not pairs:
        raise ValueError(f"no seed has a difference; there are the lines {', '.join({row.line: 0 for row in rows})}")
    return _markdown(_cells([(*v[:3], v[3] - bases[v[1:3]]) for v in pairs], "{:+.1f}"), percent)


def _bytes(asked: re.Match[str], rows: Sequence[Any]) -> str:
    """Return a table with a row for each network, the largest file first."""
    groups: dict[tuple[str, float], list[Any]] = {}
    for row in [row for row in rows if row.status == DONE]:
        groups.setdefault((row.line, row.density or 1.0), []).append(row)
    sizes = {key: over_seeds(row.file_bytes for row in group).mean or 0.0 for key, group in groups.items()}
    largest_first = sorted(groups, key=lambda key: -sizes[key])
    body = [
        f"| {line} | {percent(density)} | {sizes[line, density]:,.0f} "
        f"| {_cell([row.test_at_best for row in groups[line, density]])} |"
        for line, density in largest_first
    ]
    return "\n".join(["|  | weights | file, bytes | test accuracy |", "|---|--:|--:|--:|", *body])


def _epochs(asked: re.Match[str], rows: Sequence[Any]) -> str:
    epochs = [int(epoch) for epoch in asked["epochs"].split()]
    density = float(asked["at"]) if asked["at"] else None
    found = [r for r in rows if r.epoch in epochs and density in (None, r.density)]
    if missing := set(epochs) - {row.epoch for row in found}:
        raise ValueError(f"there are no results of epoch {min(missing)} at this density")

    def title(row: Any) -> str:
        return row.line if density is not None else f"{row.line}, {percent(row.density or 1.0)}"

    return _markdown(_cells([(title(r), r.epoch, r.seed, r.validation) for r in found]), "epoch {}".format, epochs)


TABLES: dict[str, Callable[[re.Match[str], Sequence[Any]], str]] = {
    "accuracies": _accuracies,
    "differences": _differences,
    "bytes": _bytes,
    "epochs": _epochs,
}

# --- cells ----------------------------------------------------------------------------------------------------------


def _cells(values: Iterable[Value], number: str = "{:.1f}") -> dict[tuple[str, Any], str]:
    """Return the text of each cell, by line and column."""
    groups: dict[tuple[str, Any], list[float | None]] = {}
    for line, column, _, accuracy in values:
        groups.setdefault((line, column), []).append(accuracy)
    return {key: _cell(accuracies, number) for key, accuracies in groups.items()}


def _cell(accuracies: Sequence[float | None], number: str = "{:.1f}") -> str:
    """Return mean and deviation in percent, with what a reader would not expect of the seeds."""
    found, n = over_seeds(accuracies), len(accuracies)
    text = "collapsed" if found.mean is None else number.format(100 * found.mean)
    text += "" if found.deviation is None else f" ± {100 * found.deviation:.1f}"
    notes = [] if n == SEEDS else [f"{n} seed{'s' if n > 1 else ''}"]
    notes += [f"{n - found.n} collapsed"] if 0 < found.n < n else []
    return f"{text} ({', '.join(notes)})" if notes else text


def _markdown(cells: Cells, title: Callable[[Any], str], columns: Sequence[Any] | None = None) -> str:
    """Return the cells as a table, with the lines in their order and the columns from the largest number down."""
    lines = list(dict.fromkeys(line for line, _ in cells))
    columns = sorted({column for _, column in cells}, reverse=True) if columns is None else columns
    head = ["", *map(title, columns)]
    body = [[line, *(cells.get((line, column), "") for column in columns)] for line in lines]
    rule = "|".join(["---", *["--:"] * len(columns)])
    return "\n".join([f"| {' | '.join(head)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in body)])
