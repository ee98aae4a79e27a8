"""How many trainable weights each layer has: a panel for each network and method, a curve for each density.

The axis is linear below one weight and logarithmic above, so that layers which lost all their weights are seen at zero;
they are ringed. Where other layers come close to that, an inset in the panel's head shows the layers with few weights
or none on a linear axis, at the lowest and the highest density that leaves a layer without weights (paper: Figure 5).
"""

import math
from collections.abc import Sequence
from typing import Any

from dctps.analysis.figures import captions, layout, style
from dctps.analysis.figures.looks import density_colours, density_handles
from dctps.analysis.looks import GREY
from dctps.base.words import percent
from dctps.experiments.catalogue import EXPERIMENTS
from dctps.experiments.status import COLLAPSED, DONE
from dctps.experiments.summary import mean_curves
from dctps.experiments.tasks.counts import LayerRow

MANY_METHODS = 3  # with so many methods each network has a figure of its own
FEW_WEIGHTS = 10  # an inset shows layers with at most so many weights
LINEAR = 0.6  # the linear part of the axis, from zero to one weight, is as long as so many decades
HEAD = 0.3  # the share of a panel's height that is kept for an inset
EMPTY = "layer without weights"
RING: dict[str, Any] = {"marker": "o", "markersize": style.RING, "markerfacecolor": "none", "linestyle": ""}
Curves = dict[float, list[float]]  # density -> weights of each layer


def counts_figure(rows: Sequence[LayerRow]) -> dict[str, Any]:
    """Draw one page, or a page for each network where there are many methods."""
    methods = dict.fromkeys(row.line for row in rows)
    if len(methods) < MANY_METHODS:
        return {"": _draw_page(rows)}
    return {f"-{captions.slug(panel)}": _draw_page(group) for panel, group in captions.by_panel(rows).items()}


def _draw_page(rows: Sequence[LayerRow]) -> Any:
    """Draw networks below one another and their methods side by side."""
    networks = captions.by_panel(rows)
    panels = [(group, method) for group in networks.values() for method in dict.fromkeys(row.line for row in group)]
    colours = density_colours([row.density for row in rows if row.density is not None])
    with style.styled():
        figure, grid = layout.panel_grid(len(panels), 2, 2.9 if len(networks) == 1 else 2.7)
        for axes, (group, method) in zip(grid, panels, strict=True):
            _draw_panel(axes, [row for row in group if row.line == method], colours)
            axes.set_title(_panel_title(group, method, len(networks), len(panels)))
        for name, group in networks.items():
            _set_y_axis([axes for axes, (shown, _) in zip(grid, panels, strict=True) if shown[0].panel == name], group)
        words = captions.joined(captions.initial_words(rows), captions.missing_words(rows))
        layout.finish(figure, _page_title(rows, len(networks)), words, _handles(grid, colours))
    return figure


def _page_title(rows: Sequence[LayerRow], networks: int) -> str:
    """Return the title of the experiment and, if the page shows one network alone, its name."""
    title = captions.page_title(EXPERIMENTS[rows[0].experiment])
    return f"{title}: {captions.panel_title(rows)}" if networks == 1 else title


def _panel_title(rows: Sequence[LayerRow], method: str, networks: int, panels: int) -> str:
    """Return the network, the method or both, whatever differs between panels, and where the method collapsed."""
    network = captions.panel_title(rows)
    name = method if networks == 1 else f"{network}: {method}" if panels > networks else network
    collapsed = [row.density for row in rows if row.line == method and row.status == COLLAPSED]
    return "\n".join(filter(None, (name, captions.density_list(COLLAPSED, collapsed))))


# --- a panel --------------------------------------------------------------------------------------------------------


def _draw_panel(axes: Any, rows: Sequence[LayerRow], colours: dict[float, Any]) -> None:
    curves = curves_of(rows)
    for density, weights in curves.items():
        _draw_curve(axes, weights, colours[density], percent(density))
    axes.set_yscale("symlog", linthresh=1, linscale=LINEAR)
    axes.set(xlabel="layer", ylabel="trainable weights")
    layers = max(map(len, curves.values()), default=1)
    axes.set_xticks([1, *range(10, layers + 1, 10)] if layers > 25 else [1, *range(5, layers + 1, 5)])
    low = lowest(curves)
    if low:
        _draw_inset(axes, low, colours)


