"""Figures and tables of the paper's experiments, drawn from the rows of a sheet and nothing else."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dctps.analysis.figures import layout
from dctps.analysis.figures.accuracy import accuracy_figure
from dctps.analysis.figures.layer_counts import counts_figure
from dctps.analysis.figures.layout import WHY_NOT, available
from dctps.analysis.figures.learning import learning_figure
from dctps.analysis.figures.spectra import spectra_figure
from dctps.analysis.figures.table1 import table1
from dctps.analysis.figures.tables import Table, params_table
from dctps.base.registry import lookup
from dctps.experiments.catalogue import EXPERIMENTS
from dctps.experiments.sheet import read_sheet
from dctps.experiments.tasks.task import SheetRow
from dctps.experiments.tasks.training import EpochRow

__all__ = ["FIGURES", "WHY_NOT", "available", "draw", "make", "redraw"]

LEARNING = "learning"  # the kind of figure that is drawn from the epochs of any experiment
# Each kind of experiment has a function from its rows to figures or tables, by the suffixes of their file names.
FIGURES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "accuracy": accuracy_figure,
    "counts": counts_figure,
    "spectra": spectra_figure,
    "params": params_table,
    "table1": table1,
    LEARNING: learning_figure,
}
TABLES = ("params", "table1")  # these kinds need no matplotlib


def make(rows: Sequence[SheetRow]) -> dict[str, Any]:
    """Return the figures (of matplotlib) or tables of an experiment by the suffixes of their file names."""
    if not rows:
        raise ValueError("there are no lines to draw a figure from; a sheet needs at least one")
    kind = lookup(EXPERIMENTS, rows[0].experiment, "experiment").kind
    if isinstance(rows[0], EpochRow):
        kind = LEARNING
    if kind not in TABLES and not available():
        raise ModuleNotFoundError(WHY_NOT)
    return lookup(FIGURES, kind, "kind of figure")(rows)


def draw(rows: Sequence[SheetRow], folder: Path) -> list[Path]:
    """Write figures as NAME-SCALE[...].png and .pdf, tables as .md and .csv into a folder; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix, made in make(rows).items():
        stem = folder / f"{rows[0].experiment}-{rows[0].scale}{suffix}"
        paths += made.save(stem) if isinstance(made, Table) else layout.save(made, stem)
    return paths


def redraw(sheet: Path, folder: Path | None = None) -> list[Path]:
    """Draw the figures of a sheet into a folder, by default the one that the sheet lies in."""
    return draw(read_sheet(sheet), sheet.parent if folder is None else folder)
