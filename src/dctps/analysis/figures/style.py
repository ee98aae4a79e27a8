"""The house style of all figures: the one place for fonts, sizes, widths of lines, markers, the grid and plain colours.

Every figure is drawn inside `styled()`, on a page of `dctps.analysis.figures.layout`. The colours, markers and dashes
of methods are in `dctps.analysis.looks`, which the page of a folder of runs shares.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

# --- text, in points ------------------------------------------------------------------------------------------------

PAGE_TITLE, PANEL_TITLE, TEXT, TICK, NOTE, SMALL_PRINT, INSET = 12, 10.5, 9.5, 8.5, 8.5, 7.5, 7

# --- lines and markers, in points -----------------------------------------------------------------------------------

LINE, THIN, HAIR = 1.6, 1.2, 0.8  # a method; one of many lines or a second line of a method; a line to compare with
MARKER, EDGE, DOT, SMALL_DOT, RING = 6, 0.6, 4, 2.4, 5
CAP = 3  # the half width of the end of an error bar

# --- colours --------------------------------------------------------------------------------------------------------

INK, SOFT_INK, PAPER, PALE = "black", "#444444", "white", "#f6f6f6"
BAND, FAINT_BAND = 0.2, 0.12  # opacities of a deviation: of a method, of the dense network

# --- pages, in inches -----------------------------------------------------------------------------------------------

WIDTHS = {1: 5.6, 2: 8.0, 3: 10.0}  # of a page with so many columns
DPI = 160
MOST_LINES = 6  # of methods or densities in a panel; beside them stand the dense network, chance and guides

SETTINGS: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, hence the same on every machine
    "font.size": TEXT,
    "axes.titlesize": PANEL_TITLE,
    "axes.labelsize": TEXT,
    "xtick.labelsize": TICK,
    "ytick.labelsize": TICK,
    "figure.titlesize": PAGE_TITLE,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "legend.borderpad": 0,
    "legend.borderaxespad": 0,
    "legend.handlelength": 2.6,  # long enough for a dash on either side of a marker
    "legend.columnspacing": 1.4,
    "legend.labelspacing": 0.35,
    "lines.linewidth": LINE,
    "lines.markersize": MARKER,
    "lines.markeredgewidth": EDGE,
    "errorbar.capsize": CAP,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "pdf.fonttype": 42,  # text in a PDF stays text
}


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Give everything that is drawn inside the context the fonts, lines and grid of SETTINGS."""
    import matplotlib as mpl

    with mpl.rc_context(SETTINGS):
        yield
