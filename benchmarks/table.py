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
    origin = {"cpu": cpu(), "torch": torch.__version__, "commit": commit()}
    path = RESULTS / f"bench-{name}.csv"

    def fill(part: Path) -> None:
        with part.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*header, *origin])
            writer.writerows([*row, *origin.values()] for row in rows)

    write_atomically(path, fill)
    print(f"written: {path}")
    return path