def curves_of(rows: Sequence[LayerRow]) -> Curves:
    """Return the mean of each layer's weights over seeds for each density, from the highest down."""
    return mean_curves(
        (row.density, row.index, row.nnz)
        for row in rows
        if row.status == DONE and row.density is not None and row.index is not None and row.nnz is not None
    )


def _draw_curve(axes: Any, weights: Sequence[float], colour: Any, label: str) -> None:
    x = range(1, len(weights) + 1)
    dots = {"marker": "o", "markersize": style.SMALL_DOT, "markeredgewidth": 0}
    axes.plot(x, weights, color=colour, linewidth=style.THIN, label=label, **dots)
    empty = [i for i, count in zip(x, weights, strict=True) if count == 0]
    if empty:
        axes.plot(empty, [0] * len(empty), color=colour, label="_empty", clip_on=False, zorder=4, **RING)


def _set_y_axis(grid: Sequence[Any], rows: Sequence[LayerRow]) -> None:
    """Give all panels of a network the same axis: from zero by powers of ten, with room for insets above the curves."""
    top = math.log10(max(10, *(row.nnz or 0 for row in rows))) + 0.2
    decades = range(math.floor(top) + 1)
    part = 1 - HEAD if any(axes.child_axes for axes in grid) else 1  # the share of the axis that the curves have
    for axes in grid:
        if part < 1 and axes.get_lines() and not any(line.get_label() == "_empty" for line in axes.get_lines()):
            _head_text(axes, "every layer of these curves has weights")  # the head would be blank otherwise
        axes.set_yticks([0, *(10**k for k in decades)], ["0", "1", "10", *(f"$10^{k}$" for k in decades[2:])])
        axes.set_yticks([], minor=True)
        axes.set_ylim(-0.25, 10 ** ((LINEAR + top) / part - LINEAR))
        axes.yaxis.label.set_y(part / 2)


# --- the inset ------------------------------------------------------------------------------------------------------


def lowest(curves: Curves) -> Curves:
    """Return the curves of an inset: at the lowest and the highest density that leave some layer without weights.

    There are none if all other layers have many weights, as the rings show enough then.
    """
    with_empty = sorted(density for density, weights in curves.items() if 0 in weights and max(weights) > 0)
    if not with_empty or not any(0 < count <= FEW_WEIGHTS for count in curves[with_empty[0]]):
        return {}
    return {density: curves[density] for density in dict.fromkeys([*with_empty[:1], *with_empty[-1:]])}


def _draw_inset(axes: Any, low: Curves, colours: dict[float, Any]) -> None:
    """Draw an inset over the panel's whole width, so that each layer stands above its place in the panel."""
    inset = axes.inset_axes((0, 1 - HEAD + 0.03, 1, HEAD - 0.03), sharex=axes)
    for number, (density, weights) in enumerate(sorted(low.items(), reverse=True)):
        shown = [(i, count) for i, count in enumerate(weights, 1) if count <= FEW_WEIGHTS]
        is_lowest = number == len(low) - 1  # its dots lie within those of the highest density
        size = style.MARKER / 2 if is_lowest else style.MARKER
        dots = {"linestyle": "", "marker": "o", "markersize": size, "markeredgewidth": 0}
        inset.plot(*zip(*shown, strict=True), color=colours[density], label=percent(density), **dots)
    inset.set_ylim(-1.5, 1.6 * FEW_WEIGHTS)
    inset.set_yticks([0, FEW_WEIGHTS // 2, FEW_WEIGHTS])
    inset.tick_params(labelsize=style.INSET, length=2, labelbottom=False)
    inset.set_facecolor(style.PALE)
    inset.spines[["top", "right"]].set_visible(True)
    _head_text(axes, f"layers with at most {FEW_WEIGHTS} weights at {' and '.join(map(percent, low))}")


def _head_text(axes: Any, text: str) -> None:
    """Write a text into the upper right corner of a panel, over an inset if there is one."""
    place = {"transform": axes.transAxes, "ha": "right", "va": "top", "zorder": 10}
    axes.text(0.99, 0.985, text, fontsize=style.INSET, label="head", **place)


def _handles(grid: Sequence[Any], colours: dict[float, Any]) -> list[Any]:
    from matplotlib.lines import Line2D

    handles = density_handles(colours)
    if any(line.get_label() == "_empty" for axes in grid for line in axes.get_lines()):
        handles.append(Line2D([], [], color=GREY, label=EMPTY, **RING))
    return handles
