"""Pages of panels: the grid, the title, the legend and small print below the panels, axes of decades, and files."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dctps.analysis.figures import style
from dctps.base.extras import is_installed, missing
from dctps.base.files import write_atomically

WHY_NOT = missing("matplotlib", "a figure")


def available() -> bool:
    """Return whether matplotlib is installed."""
    return is_installed("matplotlib")


def panel_grid(count: int, columns: int, height: float = 2.8, **options: Any) -> tuple[Any, list[Any]]:
    """Return a figure with `count` panels of a height in inches, and their axes.

    Places of the grid that are left over stay empty. The options go to matplotlib's `subplots`.
    """
    from matplotlib.figure import Figure

    columns = min(columns, count)
    rows = -(-count // columns)
    figure: Any = Figure(figsize=(style.WIDTHS[columns], height * rows), layout="constrained", dpi=style.DPI)
    figure.get_layout_engine().set(h_pad=0.06, w_pad=0.06)
    axes = list(figure.subplots(rows, columns, squeeze=False, **options).flat)
    for empty in axes[count:]:
        empty.set_visible(False)
    return figure, axes[:count]


def finish(figure: Any, title: str, words: str, handles: Sequence[Any]) -> None:
    """Add the title, one legend below all panels, and the words under it in small print; the page grows accordingly."""
    width, panels = figure.get_size_inches()
    small = _wrapped(words, int(width * 17))
    columns = _legend_columns([len(handle.get_label()) for handle in handles], width)
    print_height, legend_height = 0.06 + 0.13 * (small.count("\n") + 1), 0.175 * -(-len(handles) // columns)
    below = print_height + legend_height + 0.2
    height = panels + below + 0.3
    figure.set_size_inches(width, height)
    figure.get_layout_engine().set(rect=(0, below / height, 1, 1 - below / height))
    figure.suptitle(title)
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, (print_height + 0.09) / height)}
    figure.legend(handles=_by_rows(handles, columns), ncols=columns, **place)
    text = {"fontsize": style.SMALL_PRINT, "color": style.SOFT_INK, "ha": "center", "va": "bottom"}
    figure.text(0.5, 0.06 / height, small, label="small print", **text)


def _wrapped(words: str, most: int) -> str:
    """Break a text into lines of at most so many letters, as few as possible and of nearly the same length."""
    tries = (textwrap.wrap(words, limit, break_long_words=False) for limit in range(1, most + 1))
    count = len(textwrap.wrap(words, most, break_long_words=False))
    return "\n".join(next(lines for lines in tries if len(lines) == count))


def _legend_columns(lengths: Sequence[int], width: float) -> int:
    """Return how many columns of labels, whose lengths are in letters, fit into a width in inches."""
    for columns in range(len(lengths), 1, -1):
        if sum(0.075 * max(lengths[c::columns]) + 0.61 for c in range(columns)) <= width:
            rows = -(-len(lengths) // columns)
            return -(-len(lengths) // rows)  # the fewest columns with so many rows, so that the last row is well filled
    return 1


def _by_rows(handles: Sequence[Any], columns: int) -> list[Any]:
    """Order the entries so that a legend, which matplotlib fills column by column, reads row by row."""
    rows = -(-len(handles) // columns)
    full = len(handles) - columns * (rows - 1)  # columns that have an entry in the last row
    order = [row * columns + c for c in range(columns) for row in range(rows if c < full else rows - 1)]
    return [handles[i] for i in order]


def split_grid(panels: Sequence[Sequence[Any]], columns: int, height: float = 2.8) -> tuple[Any, list[Any], list[Any]]:
    """Return a figure, the axes of all parts of panels, and the parts in the same order.

    Panels that are whole come first. The parts of a split panel stand side by side, from the start of a row.
    """
    columns = min(3, max(len(panel) for panel in panels)) if any(len(panel) > 1 for panel in panels) else columns
    places: list[Any] = [part for panel in panels if len(panel) == 1 for part in panel]
    for panel in (panel for panel in panels if len(panel) > 1):
        places += [None] * (-len(places) % columns) + list(panel)
    figure, grid = panel_grid(len(places), columns, height)
    for axes, part in zip(grid, places, strict=True):
        axes.set_visible(part is not None)
    drawn = [(axes, part) for axes, part in zip(grid, places, strict=True) if part is not None]
    return figure, [axes for axes, _ in drawn], [part for _, part in drawn]


def share_y(grid: Sequence[Any]) -> None:
    """Give several panels the same vertical axis, which shows all that each of them showed."""
    limits = [axes.get_ylim() for axes in grid]
    for axes in grid:
        axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def set_decades(axis: Any) -> None:
    """Put at most seven ticks on a logarithmic axis, at powers of ten that are multiples of 1, 2, 3, 5, 10 or more."""
    from matplotlib.ticker import FixedLocator, NullLocator

    low, high = (math.log10(limit) for limit in axis.get_view_interval())
    step = next((step for step in (1, 2, 3, 5, 10, 20, 50) if high - low <= 6 * step), 100)
    first = math.ceil(low / step)
    axis.set_major_locator(FixedLocator([10.0 ** (step * k) for k in range(first, math.floor(high / step) + 1)]))
    axis.set_minor_locator(NullLocator())


# --- files ----------------------------------------------------------------------------------------------------------

METADATA: dict[str, Any] = {"png": {"Software": None}, "pdf": {"CreationDate": None}}  # equal figures are equal files


def write(figure: Any, path: Path, ending: str = "png") -> None:
    """Write a figure to a file, without dates and versions."""
    figure.savefig(path, format=ending, metadata=METADATA[ending])


def save(figure: Any, stem: Path) -> list[Path]:
    """Write a figure as PNG and PDF; return the paths."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # both files keep the layout that was just computed
    for axes in figure.axes:  # the last digits depend on where the solver of the layout has its numbers in memory
        axes.set_position([round(number, 6) for number in axes.get_position().bounds])
    paths = []
    for ending in METADATA:
        path = stem.with_name(f"{stem.name}.{ending}")  # with_suffix would cut a stem that has a point
        write_atomically(path, lambda file, e=ending: write(figure, file, e))  # type: ignore[misc]
        paths.append(path)
    return paths
