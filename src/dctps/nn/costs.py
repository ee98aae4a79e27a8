"""Counts of multiply-adds: those that a network performs, those of its dense version, and the paper's q log q + nnz.

The count that this library performs depends on the route of each layer, and the route itself counts
(`ops/routes.py`). With `backend="auto"` the route is chosen by the sizes, without a measurement. A fast transform of
length q counts as q log2 q.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from dctps.core.complexity import product_operations
from dctps.nn.built_layer import BuiltLayer
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.prunable import LAYERS, left_dense
from dctps.nn.sparse_part import SparsePart
from dctps.ops import autotune

COUNTED: tuple[type[nn.Module], ...] = (DpsLayer, *LAYERS)


@dataclasses.dataclass(frozen=True)
class LayerOps:
    """The multiply-adds of one layer for one example, summed over its calls."""

    name: str
    dense: int  # of a dense layer of this shape
    performed: int  # by this library
    paper: int  # by the paper's formula


@dataclasses.dataclass(frozen=True)
class Ops:
    """The multiply-adds of a network for one example; layers without a matrix (BatchNorm, ReLU) are not counted."""

    layers: list[LayerOps]
    not_counted: list[str]  # modules with other kinds of weights: attention, recurrent layers, transposed convolutions

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
    """Count the multiply-adds of one forward pass in eval mode on a batch of one; the model is left as it was.

    input_shape: the shape of one example, as (channels, height, width). For other kinds of input give an example batch
        of one: a tensor, a sequence of tensors, or a mapping from argument names to tensors.

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
    other += [n for n, m in model.named_modules() if isinstance(m, BuiltLayer) and not isinstance(m, COUNTED)]
    return Ops(list(rows.values()), other)


def _run(model: nn.Module, example: Example) -> None:
    """Run the model on an example, or on zeros of the given shape."""
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
    """Return a forward hook that adds the multiply-adds of one call to the row of its layer."""

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        shape = module.geometry.weight_shape if isinstance(module, DpsLayer) else _weight_shape(module)
        outputs = output.numel() // shape[0]
        dense = performed = paper = outputs * math.prod(shape)
        if isinstance(module, SparsePart):  # the layer itself counts W0
            dense, performed, paper = 0, module.multiply_adds(inputs[0]), outputs * module.nnz
        elif isinstance(module, DpsLayer):
            performed = module.multiply_adds(inputs[0])
            paper = outputs * round(product_operations(shape, module.nnz, module.offset is not None))
        before = rows.get(name, LayerOps(name, 0, 0, 0))
        rows[name] = LayerOps(name, before.dense + dense, before.performed + performed, before.paper + paper)

    return count


def _weight_shape(module: nn.Module) -> tuple[int, ...]:
    return tuple(module.weight.shape)  # type: ignore[arg-type]  # a tensor also where weight norm computes it
