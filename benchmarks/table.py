"""Where the benchmarks write: results/bench-<name>.csv, each row with processor, torch version and commit."""

import csv
from collections.abc import Sequence
from pathlib import Path

import torch

from dctps.base.files import write_atomically
from dctps.base.machine import cpu
from dctps.base.provenance import commit

RESULTS = Path(__file__).parents[1] / "results"


def write(name: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    """Write a table of this name in place of an earlier one; returns its path."""
    return _write(name, [*header, *_origin()], [[*row, *_origin().values()] for row in rows])


def rows(name: str) -> list[list[str]]:
    """Return the rows of a table, each with its origin; none if there is no such table."""
    return list(csv.reader(_path(name).open()))[1:] if _path(name).exists() else []


def add(name: str, header: Sequence[str], row: Sequence[object]) -> Path:
    """Add a row to a table; the rows that are there keep their origin."""
    return _write(name, [*header, *_origin()], [*rows(name), [*row, *_origin().values()]])


def _path(name: str) -> Path:
    return RESULTS / f"bench-{name}.csv"


def _origin() -> dict[str, object]:
    return {"cpu": cpu(), "torch": torch.__version__, "commit": commit()}


def _write(name: str, header: Sequence[str], whole: Sequence[Sequence[object]]) -> Path:
    def fill(part: Path) -> None:
        with part.open("w", newline="") as file:
            csv.writer(file).writerows([header, *whole])

    write_atomically(_path(name), fill)
    print(f"written: {_path(name)}")
    return _path(name)
