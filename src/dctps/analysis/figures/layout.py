"""Pages of panels: their fonts and sizes, the title, the legend and small print below the panels, and their files."""

import contextlib
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dctps.base.extras import is_installed, missing
from dctps.base.files import write_atomically

WHY_NOT = missing("matplotlib", "a figure")
SETTINGS: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, hence the same on every machine
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.labelsize": 9.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "legend.borderpad": 0,
    "legend.borderaxespad": 0,
    "legend.handlelength": 2.2,
    "legend.columnspacing": 1.4,
    "legend.labelspacing": 0.35,
    "lines.linewidth": 1.6,
    "lines.markersize": 6,
    "lines.markeredgewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "pdf.fonttype": 42,  # text in a PDF stays text
}
WIDTHS = {1: 5.6, 2: 8.0, 3: 10.0}  # inches of a page with so many columns
DPI = 160


def available() -> bool:
    """Return whether matplotlib is installed."""
    return is_installed("matplotlib")


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Give everything that is drawn inside the context the fonts and lines of SETTINGS."""
    import matplotlib as mpl

    with mpl.rc_context(SETTINGS):
        yield


def panel_grid(count: int, columns: int, height: float = 2.8, **options: Any) -> tuple[Any, list[Any]]:
    """Return a figure with `count` panels of a height in inches, and their axes.

    Places of the grid that are left over stay empty. The options go to matplotlib's `subplots`.
    """
    from matplotlib.figure import Figure

    columns = min(columns, count)
    rows = -(-count // columns)
    figure: Any = Figure(figsize=(WIDTHS[columns], height * rows), layout="constrained", dpi=DPI)
    figure.get_layout_engine().set(h_pad=0.06, w_pad=0.06)
    axes = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for empty in axes[count:]:
        empty.set_visible(False)
    return figure, axes[:count]


def finish(figure: Any, title: str, words: str, handles: Sequence[Any]) -> None:
    """Add the title, one legend below all panels, and the words under it in small print; the page grows accordingly."""
    width, panels = figure.get_size_inches()
    small = textwrap.fill(words, int(width * 18))
    columns = _legend_columns([len(handle.get_label()) for handle in handles], width)
    print_height, legend_height = 0.06 + 0.13 * (small.count("\n") + 1), 0.175 * -(-len(handles) // columns)
    below = print_height + legend_height + 0.2
    height = panels + below + 0.3
    figure.set_size_inches(width, height)
    figure.get_layout_engine().set(rect=(0, below / height, 1, 1 - below / height))
    figure.suptitle(title, fontsize=12)
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, (print_height + 0.09) / height)}
    figure.legend(handles=_by_rows(handles, columns), ncols=columns, **place)
    figure.text(0.5, 0.06 / height, small, fontsize=7.5, color="#444444", ha="center", va="bottom", label="small print")


def _legend_columns(lengths: Sequence[int], width: float) -> int:
    """Return how many columns of labels, whose lengths are in letters, fit into a width in inches."""
    for columns in range(len(lengths), 1, -1):
        if sum(0.075 * max(lengths[c::columns]) + 0.6 for c in range(columns)) <= width:
            rows = -(-len(lengths) // columns)
            return -(-len(lengths) // rows)  # the fewest columns with so many rows, so that the last row is well filled
    return 1


def _by_rows(handles: Sequence[Any], columns: int) -> list[Any]:
    """Order the entries so that a legend, which matplotlib fills column by column, reads row by row."""
    rows = -(-len(handles) // columns)
    full = len(handles) - columns * (rows - 1)  # columns that have an entry in the last row
    order = [row * columns + c for c in range(columns) for row in range(rows if c < full else rows - 1)]
    return [handles[i] for i in order]


def remark(axes: Any, text: str) -> None:
    """Write a text, unless it is empty, into the lower left corner of a panel."""
    if text:
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5}
        place = {"transform": axes.transAxes, "ha": "left", "va": "bottom", "zorder": 5}
        axes.text(0.03, 0.04, text, fontsize=8, bbox=box, **place)


def save(figure: Any, stem: Path) -> list[Path]:
    """Write a figure as PNG and PDF, without dates, so that equal figures are equal files; return the paths."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # both files keep the layout that was just computed
    paths = []
    for ending, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
        path = stem.with_name(f"{stem.name}.{ending}")  # with_suffix would cut a stem that has a point
        write_atomically(path, lambda file, e=ending, m=metadata: figure.savefig(file, format=e, metadata=m))  # type: ignore[misc]
        paths.append(path)
    return paths
