"""How many trainable weights each layer has: a panel for each network and method, a curve for each density.

The axis is linear below one weight and logarithmic above, so that layers which lost all their weights are seen at zero;
they are ringed. Where other layers come close to that, an inset in the panel's head shows, on a linear axis and over
the same layers, those with few weights or none, at the lowest and the highest density that leaves any layer without
(paper: Figure 5).
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from dctps.analysis.figures import style
from dctps.base.words import percent
from dctps.experiments.paper import EXPERIMENTS
from dctps.experiments.results import DONE
from dctps.experiments.sheet import Layer
from dctps.experiments.tasks import COLLAPSED

MANY = 3  # methods: from here on each network has a figure of its own
FEW_WEIGHTS = 10  # that a layer may have to be in an inset
LINEAR = 0.6  # decades that the linear part of the axis, zero to one weight, is as long as
HEAD = 0.3  # of a panel's height, for an inset
EMPTY = "layer without weights"
Curves = dict[float, list[float]]  # density -> weights of each layer


def counts_figure(lines: Sequence[Layer]) -> dict[str, Any]:
    methods = dict.fromkeys(one.line for one in lines)
    if len(methods) < MANY:
        return {"": _page(lines)}
    return {f"-{style.slug(panel)}": _page(own) for panel, own in style.by_panel(lines).items()}


def _page(lines: Sequence[Layer]) -> Any:
    """Networks below one another, methods side by side; one network alone: in two columns."""
    panels = style.by_panel(lines)
    cells = [(own, method) for own in panels.values() for method in dict.fromkeys(one.line for one in own)]
    colours = style.shades([one.density for one in lines if one.density is not None])
    experiment, alone = EXPERIMENTS[lines[0].experiment], len(panels) == 1
    with style.styled():
        figure, grid = style.page(len(cells), 2, 2.9 if alone else 2.7)
        for axes, (own, method) in zip(grid, cells, strict=True):
            _panel(axes, [one for one in own if one.line == method], colours)
            axes.set_title(_title(own, method, len(panels), len(cells)))
        for panel, own in panels.items():
            _y_axis([axes for axes, (lines_of, _) in zip(grid, cells, strict=True) if lines_of[0].panel == panel], own)
        title = f"{style.title(experiment)}: {style.panel_title(lines)}" if alone else style.title(experiment)
        words = "; ".join(filter(None, (style.untrained_words(lines), style.missing_words(lines))))
        style.finish(figure, title, words, _handles(grid, colours))
    return figure


def _title(lines: Sequence[Layer], method: str, panels: int, cells: int) -> str:
    """What is not said above all panels, the network, the method, or both; and where the method collapsed."""
    network, both = style.panel_title(lines), f"{style.panel_title(lines)}: {method}"
    name = method if panels == 1 else both if cells > panels else network
    collapsed = [one.density for one in lines if one.line == method and one.status == COLLAPSED]
    return "\n".join(filter(None, (name, style.listed("collapsed", collapsed))))


def _panel(axes: Any, lines: Sequence[Layer], colours: dict[float, Any]) -> None:
    curves = curves_of(lines)
    for density, weights in curves.items():
        _curve(axes, weights, colours[density], percent(density))
    axes.set_yscale("symlog", linthresh=1, linscale=LINEAR)
    axes.set(xlabel="layer", ylabel="trainable weights")
    layers = max(map(len, curves.values()), default=1)
    axes.set_xticks([1, *range(10, layers + 1, 10)] if layers > 25 else [1, *range(5, layers + 1, 5)])
    low = lowest(curves)
    if low:
        _inset(axes, low, colours)


def curves_of(lines: Sequence[Layer]) -> Curves:
    """The weights of each layer, a mean over seeds where there are several; from the highest density down."""
    found: dict[float, dict[int, list[int]]] = {}
    for one in lines:
        if one.status == DONE and one.density is not None and one.index is not None and one.nnz is not None:
            found.setdefault(one.density, {}).setdefault(one.index, []).append(one.nnz)
    return {d: [statistics.fmean(own[i]) for i in sorted(own)] for d, own in sorted(found.items(), reverse=True)}


def _curve(axes: Any, weights: Sequence[float], colour: Any, label: str) -> None:
    x = range(1, len(weights) + 1)
    axes.plot(x, weights, color=colour, linewidth=1.1, marker="o", markersize=2.2, markeredgewidth=0, label=label)
    empty = [i for i, count in zip(x, weights, strict=True) if count == 0]
    if empty:
        ring = {"marker": "o", "markersize": 5, "markerfacecolor": "none", "markeredgecolor": colour}
        axes.plot(empty, [0] * len(empty), linestyle="", label="_empty", clip_on=False, zorder=4, **ring)


def _y_axis(group: Sequence[Any], lines: Sequence[Layer]) -> None:
    """Of a network's panels: from zero by powers of ten, with room for insets above the curves."""
    top = math.log10(max(10, *(one.nnz or 0 for one in lines))) + 0.2
    decades = range(math.floor(top) + 1)
    part = 1 - HEAD if any(axes.child_axes for axes in group) else 1  # of the axis, for the curves
    for axes in group:
        axes.set_yticks([0, *(10**k for k in decades)], ["0", "1", "10", *(f"$10^{k}$" for k in decades[2:])])
        axes.set_yticks([], minor=True)
        axes.set_ylim(-0.25, 10 ** ((LINEAR + top) / part - LINEAR))
        axes.yaxis.label.set_y(part / 2)


