"""`dctps bench scaling`: time against the size of a layer and against its density.

The paper counts a product W x as q log2 q + nnz with q = max(m, n), against m n of a dense layer; a convolution has
one for each pixel. Both counts stand beside the times. A figure shows how far times grow with the counted work: the
time of a layer is fitted by a fixed time and a time for each multiply-add, one for those of D and one for those of S,
because the kernels of D and of S run at different speeds.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
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


def fitted(rows: Sequence[ScalingRow]) -> dict[ScalingRow, float]:
    """The fitted milliseconds of each row: a + b m n of dense layers, a + b q log2 q + c nnz of ours.

    One fit for each kind of layer and contender, to its times against size and density; a, b and c are not negative,
    and the sum of the squared relative errors is the least.
    """
    found: dict[ScalingRow, float] = {}
    for kind in dict.fromkeys((row.layer, row.contender) for row in rows):
        own = [row for row in rows if (row.layer, row.contender) == kind]
        work = np.array([_work(row) for row in own])
        found |= zip(own, work @ _least_squares(work, np.array([row.median_ms for row in own])), strict=True)
    return found


def _work(row: ScalingRow) -> list[float]:
    """What the time of a row is made of: one call, the multiply-adds of m n or of D, and those of S."""
    return [1, row.multiply_adds, 0] if row.contender == "dense" else [1, row.multiply_adds - row.nnz, row.nnz]


def _least_squares(work: Any, times: Any) -> Any:
    """The coefficients that are not negative and whose squared relative errors are the least.

    In the solution some coefficients are zero and the others solve the problem without that condition. There are few
    of them, so all choices are tried.
    """
    relative, best = work / times[:, None], (np.inf, np.zeros(work.shape[1]))
    for chosen in itertools.product((False, True), repeat=work.shape[1]):
        solution = np.zeros(work.shape[1])
        solution[list(chosen)] = np.linalg.lstsq(relative[:, chosen], np.ones(len(times)), rcond=None)[0]
        error = np.sum((relative @ solution - 1) ** 2)
        if (solution >= 0).all() and error < best[0]:
            best = error, solution
    return best[1]
