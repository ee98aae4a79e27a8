"""Where the benchmarks write: results/bench-<name>-<cpu>-torch<version>.csv, each row with threads and commit."""

import csv
from collections.abc import Sequence
from pathlib import Path

import torch

from dctps.base.machine import cpu
from dctps.base.provenance import commit

RESULTS = Path(__file__).parents[1] / "results"


def write(name: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    measured_on = commit()  # before the table, a tracked file, is written
    path = RESULTS / f"bench-{name}-{cpu().replace(' ', '_')}-torch{torch.__version__.split('+')[0]}.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*header, "commit"])
        writer.writerows([*row, measured_on] for row in rows)
    print(f"written: {path}")
    return path
