"""Measurements as figures, in the house style; a table on disk can be drawn again without measuring."""

import csv
import dataclasses
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dctps.analysis.figures import layout, style
from dctps.analysis.figures.layout import WHY_NOT, available
from dctps.analysis.figures.looks import DASHES
from dctps.analysis.looks import BLUE, DOTTED, GREEN, GREY, ORANGE, PURPLE, RED, SKY
from dctps.base.files import write_atomically
from dctps.base.registry import NONE
from dctps.base.words import percent
from dctps.bench.scaling import ScalingRow, fitted
from dctps.bench.steps import StepRow
from dctps.experiments.titles import network_title, offset_title

__all__ = ["WHY_NOT", "available", "redraw", "scaling_figure", "step_figure"]


def redraw(table: Path) -> Path:
    """Draw the figure of a table that `dctps bench step` or `dctps bench scaling` wrote; return its path."""
    with table.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    for kind, draw in DRAWN.items():
        hints = typing.get_type_hints(kind)
        if lines and {field.name for field in dataclasses.fields(kind) if _is_required(field)} <= set(lines[0]):
            known = {name: hint for name, hint in hints.items() if name in lines[0]}
            rows = [kind(**{name: _value(hint, line[name]) for name, hint in known.items()}) for line in lines]
            figure = table.with_name(f"{table.name.removesuffix('.csv')}.png")
            write_atomically(figure, lambda path, draw=draw, rows=rows: draw(rows, path))  # type: ignore[misc]
            return figure
    raise ValueError(f"{table} has no figure: only the tables of `dctps bench step` and `dctps bench scaling` have one")


def _is_required(field: dataclasses.Field[Any]) -> bool:
    """Return whether every table has this column; those with a default came later."""
    return field.default is dataclasses.MISSING


def _value(hint: Any, text: str) -> Any:
    """Return a cell of a table as a field of this type; an empty cell is None where the field may be."""
    kinds = typing.get_args(hint)
    return None if not text and type(None) in kinds else (kinds or (hint,))[0](text)


def _offset_words(offset: str) -> str:
    return "no offset" if offset == NONE else offset_title(offset)


