"""The figures and tables of the paper's experiments, drawn from the lines of a sheet and nothing else."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dctps.analysis.figures import style
from dctps.analysis.figures.accuracy import accuracy_figure
from dctps.analysis.figures.layer_counts import counts_figure
from dctps.analysis.figures.learning import learning_figure
from dctps.analysis.figures.spectra import spectra_figure
from dctps.analysis.figures.style import WHY_NOT, available
from dctps.analysis.figures.table1 import table1
from dctps.analysis.figures.tables import Table, params_table
from dctps.base.registry import lookup
from dctps.experiments.paper import EXPERIMENTS
from dctps.experiments.sheet import Entry, Epoch, read_sheet

__all__ = ["FIGURES", "WHY_NOT", "available", "draw", "make", "redraw"]

LEARNING = "learning"  # of any experiment that trains, from the lines of its epochs
# kind of an experiment -> from its lines to figures and tables, by what is added to the names of their files
FIGURES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "accuracy": accuracy_figure,
    "counts": counts_figure,
    "spectra": spectra_figure,
    "params": params_table,
    "table1": table1,
    LEARNING: learning_figure,
}
TABLES = ("params", "table1")  # these need no matplotlib


def make(lines: Sequence[Entry]) -> dict[str, Any]:
    """The figures (of matplotlib) or tables of an experiment, by what is added to the names of their files."""
    if not lines:
        raise ValueError("no lines to draw a figure from")
    kind = lookup(EXPERIMENTS, lines[0].experiment, "experiment").kind
    if isinstance(lines[0], Epoch):
        kind = LEARNING
    if kind not in TABLES and not available():
        raise ModuleNotFoundError(WHY_NOT)
    return lookup(FIGURES, kind, "kind of figure")(lines)


def draw(lines: Sequence[Entry], folder: Path) -> list[Path]:
    """Write them into a folder, as NAME-SCALE....png and .pdf, or .md and .csv; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix, made in make(lines).items():
        stem = folder / f"{lines[0].experiment}-{lines[0].scale}{suffix}"
        paths += made.save(stem) if isinstance(made, Table) else style.save(made, stem)
    return paths


def redraw(sheet: Path, folder: Path | None = None) -> list[Path]:
    """The figures of a sheet, beside it unless a folder is given."""
    return draw(read_sheet(sheet), sheet.parent if folder is None else folder)
