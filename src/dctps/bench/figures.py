"""Measurements as figures, in colours that colour-blind people can tell apart (Okabe & Ito), by matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dctps.analysis.figures.layout import WHY_NOT, available
from dctps.analysis.looks import BLUE, GREEN, GREY, RED
from dctps.base.registry import NONE
from dctps.base.words import percent
from dctps.bench.scaling import ScalingRow
from dctps.bench.steps import StepRow

__all__ = ["WHY_NOT", "available", "scaling_figure", "step_figure"]
BLACK = "black"

# --- steps ----------------------------------------------------------------------------------------------------------


def step_figure(rows: Sequence[StepRow], path: Path) -> None:
    """How many times faster than the dense network and than the published formulation: one group of bars per cell."""
    from matplotlib.figure import Figure

    cells = list(dict.fromkeys((row.model, row.density, row.offset) for row in rows))
    figure = Figure(figsize=(7, 1.3 + 0.75 * len(cells)), layout="constrained", dpi=150)
    axes = figure.subplots()
    for place, cell in enumerate(cells):
        _bars(axes, place, [row for row in rows if (row.model, row.density, row.offset) == cell])
    axes.axvline(1, color=BLACK, linewidth=1)
    axes.set_yticks(range(len(cells)), [f"{m}\n{percent(d)}, {o}" for m, d, o in cells])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(axes.get_xlim()[1], 1))
    axes.set_xlabel("times faster; above 1 is faster")
    first = rows[0]
    axes.set_title(f"{first.mode}, batch {first.batch}, float32, medians of {first.steps}", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    names = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))  # one entry per name
    figure.legend(names.values(), names.keys(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path, format="png")


def _bars(axes: Any, place: int, rows: Sequence[StepRow]) -> None:
    by = {row.contender: row for row in rows}
    bars = [("ours against dense", by["ours"].ratio_to_dense, BLUE)]
    bars.append(("ours against published", by["ours"].ratio_to_published, RED))
    if "sparseprop" in by:
        bars.append(("sparseprop against dense", by["sparseprop"].ratio_to_dense, GREEN))
    height = 0.8 / len(bars)
    for number, (label, factor, colour) in enumerate(bars):
        y = place - 0.4 + height * (number + 0.5)
        axes.barh(y, factor, height=0.9 * height, color=colour, label=label)
        beside = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
        axes.annotate(f"{factor:.2f}", (factor, y), **beside)


# --- scaling --------------------------------------------------------------------------------------------------------

SIZE_NAMES = {"linear": "size n of a linear layer n x n", "conv": "channels c of a 3 x 3 convolution c to c"}


def scaling_figure(rows: Sequence[ScalingRow], path: Path) -> None:
    """Time against size (left) and density (right), of the linear layer (top) and the convolution (bottom)."""
    from matplotlib.figure import Figure

    layers = list(dict.fromkeys(row.layer for row in rows))
    figure = Figure(figsize=(9, 0.8 + 3.4 * len(layers)), layout="constrained", dpi=150)
    grid = figure.subplots(len(layers), 2, squeeze=False)
    for line, layer in enumerate(layers):
        for axes, sweep in zip(grid[line], ("size", "density"), strict=True):
            _curves(axes, [row for row in rows if (row.layer, row.sweep) == (layer, sweep)])
    names = {
        label: handle for axes in grid.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(names.values(), names.keys(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, format="png")


def _curves(axes: Any, rows: Sequence[ScalingRow]) -> None:
    if not rows:
        axes.set_visible(False)
        return
    sweep = rows[0].sweep
    our_guide = "guide nnz" if rows[0].offset == NONE else "guide q log q + nnz"
    for contender, colour, marker, guide in (("dense", BLACK, "s", "guide m n"), ("ours", BLUE, "o", our_guide)):
        own = sorted((row for row in rows if row.contender == contender), key=lambda row: (row.size, row.density))
        if not own:
            continue
        x = [row.size if sweep == "size" else row.density for row in own]
        axes.plot(x, [row.median_ms for row in own], color=colour, marker=marker, label=contender)
        # a guide has the right slope, not the right height: it meets the curve at its largest size, or least density
        anchor = own[-1] if sweep == "size" else own[0]
        heights = [row.multiply_adds * anchor.median_ms / anchor.multiply_adds for row in own]
        axes.plot(x, heights, color=GREY if contender == "dense" else RED, linestyle=":", label=guide)
    _describe(axes, rows[0])
    _plain_ticks(axes, sorted({row.size if sweep == "size" else row.density for row in rows}))


def _describe(axes: Any, row: ScalingRow) -> None:
    if row.sweep == "size":
        axes.set_xlabel(SIZE_NAMES[row.layer])
        axes.set_title(f"{row.layer}, density {percent(row.density)}, {row.offset}, batch {row.batch}", fontsize=10)
    else:
        axes.set_xlabel("density")
        axes.set_title(f"{row.layer}, {row.size} to {row.size}, {row.offset}, batch {row.batch}", fontsize=10)
    axes.set_ylabel("forward and backward, ms")
    axes.grid(alpha=0.3)


def _plain_ticks(axes: Any, x: Sequence[float]) -> None:
    """What was measured along x and 1, 2, 5, 10 ... along y, as plain numbers."""
    from matplotlib.ticker import LogLocator

    axes.set(xscale="log", yscale="log")
    axes.set_xticks(x, [f"{value:g}" for value in x])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
