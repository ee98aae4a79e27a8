"""Accuracy against density: a line for each method, with its deviation, the dense network, and collapses dashed."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from dctps.analysis.figures import style
from dctps.base.words import percent
from dctps.experiments.paper import DENSE, EXPERIMENTS, Experiment
from dctps.experiments.sheet import Training
from dctps.experiments.summary import Point, chance, points

COLUMNS = {1: 1, 3: 3}  # panels -> columns; two otherwise, as in the paper
COLLAPSE = "collapsed (at chance)"


def accuracy_figure(lines: Sequence[Training]) -> dict[str, Any]:
    """A panel for each network and data set."""
    experiment, panels = EXPERIMENTS[lines[0].experiment], style.by_panel(lines)
    looks = style.looks(list(dict.fromkeys(one.line for one in lines)))
    with style.styled():
        figure, grid = style.page(len(panels), COLUMNS.get(len(panels), 2))
        for axes, own in zip(grid, panels.values(), strict=True):
            _panel(axes, own, experiment, looks)
        style.finish(figure, style.title(experiment), _words(lines), _handles(grid, looks))
    return {"": figure}


def _panel(axes: Any, lines: Sequence[Training], experiment: Experiment, looks: dict[str, style.Look]) -> None:
    made = points(lines, experiment.validation)
    for name, look in looks.items():
        own = sorted((p for p in made if p.line == name and p.density is not None), key=lambda p: p.density or 0)
        _curve(axes, own, name, look, experiment.by_count)
    style.chance_line(axes, chance(lines[0].data))
    _dense(axes, [p for p in made if p.line == DENSE and p.density is None])
    axes.set_title(style.panel_title(lines))
    axes.set_ylabel(f"{'validation' if experiment.validation else 'test'} accuracy, %")
    top = 1.06 * axes.get_ylim()[1]  # room for the words over the dense network's line, and for markers at zero
    axes.set_ylim(-0.02 * top, top)
    _x_axis(axes, [p for p in made if p.density is not None], experiment.by_count)


def _curve(axes: Any, own: Sequence[Point], name: str, look: style.Look, by_count: bool) -> None:
    """The line through all densities that have a mean: broken at a gap, dashed to and between collapses."""
    if not any(p.mean is not None for p in own):
        return
    nothing = float("nan")
    x = [_x(p, by_count) for p in own]
    y = [nothing if p.mean is None else 100 * p.mean for p in own]
    sound = [nothing if p.is_chance else value for p, value in zip(own, y, strict=True)]
    axes.plot(x, sound, label=name, zorder=3, **look.line())
    stds = [0 if p.std is None else 100 * p.std for p in own]
    if any(stds):
        low, high = ([v + sign * std for v, std in zip(sound, stds, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=look.colour, alpha=0.2, linewidth=0, zorder=2)
    _collapses(axes, list(zip(x, y, own, strict=True)), look)


def _collapses(axes: Any, places: Sequence[tuple[float, float, Point]], look: style.Look) -> None:
    options = look.collapsed()
    for (x, y, p), (next_x, next_y, q) in itertools.pairwise(places):
        if p.is_chance or q.is_chance:
            axes.plot((x, next_x), (y, next_y), label="_collapse", zorder=2.5, **options, markevery=[])
    hollow = [(x, y) for x, y, p in places if p.is_chance]
    if hollow:
        axes.plot(*zip(*hollow, strict=True), label="_collapsed", zorder=3, **{**options, "linestyle": ""})


def _x(point: Point, by_count: bool) -> float:
    if not by_count:
        assert point.density is not None
        return point.density
    return float("nan") if point.weights is None else max(1, point.weights)


def _dense(axes: Any, found: Sequence[Point]) -> None:
    if not found or found[0].mean is None:
        return
    mean, std, look = 100 * found[0].mean, found[0].std, style.LOOKS[DENSE]
    axes.axhline(mean, color=look.colour, linestyle=look.dash, linewidth=1.2, label=DENSE, zorder=2)
    if std:
        axes.axhspan(mean - 100 * std, mean + 100 * std, color=look.colour, alpha=0.12, linewidth=0, zorder=1)
    place = {"xytext": (0, 3), "textcoords": "offset points", "va": "bottom", "ha": "left", "fontsize": 8.5}
    axes.annotate(f"dense: {mean:.1f} %", (0.015, mean), xycoords=axes.get_yaxis_transform(), **place)


def _x_axis(axes: Any, own: Sequence[Point], by_count: bool) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_xscale("log")
    axes.set_xlabel("trainable weights" if by_count else "density: trainable share of the weights")
    if by_count:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        densities = sorted({p.density for p in own if p.density is not None})
        axes.set_xticks(densities, _spaced(densities))
        axes.set_xticks([], minor=True)


def _spaced(densities: Sequence[float]) -> list[str]:
    """Labels; where there are many, powers of ten and the last have one, as all would not have room."""
    few = len(densities) <= 6
    return [percent(d) if few or d == densities[-1] or _is_power(d) else "" for d in densities]


def _is_power(density: float) -> bool:
    return math.isclose(math.log10(density), round(math.log10(density)), abs_tol=1e-9)


def _handles(grid: Sequence[Any], looks: dict[str, style.Look]) -> list[Any]:
    from matplotlib.lines import Line2D

    handles = style.handles(grid, looks)
    drawn = {line.get_label() for axes in grid for line in axes.get_lines()}
    if "_collapsed" in drawn:
        handles.append(Line2D([], [], label=COLLAPSE, **style.Look(style.GREY, "o").collapsed()))
    return handles


def _words(lines: Sequence[Training]) -> str:
    seeds = max(point.asked for point in points(lines))
    means = "one seed" if seeds == 1 else f"mean and standard deviation (shaded) of {seeds} seeds"
    return "; ".join(filter(None, (style.trained_words(lines), means, style.missing_words(lines))))