def lowest(curves: Curves) -> Curves:
    """What an inset shows: the lowest and the highest density that leave some layer with none of its weights.

    Nothing, if all other layers have many: then the rings say it all.
    """
    with_empty = sorted(density for density, own in curves.items() if 0 in own and max(own) > 0)
    if not with_empty or not any(0 < count <= FEW_WEIGHTS for count in curves[with_empty[0]]):
        return {}
    return {density: curves[density] for density in dict.fromkeys([*with_empty[:1], *with_empty[-1:]])}


def _inset(axes: Any, low: Curves, colours: dict[float, Any]) -> None:
    """Over the panel's whole width, so that layers stand above one another."""
    inset = axes.inset_axes((0, 1 - HEAD + 0.03, 1, HEAD - 0.03), sharex=axes)
    for number, (density, weights) in enumerate(sorted(low.items(), reverse=True)):
        shown = [(i, count) for i, count in enumerate(weights, 1) if count <= FEW_WEIGHTS]
        size = 3 if number == len(low) - 1 else 6  # the lowest within the highest, where both are
        dots = {"linestyle": "", "marker": "o", "markersize": size, "markeredgewidth": 0}
        inset.plot(*zip(*shown, strict=True), color=colours[density], label=percent(density), **dots)
    inset.set_ylim(-1.5, 1.6 * FEW_WEIGHTS)
    inset.set_yticks([0, FEW_WEIGHTS // 2, FEW_WEIGHTS])
    inset.tick_params(labelsize=7, length=2, labelbottom=False)
    inset.set_facecolor("#f6f6f6")
    inset.spines[["top", "right"]].set_visible(True)
    label = f"layers with at most {FEW_WEIGHTS} weights at {' and '.join(map(percent, low))}"
    inset.text(0.99, 0.95, label, transform=inset.transAxes, ha="right", va="top", fontsize=7)


def _handles(grid: Sequence[Any], colours: dict[float, Any]) -> list[Any]:
    from matplotlib.lines import Line2D

    handles = style.density_handles(colours)
    if any(line.get_label() == "_empty" for axes in grid for line in axes.get_lines()):
        ring: dict[str, Any] = {"marker": "o", "markersize": 5, "markerfacecolor": "none", "linestyle": ""}
        handles.append(Line2D([], [], color=style.GREY, label=EMPTY, **ring))
    return handles
