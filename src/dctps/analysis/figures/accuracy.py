"""Accuracy against density (or weights, or bytes of the file): a line and its deviation for each method.

Beside them are the dense network and, dashed, collapses.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from dctps.analysis.figures import captions, layout, style
from dctps.analysis.figures.groups import Part, parts
from dctps.analysis.figures.looks import (
    DASHES,
    assign_looks,
    chance_line,
    collapsed_options,
    colour_of,
    legend_handles,
    line_options,
)
from dctps.analysis.looks import GREY, LOOKS, Look
from dctps.base.words import percent
from dctps.experiments.catalogue import EXPERIMENTS, Experiment
from dctps.experiments.paper import DENSE
from dctps.experiments.summary import Point, chance, points
from dctps.experiments.tasks.training import TrainingRow

COLUMNS = {1: 1, 3: 3}  # panels -> columns; two columns otherwise, as in the paper
COLLAPSE = "collapsed (at chance)"
NAN = float("nan")  # matplotlib leaves a gap there


def accuracy_figure(rows: Sequence[TrainingRow]) -> dict[str, Any]:
    """Draw a panel for each network and data set; one with many lines is split into parts."""
    experiment = EXPERIMENTS[rows[0].experiment]
    panels = [_parts(group, experiment) for group in captions.by_panel(rows).values()]
    looks = assign_looks(list(dict.fromkeys(row.line for row in rows)))
    with style.styled():
        figure, grid, shown = layout.split_grid(panels, COLUMNS.get(len(panels), 2))
        for axes, part in zip(grid, shown, strict=True):
            _draw_panel(axes, part, experiment, looks)
        for panel in panels:
            layout.share_y([axes for axes, part in zip(grid, shown, strict=True) if part in panel])
        layout.finish(figure, captions.page_title(experiment), _words(rows), _handles(grid, looks))
    return {"": figure}


def _parts(rows: Sequence[TrainingRow], experiment: Experiment) -> list[Part]:
    """Return the parts of the panel with these rows; lines without any result need no room."""
    found = points(rows, experiment.validation)
    return parts(rows[0].experiment, rows, list(dict.fromkeys(p.line for p in found if p.mean is not None)))


def _draw_panel(axes: Any, part: Part, experiment: Experiment, looks: dict[str, Look]) -> None:
    rows, found = part.rows, points(part.rows, experiment.validation)
    sparse = sorted((p for p in found if p.density is not None), key=lambda p: p.density or 0)
    shifts = _shifts(part.lines, sparse, experiment.axis)
    for name in part.lines:
        own = [p for p in sparse if p.line == name]
        _draw_curve(axes, own, [shifts[name] * _x(p, experiment.axis) for p in own], name, looks[name])
    chance_line(axes, chance(rows[0].data))
    _draw_dense(axes, [p for p in found if p.line == DENSE and p.density is None])
    axes.set_title(part.titled(captions.panel_title(rows)))
    axes.set_ylabel(f"{'validation' if experiment.validation else 'test'} accuracy, %")
    top = 1.06 * axes.get_ylim()[1]  # leaves room for the words over the dense network's line
    axes.set_ylim(-0.02 * top, top)  # and for markers at zero
    _set_x_axis(axes, sparse, experiment.axis)


# --- curves ---------------------------------------------------------------------------------------------------------


def _draw_curve(axes: Any, curve: Sequence[Point], x: Sequence[float], name: str, look: Look) -> None:
    """Draw a line through all densities that have a mean: broken at a gap, dashed to and between collapses."""
    if not any(p.mean is not None for p in curve):
        return
    y = [NAN if p.mean is None else 100 * p.mean for p in curve]
    measured = [NAN if p.is_chance else value for p, value in zip(curve, y, strict=True)]
    axes.plot(x, measured, label=name, zorder=3, **line_options(look))
    deviations = [0 if p.std is None else 100 * p.std for p in curve]
    if any(deviations):
        _draw_deviations(axes, x, measured, deviations, colour_of(look))
    _draw_collapses(axes, list(zip(x, y, curve, strict=True)), look)


def _draw_deviations(
    axes: Any, x: Sequence[float], y: Sequence[float], deviations: Sequence[float], colour: str
) -> None:
    """Shade the deviations around a line; a point without a neighbour has a bar, as a band would have no width."""
    low, high = ([m + sign * d for m, d in zip(y, deviations, strict=True)] for sign in (-1, 1))
    axes.fill_between(x, low, high, color=colour, alpha=style.BAND, linewidth=0, zorder=2)
    around = [NAN, *y, NAN]
    for i, deviation in enumerate(deviations):
        if deviation and math.isnan(around[i]) and math.isnan(around[i + 2]):
            axes.errorbar(x[i], y[i], deviation, fmt="none", ecolor=colour, elinewidth=style.THIN, zorder=2.5)


def _draw_collapses(axes: Any, places: Sequence[tuple[float, float, Point]], look: Look) -> None:
    options = collapsed_options(look)
    for (x, y, p), (next_x, next_y, q) in itertools.pairwise(places):
        if p.is_chance or q.is_chance:
            axes.plot((x, next_x), (y, next_y), label="_collapse", zorder=2.5, **options, markevery=[])
    hollow = [(x, y) for x, y, p in places if p.is_chance]
    if hollow:
        axes.plot(*zip(*hollow, strict=True), label="_collapsed", zorder=3, **{**options, "linestyle": ""})


def _draw_dense(axes: Any, found: Sequence[Point]) -> None:
    if not found or found[0].mean is None:
        return
    mean, deviation, look = 100 * found[0].mean, found[0].std, LOOKS[DENSE]
    colour = colour_of(look)
    axes.axhline(mean, color=colour, linestyle=DASHES[look.dash], linewidth=style.THIN, label=DENSE, zorder=2)
    if deviation:
        low, high = mean - 100 * deviation, mean + 100 * deviation
        axes.axhspan(low, high, color=colour, alpha=style.FAINT_BAND, linewidth=0, zorder=1)
    place = {"xytext": (0, 3), "textcoords": "offset points", "va": "bottom", "ha": "left", "fontsize": style.NOTE}
    axes.annotate(f"dense: {mean:.1f} %", (0.015, mean), xycoords=axes.get_yaxis_transform(), **place)


# --- the axis of densities ------------------------------------------------------------------------------------------


AXES = {
    "density": "density: trainable share of the weights",
    "weights": "trainable weights",
    "bytes": "size of the file, kB",
}


def _x(point: Point, axis: str) -> float:
    """Return the place of a point on the axis: its density, its number of weights or the bytes of its file."""
    place = {"density": point.density, "weights": point.weights, "bytes": point.bytes}[axis]
    return NAN if place is None else place if axis == "density" else max(1, place)


def _shifts(lines: Sequence[str], sparse: Sequence[Point], axis: str) -> dict[str, float]:
    """Return the factors that move lines aside where all have one density, so that no marker hides another."""
    if axis != "density" or len({p.density for p in sparse}) != 1:
        return dict.fromkeys(lines, 1.0)
    return {name: 1.08 ** (place - (len(lines) - 1) / 2) for place, name in enumerate(lines)}


def _set_x_axis(axes: Any, sparse: Sequence[Point], axis: str) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_xscale("log")
    axes.set_xlabel(AXES[axis])
    if axis != "density":
        subs, words = ((1, 2, 5), "{x:,.0f}") if axis == "weights" else ((1, 2, 3, 5), _kilobytes)
        axes.xaxis.set_major_locator(LogLocator(subs=subs))
        axes.xaxis.set_major_formatter(words)
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        densities = sorted({p.density for p in sparse if p.density is not None})
        axes.set_xticks(densities, _tick_labels(densities))
        axes.set_xticks([], minor=True)
        if densities:
            room = max(1.5, densities[-1] / densities[0]) ** (0.06 if len(densities) > 1 else 1)
            axes.set_xlim(densities[0] / room, densities[-1] * room)


def _kilobytes(number: float, _: int) -> str:
    return f"{number / 1000:,g}"


def _tick_labels(densities: Sequence[float]) -> list[str]:
    """Label all of up to six densities; of more, the powers of ten and the last, as all would not have room."""
    few = len(densities) <= 6
    return [percent(d) if few or d == densities[-1] or _is_power_of_ten(d) else "" for d in densities]


def _is_power_of_ten(density: float) -> bool:
    return math.isclose(math.log10(density), round(math.log10(density)), abs_tol=1e-9)


# --- words ----------------------------------------------------------------------------------------------------------


def _handles(grid: Sequence[Any], looks: dict[str, Look]) -> list[Any]:
    from matplotlib.lines import Line2D

    handles = legend_handles(grid, looks)
    drawn = {line.get_label() for axes in grid for line in axes.get_lines()}
    if "_collapsed" in drawn:
        handles.append(Line2D([], [], label=COLLAPSE, **collapsed_options(Look(GREY, "circle"))))
    return handles


def _words(rows: Sequence[TrainingRow]) -> str:
    seeds = max(point.asked - point.missing for point in points(rows))
    means = "one seed" if seeds <= 1 else f"mean and standard deviation (band or bar) of {seeds} seeds"
    aside = "side by side: lines of one density" if _are_aside(rows) else ""
    return captions.joined(captions.training_words(rows), means, aside, captions.missing_words(rows))


def _are_aside(rows: Sequence[TrainingRow]) -> bool:
    """Return whether lines of some panel are moved aside."""
    experiment = EXPERIMENTS[rows[0].experiment]
    sparse = [[p for p in points(group) if p.density is not None] for group in captions.by_panel(rows).values()]
    return any(set(_shifts([p.line for p in own], own, experiment.axis).values()) - {1.0} for own in sparse)
