"""Grids of users: a JSON or TOML file with the settings of runs, in which lists stand for all combinations.

    [settings]              the settings of `dctps train`; a list means a run for each of its entries
    model = "lenet"
    density = [0.05, 0.01]
    seed = [0, 1, 2]

    [[lines]]               optional: variants by name, each combined with the lists above
    name = "DCTpS"
    [[lines]]
    name = "Random"
    offset = "none"

TOML has no null, so "none" stands for it. `milestones` is one list for all runs, or a list of such lists.
"""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dctps.base.plain_files import read_table
from dctps.base.registry import NONE
from dctps.base.words import shown
from dctps.experiments.cells import Cell, distinct
from dctps.train.settings import from_json, non_defaults

LARGEST_GRID = 100_000  # runs


def read_grid(file: Path) -> list[Cell]:
    """The cells of the grid in a file; ValueError with the name of the file if something is wrong in it."""
    content = read_table(file, "a grid")
    try:
        return grid(content)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def grid(content: Any) -> list[Cell]:
    """The cells of a grid, given as the content of its file."""
    if not isinstance(content, dict) or set(content) - {"settings", "lines"}:
        raise ValueError("a grid is an object with settings and, if there are variants, lines")
    base, lines = content.get("settings", {}), content.get("lines", [{}])
    if not isinstance(base, dict) or not isinstance(lines, list) or not all(isinstance(line, dict) for line in lines):
        raise ValueError("settings are an object, lines a list of objects")
    cells = [cell for line in lines for cell in _cells(base, dict(line))]
    if not cells:
        raise ValueError("the grid is empty: one of its lists has no entries")
    return distinct(cells)


def _cells(base: dict[str, Any], line: dict[str, Any]) -> Iterator[Cell]:
    name = line.pop("name", None)
    if not isinstance(name, str | None):
        raise ValueError(f"the name of a line is text, not {shown(name)}")
    axes = {key: _values(key, value) for key, value in {**base, **line}.items()}
    if (number := math.prod(map(len, axes.values()))) > LARGEST_GRID:
        raise ValueError(f"the lists make {number:,} runs; a grid has at most {LARGEST_GRID:,}")
    for values in itertools.product(*axes.values()):
        settings = from_json(dict(zip(axes, values, strict=True)))
        changed = {key: value for key, value in non_defaults(settings).items() if len(axes.get(key, ())) > 1}
        yield Cell(settings, line=name or ", ".join(f"{k} {NONE if v is None else v}" for k, v in changed.items()))


def _values(key: str, value: Any) -> list[Any]:
    several = isinstance(value, list) and (key != "milestones" or any(isinstance(entry, list) for entry in value))
    return value if several else [value]