def _legend(grid: Sequence[Any]) -> list[Any]:
    """Return one handle for each label of the panels."""
    pairs = [pair for axes in grid for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    return list({label: handle for handle, label in reversed(pairs)}.values())[::-1]


# --- steps ----------------------------------------------------------------------------------------------------------

PUBLISHED_WORDS = "published: two dense products and dense gradients, as in the paper's code"


PEERS = (
    ("sparseprop", "SparseProp", GREEN),
    ("sparselab", "SparseLab", PURPLE),
    ("dense_compiled", "torch.compile", ORANGE),
    ("onnxruntime", "ONNX Runtime", SKY),
    ("openvino", "OpenVINO", GREY),
)


def step_figure(rows: Sequence[StepRow], path: Path) -> None:
    """How many times as fast as the dense network and as the published formulation: one group of bars per cell."""
    cells, first = list(dict.fromkeys(_step_cell(row) for row in rows)), rows[0]
    with style.styled():
        figure, (axes,) = layout.panel_grid(1, 1, 0.5 + 0.62 * len(cells))
        for place, cell in enumerate(cells):
            _bars(axes, place, [row for row in rows if _step_cell(row) == cell])
        axes.axvline(1, color=style.INK, linewidth=style.HAIR)
        axes.set_yticks(range(len(cells)), cells)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlim(0, 1.15 * max(axes.get_xlim()[1], 1))
        axes.set_xlabel("times as fast; above 1 is faster")
        what = "Training steps" if first.mode == "training" else "Inference"
        words = f"float32; medians of {first.steps}; {PUBLISHED_WORDS}"
        layout.finish(figure, f"{what}, batch {first.batch}", words, _legend([axes]))
        layout.write(figure, path)


def _step_cell(row: StepRow) -> str:
    width = "" if row.width is None else f", width {row.width}"
    return f"{network_title(row.model)}{width}, {percent(row.density)}\n{_offset_words(row.offset)}"


def _bars(axes: Any, place: int, rows: Sequence[StepRow]) -> None:
    by = {row.contender: row for row in rows}
    bars = [("ours against dense", by["ours"].ratio_to_dense, BLUE)]
    if by["ours"].ratio_to_published is not None:
        bars.append(("ours against published", by["ours"].ratio_to_published, RED))
    bars += [(f"{title} against dense", by[name].ratio_to_dense, colour) for name, title, colour in PEERS if name in by]
    height = 0.8 / len(bars)
    for number, (label, factor, colour) in enumerate(bars):
        y = place - 0.4 + height * (number + 0.5)
        axes.barh(y, factor, height=0.9 * height, color=colour, label=label)
        beside = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": style.NOTE}
        axes.annotate(f"{factor:.2f}", (factor, y), **beside)


# --- scaling --------------------------------------------------------------------------------------------------------

LAYERS = {"linear": "linear layer, n to n", "conv": "3 x 3 convolution, c to c channels"}
SIZES = {"linear": "n", "conv": "c"}
FITS = {"dense": "fit a + b m n", "ours": "fit a + b q log2 q + c nnz", NONE: "fit a + c nnz"}
FIT_WORDS = (
    "forward and backward, medians; dotted: a fixed time and a time for each counted multiply-add, fitted to all times "
    "of a layer (top: linear, bottom: convolution); each panel says how far time and fit grow from end to end"
)
HEADROOM = 0.32  # above the curves, as a share of their height: room for words


def scaling_figure(rows: Sequence[ScalingRow], path: Path) -> None:
    """Time against size (left) and density (right), of the linear layer (top) and the convolution (bottom)."""
    layers, first = list(dict.fromkeys(row.layer for row in rows)), rows[0]
    panels = [(layer, sweep) for layer in layers for sweep in ("size", "density")]
    with style.styled():
        figure, grid = layout.panel_grid(len(panels), 2)
        fits = fitted(rows)
        for axes, panel in zip(grid, panels, strict=True):
            _draw_panel(axes, [row for row in rows if (row.layer, row.sweep) == panel], fits)
        title = f"Time of a layer against its size and density ({_offset_words(first.offset)}, batch {first.batch})"
        layout.finish(figure, title, FIT_WORDS, _legend(grid))
        layout.write(figure, path)


def _draw_panel(axes: Any, rows: Sequence[ScalingRow], fits: Mapping[ScalingRow, float]) -> None:
    if not rows:
        axes.set_visible(False)
        return
    growths = []
    for contender, colour, marker, faint in (("dense", style.INK, "s", GREY), ("ours", BLUE, "o", RED)):
        own = sorted((row for row in rows if row.contender == contender), key=lambda row: (row.size, row.density))
        if own:
            axes.plot(
                [_x(row) for row in own], [row.median_ms for row in own], color=colour, marker=marker, label=contender
            )
            _draw_fit(axes, own, fits, faint)
            growths.append(growth(own, fits))
    _set_axes(axes, sorted({_x(row) for row in rows}))
    _describe(axes, rows[0], growths)


def _x(row: ScalingRow) -> float:
    return row.size if row.sweep == "size" else row.density


def _draw_fit(axes: Any, own: Sequence[ScalingRow], fits: Mapping[ScalingRow, float], colour: str) -> None:
    name = FITS[NONE if own[0].contender == "ours" and own[0].offset == NONE else own[0].contender]
    options = {"color": colour, "linestyle": DASHES[DOTTED], "linewidth": style.THIN}
    axes.plot([_x(row) for row in own], [fits[row] for row in own], label=name, **options)


def growth(own: Sequence[ScalingRow], fits: Mapping[ScalingRow, float]) -> str:
    """Say how many times the time and its fit grow from the first row to the last."""
    time, fit = own[-1].median_ms / own[0].median_ms, fits[own[-1]] / fits[own[0]]
    return f"{own[0].contender}: time x {_two_digits(time)}, fit x {_two_digits(fit)}"


def _two_digits(factor: float) -> str:
    """Return a factor with two digits or, if it is larger, all its digits before the point."""
    return f"{factor:.1f}" if factor < 10 else f"{factor:,.0f}"


def _describe(axes: Any, row: ScalingRow, growths: Sequence[str]) -> None:
    if row.sweep == "size":
        axes.set(xlabel=f"size {SIZES[row.layer]}", title=f"{LAYERS[row.layer]}\ndensity {percent(row.density)}")
    else:
        axes.set(xlabel="density", title=f"{LAYERS[row.layer]}\n{SIZES[row.layer]} = {row.size}")
    axes.set_ylabel("time, ms")
    place = {"transform": axes.transAxes, "ha": "left", "va": "top"}
    axes.text(0.03, 0.97, "\n".join(growths), fontsize=style.NOTE, **place)


def _set_axes(axes: Any, x: Sequence[float]) -> None:
    """Mark what was measured along x, and 1, 2, 5, 10 ... along y, as plain numbers; leave room above for words."""
    from matplotlib.ticker import LogLocator

    axes.set(xscale="log", yscale="log")
    axes.set_xticks(x, [f"{value:g}" if value >= 1 else percent(value) for value in x])
    axes.set_xticks([], minor=True)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** HEADROOM)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")


DRAWN: dict[Any, Callable[[Any, Path], None]] = {StepRow: step_figure, ScalingRow: scaling_figure}
