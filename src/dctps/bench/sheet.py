"""Where measurements go: <out>/bench-<kind>-<cpu>-torch<version>-<date>.csv, each row with what it was measured on.

The file is written anew, atomically, after each group of rows: what is measured is not lost when the rest is stopped.
"""

import csv
import dataclasses
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dctps.base.files import write_atomically
from dctps.base.machine import cpu
from dctps.base.provenance import commit
from dctps.ops import native


class Sheet:
    """A table that grows. Earlier files are left alone: a second one of the same day ends in -2."""

    def __init__(self, kind: str, out: Path, keep_memory: bool) -> None:
        out.mkdir(parents=True, exist_ok=True)
        now = datetime.datetime.now(datetime.UTC)
        version = torch.__version__.split("+")[0]
        self.path = _free(out, f"bench-{kind}-{_plain(cpu())}-torch{version}-{now.date().isoformat()}")
        self.rows: list[dict[str, Any]] = []
        self.origin = {
            "keep_memory": keep_memory,
            "cpu": cpu(),
            "instruction_set": native.instruction_set(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "commit": commit(),
            "date": now.isoformat(timespec="seconds"),
        }

    def add(self, rows: Sequence[Any]) -> None:
        """Rows are instances of one dataclass; its fields are the columns."""
        self.rows += [{**_cells(row), **self.origin} for row in rows]
        write_atomically(self.path, self._write)

    def _write(self, path: Path) -> None:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(self.rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)


def _cells(row: Any) -> dict[str, Any]:
    """Times and ratios to five significant digits: no clock has more."""
    cells = dataclasses.asdict(row)
    rounded = {k: float(f"{v:.5g}") for k, v in cells.items() if isinstance(v, float) and k != "density"}
    return cells | rounded


def _plain(name: str) -> str:
    """A processor's name as a part of a file name."""
    return "_".join("".join(c if c.isalnum() or c in ".-" else " " for c in name).split())


def _free(out: Path, stem: str) -> Path:
    path, number = out / f"{stem}.csv", 1
    while path.exists():
        number += 1
        path = out / f"{stem}-{number}.csv"
    return path
