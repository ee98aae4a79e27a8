"""Where measurements go: <out>/<name>.csv, each row with the machine, the versions and the commit it was measured on.

The name says what is measured (see `names`). A new run replaces the table of an earlier one: its first rows take the
place of the whole file, and the file is written anew, atomically, after each further group of rows. So a file never
holds rows of two runs, and what is measured is not lost when the rest is stopped.
"""

import csv
import dataclasses
import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from dctps.base.files import write_atomically
from dctps.base.machine import cpu, torch_instruction_set
from dctps.base.provenance import commit
from dctps.ops import native


class Sheet:
    """The table of one run, which grows while the run measures, and the figure that has the same name."""

    def __init__(self, name: str, out: Path, keep_memory: bool) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.path, self.figure = out / f"{name}.csv", out / f"{name}.png"
        self.rows: list[dict[str, Any]] = []
        self.origin = {
            "keep_memory": keep_memory,
            "cpu": cpu(),
            "instruction_set": native.instruction_set(),
            "torch_instruction_set": torch_instruction_set(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "commit": commit(),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }

    def add(self, rows: Sequence[Any]) -> None:
        """Append rows and write the file. They are instances of one dataclass; its fields are the columns."""
        if not self.rows:
            self.figure.unlink(missing_ok=True)  # it shows the run whose table is replaced now
        self.rows += [{**_cells(row), **self.origin} for row in rows]
        write_atomically(self.path, self._write)

    def draw(self, draw: Callable[[Path], object]) -> None:
        """Write the figure; `draw` saves it as the PNG file it is given."""
        write_atomically(self.figure, draw)

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
