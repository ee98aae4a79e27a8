"""`dctps bench scaling`: time against the size of a layer and against its density.

The paper counts a product W x as q log2 q + nnz with q = max(m, n), against m n of a dense layer; a convolution has
one for each pixel. Both counts stand beside the times, so that a figure can show the slopes they promise.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator

import torch
from torch import nn

from dctps.base.words import percent
from dctps.bench.calls import there_and_back
from dctps.bench.stopwatch import interleaved
from dctps.bench.subjects import SCALING_WARMUP, Scaling
from dctps.bench.subjects import ScalingCell as Cell
from dctps.core.complexity import product_operations
from dctps.nn.layers import DpsConv2d, DpsLinear

KERNEL = 3


@dataclasses.dataclass(frozen=True)
class ScalingRow:
    """The dense layer or ours in one cell."""

    sweep: str
    layer: str
    size: int
    density: float
    offset: str
    batch: int
    input_shape: str
    nnz: int
    contender: str
    backend: str  # of ours
    median_ms: float
    min_ms: float
    ratio_to_dense: float | None  # above 1: faster; None where the dense layer is left out
    multiply_adds: float  # of one product: m n, or the paper's q log2 q + nnz

    @property
    def cell(self) -> str:
        return f"{self.layer} {self.size}, {percent(self.density)}"


def measure(asked: Scaling, tick: Callable[[], object] = lambda: None) -> Iterator[list[ScalingRow]]:
    """The rows of each cell, as soon as they are known."""
    asked.check()
    for cell in asked.cells:
        yield _measure_cell(asked, cell, tick)


def _measure_cell(asked: Scaling, cell: Cell, tick: Callable[[], object]) -> list[ScalingRow]:
    torch.manual_seed(0)
    ours = _ours(cell, asked.offset)
    spatial = (asked.pixels, asked.pixels) if cell.layer == "conv" else ()
    x = torch.randn(asked.batch, cell.size, *spatial, requires_grad=True)
    layers: dict[str, nn.Module] = {"ours": ours}
    if 2 * 4 * math.prod(ours.geometry.weight_shape) <= 1e9 * asked.dense_limit:
        layers = {"dense": _dense(cell), **layers}
    runs = {name: there_and_back(layer, x) for name, layer in layers.items()}
    times = interleaved(runs, asked.repeats, SCALING_WARMUP, tick)
    return [
        ScalingRow(
            **cell._asdict(),
            offset=asked.offset,
            batch=asked.batch,
            input_shape="x".join(map(str, x.shape)),
            nnz=ours.nnz,
            contender=name,
            backend=ours.chosen_backend(x) if name == "ours" else "",
            median_ms=own.median,
            min_ms=own.least,
            ratio_to_dense=times["dense"].median / own.median if "dense" in times else None,
            multiply_adds=multiply_adds(ours, dense=name == "dense"),
        )
        for name, own in times.items()
    ]


def _ours(cell: Cell, offset: str) -> DpsLinear | DpsConv2d:
    n = cell.size
    if cell.layer == "linear":
        return DpsLinear(n, n, bias=False, density=cell.density, offset=offset)
    return DpsConv2d(n, n, KERNEL, padding=KERNEL // 2, bias=False, density=cell.density, offset=offset)


def _dense(cell: Cell) -> nn.Module:
    n = cell.size
    if cell.layer == "linear":
        return nn.Linear(n, n, bias=False)
    return nn.Conv2d(n, n, KERNEL, padding=KERNEL // 2, bias=False)


def multiply_adds(layer: DpsLinear | DpsConv2d, dense: bool) -> float:
    """The paper's count for one product W x: m n of the dense layer, q log2 q + nnz of ours (nnz without an offset)."""
    shape = layer.geometry.weight_shape
    return math.prod(shape) if dense else product_operations(shape, layer.nnz, layer.offset is not None)
