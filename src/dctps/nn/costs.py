"""Multiply-adds: what a network performs, what its dense twin would, and the paper's q log q + pmn.

The paper (section "Run Times and Theoretical Complexity") counts one product W x of a layer, q = max(m, n), as
q log2 q + nnz; a convolution performs one for each output pixel. What this library performs depends on the way a
layer takes (`offset_torch.py`, `kernels/plans.py`; for `backend="auto"` the one that sizes suggest, without a
measurement); a fast transform of length q is counted as q log2 q.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from dctps.core.offsets import PatchOffset
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.prunable import LAYERS, left_dense
from dctps.ops import autotune, offset_torch
from dctps.ops.native import plans, products

COUNTED: tuple[type[nn.Module], ...] = (DpsLayer, *LAYERS)


@dataclasses.dataclass(frozen=True)
class LayerOps:
    """Multiply-adds of one layer for one example (summed over its calls)."""

    name: str
    dense: int
    performed: int
    paper: int


@dataclasses.dataclass(frozen=True)
class Ops:
    """Multiply-adds of a network for one example; layers without a matrix (BatchNorm, ReLU) are not counted."""

    layers: list[LayerOps]
    not_counted: list[str]  # modules with weights of other kinds: attention, recurrent, transposed ...

    @property
    def dense(self) -> int:
        return sum(layer.dense for layer in self.layers)

    @property
    def performed(self) -> int:
        return sum(layer.performed for layer in self.layers)

    @property
    def paper(self) -> int:
        return sum(layer.paper for layer in self.layers)


Example = Sequence[int] | Tensor | Sequence[Tensor] | Mapping[str, Tensor]


def count_ops(model: nn.Module, input_shape: Example) -> Ops:
    """Count by one forward pass in eval mode on a batch of one; the model is left as it was.

    input_shape: of one example, as (channels, height, width); or, for other kinds of input, an example batch of one: a
    tensor, several, or a mapping from names.

    >>> ops = count_ops(nn.Linear(100, 10), (100,))
    >>> ops.dense, ops.performed, ops.paper
    (1000, 1000, 1000)
    """
    rows: dict[str, LayerOps] = {}
    handles = [
        module.register_forward_hook(_counter(name, rows))
        for name, module in model.named_modules()
        if isinstance(module, COUNTED)
    ]
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad(), autotune.by_rule():
            _run(model, input_shape)
    finally:
        for handle in handles:
            handle.remove()
        for module, training in modes:
            module.training = training
    other = [n for n, _ in left_dense(model) if not isinstance(model.get_submodule(n), COUNTED)]
    return Ops(list(rows.values()), other)


def _run(model: nn.Module, example: Example) -> None:
    if isinstance(example, Tensor):
        model(example)
    elif isinstance(example, Mapping):
        model(**example)
    elif any(isinstance(part, Tensor) for part in example):
        model(*example)
    else:
        parameter = next(model.parameters(), torch.empty(0))
        model(torch.zeros(1, *example, device=parameter.device, dtype=parameter.dtype))


def _counter(name: str, rows: dict[str, LayerOps]) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        m, *patch = module.geometry.weight_shape if isinstance(module, DpsLayer) else _weight_shape(module)
        outputs = output.numel() // m
        dense = performed = paper = outputs * m * math.prod(patch)
        if isinstance(module, DpsLayer):
            performed, paper = _sparse_ops(module, inputs[0], outputs)
        before = rows.get(name, LayerOps(name, 0, 0, 0))
        rows[name] = LayerOps(name, before.dense + dense, before.performed + performed, before.paper + paper)

    return count


def _weight_shape(module: nn.Module) -> tuple[int, ...]:
    return tuple(module.weight.shape)  # type: ignore[arg-type]  # may be computed, as by weight norm


def _sparse_ops(layer: DpsLayer, x: Tensor, outputs: int) -> tuple[int, int]:
    m, *patch = layer.geometry.weight_shape
    size, q = m * math.prod(patch), max(m, math.prod(patch))
    has_offset = layer.offset is not None
    paper = outputs * (layer.nnz + (round(q * math.log2(q)) if has_offset else 0))
    backend = layer.chosen_backend(x)
    if backend == "dense":
        return outputs * size, paper
    count = _native_ops if backend == "native" else _offset_ops
    return outputs * layer.nnz + (count(layer, x, outputs) if has_offset else 0), paper


def _native_ops(layer: DpsLayer, x: Tensor, outputs: int) -> int:
    geometry, offset = layer.geometry, layer.offset
    if not isinstance(offset, PatchOffset) or products.is_direct(offset, geometry):
        return outputs * math.prod(geometry.weight_shape)
    if not plans.has_plan(offset, geometry):
        return _offset_ops(layer, x, outputs)
    depthwise = offset.transform.terms * geometry.filters * geometry.taps if geometry.taps > 1 else 0
    return x.numel() // geometry.channels * plans.operations(offset) + outputs * depthwise


def _offset_ops(layer: DpsLayer, x: Tensor, outputs: int) -> int:
    geometry, offset = layer.geometry, layer.offset
    assert offset is not None
    way = offset_torch.way(offset, geometry)
    if way == "separable":
        assert isinstance(offset, PatchOffset)
        own = offset_torch.factors(offset, geometry.groups, torch.float32, torch.device("cpu"))
        pixels = x.numel() // geometry.channels
        return pixels * sum(w.numel() for w in own.pointwise) + outputs * own.depthwise.numel()
    if way == "direct":
        return outputs * math.prod(geometry.weight_shape)
    length = offset.length if isinstance(offset, PatchOffset) else max(offset.shape)
    return outputs * geometry.groups * round(length * math.log2(length))
