"""The looks of lines in matplotlib's words, the legend, and the colours of densities."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from dctps.analysis.figures import style
from dctps.analysis.looks import (
    BLUE,
    DASH_DOT,
    DASH_DOT_DOT,
    DASHED,
    DOTTED,
    GREEN,
    GREY,
    LONG_DASHED,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    SOLID,
    TEXT,
    Look,
    look_of,
)
from dctps.base.words import percent

MARKERS = {
    None: "",
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "diamond-tall": "d",
    "triangle-up": "^",
    "triangle-down": "v",
    "triangle-left": "<",
    "triangle-right": ">",
    "cross": "P",
    "x": "X",
    "star": "*",
    "pentagon": "p",
    "hexagon": "h",
}
# Times the size of the style's markers: with these factors all look equally large.
FACTORS = {
    "star": 5 / 3,
    "cross": 1.25,
    "x": 1.25,
    "diamond": 0.92,
    "diamond-tall": 7 / 6,
    "pentagon": 1.25,
    "hexagon": 7 / 6,
}
DASHES: dict[str, Any] = {  # matplotlib has "-", or an offset and the lengths of strokes and gaps
    SOLID: "-",
    DASHED: (0, (4, 2)),
    DOTTED: (0, (1.2, 1.4)),
    LONG_DASHED: (0, (9, 2)),
    DASH_DOT: (0, (6, 1.5, 1.2, 1.5)),
    DASH_DOT_DOT: (0, (6, 1.2, 1.2, 1.2, 1.2, 1.2)),
}
FREE = (  # for lines whose names are not in LOOKS
    Look(BLUE, "circle"),
    Look(RED, "square"),
    Look(GREEN, "diamond"),
    Look(PURPLE, "triangle-up"),
    Look(SKY, "triangle-down"),
    Look(ORANGE, "cross"),
    Look(TEXT, "x"),
    Look(GREY, "star"),
)
CHANCE: dict[str, Any] = {"color": GREY, "linewidth": style.HAIR, "linestyle": DASHES[DOTTED]}


# --- one line -------------------------------------------------------------------------------------------------------


def colour_of(look: Look) -> str:
    """Return the colour of a look as matplotlib writes it."""
    return style.INK if look.colour == TEXT else look.colour


def line_options(look: Look) -> dict[str, Any]:
    """Return the options of matplotlib's `plot` for a look."""
    colour = colour_of(look)
    face, edge = (colour, style.PAPER) if look.filled else (style.PAPER, colour)
    marker = {"marker": MARKERS[look.marker], "markerfacecolor": face, "markeredgecolor": edge}
    size = style.MARKER * FACTORS.get(look.marker or "", 1)
    return {"color": colour, "linestyle": DASHES[look.dash], "markersize": size, **marker}


def collapsed_options(look: Look) -> dict[str, Any]:
    """Return the options for densities at which the method collapsed: dashed, with hollow markers."""
    return {**line_options(dataclasses.replace(look, dash=DASHED, filled=False)), "linewidth": style.THIN}


def chance_line(axes: Any, chance: float | None) -> None:
    """Draw the accuracy of guessing, if it is known, as a line over the whole width."""
    if chance is not None:
        axes.axhline(100 * chance, label="_chance", zorder=1, **CHANCE)


# --- all lines of a figure ------------------------------------------------------------------------------------------


def assign_looks(names: Sequence[str]) -> dict[str, Look]:
    """Return a look for each line of a figure; lines without an entry in LOOKS get markers that no other line has."""
    known = {name: look_of(name) for name in names}
    taken = {look.marker for look in known.values() if look is not None}
    free = itertools.cycle([look for look in FREE if look.marker not in taken] or FREE)
    return {name: look or next(free) for name, look in known.items()}


def legend_handles(grid: Sequence[Any], looks: dict[str, Look]) -> list[Any]:
    """Return the entries of a legend: the lines that some panel of the grid shows, then chance."""
    from matplotlib.lines import Line2D

    drawn = {line.get_label() for axes in grid for line in axes.get_lines()}
    handles = [Line2D([], [], label=name, **line_options(look)) for name, look in looks.items() if name in drawn]
    if "_chance" in drawn:
        handles.append(Line2D([], [], label="chance", **CHANCE))
    return handles


# --- densities ------------------------------------------------------------------------------------------------------


def density_colours(densities: Sequence[float]) -> dict[float, Any]:
    """Return a colour for each density, the darker the lower, so that their order is seen in grey too."""
    from matplotlib import colormaps

    colours = colormaps["viridis"]
    ordered = sorted(set(densities))
    return {density: colours(0.88 * i / max(1, len(ordered) - 1)) for i, density in enumerate(ordered)}


def density_handles(colours: dict[float, Any]) -> list[Any]:
    """Return the entries of a legend of densities, from the highest down."""
    from matplotlib.lines import Line2D

    options: dict[str, Any] = {"marker": "o", "markersize": style.DOT, "markeredgewidth": 0}
    ordered = sorted(colours.items(), reverse=True)
    return [Line2D([], [], color=colour, label=percent(density), **options) for density, colour in ordered]
