"""The choice of `backend="auto"` while torch.compile or torch.export trace a layer.

A layer's sizes are those of the example that is traced; a size that varies is not fixed by that. `choosing` loads this
module where a trace needs it: torch's compiler, which it imports, takes most of a second to load.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from dctps.core.geometry import Geometry
from dctps.ops.autotune import Input, backend_by_rule, choose_for

try:
    from torch.fx.experimental.symbolic_shapes import optimization_hint
except ImportError:  # an earlier version of torch
    optimization_hint = None  # type: ignore[assignment]


def choose(x: Tensor, nnz: int, offset: str | None, geometry: Geometry) -> str:
    """Return the backend for a traced input x of a layer whose offset has this name."""
    if optimization_hint is None:
        return backend_by_rule(geometry, nnz, x.device.type)
    sizes = _hints(x.shape), _hints(x.stride()), _hints([nnz]), _hints(geometry.pack())
    choice: str = _choose_in_trace(*sizes, offset, x.dtype, x.device, x.requires_grad, torch.compiler.is_compiling())
    return choice


def _hints(sizes: Iterable[int]) -> tuple[int, ...]:
    """Return the sizes that an example has while it is traced; one that only the data will tell counts as 0.

    Sizes may be symbols. To ask for their hint does not fix them, so the graph serves other sizes, too.
    """
    return tuple(optimization_hint(size, fallback=0) for size in sizes)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _choose_in_trace(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    nnz: tuple[int],
    geometry: tuple[int, ...],
    offset: str | None,
    dtype: torch.dtype,
    device: torch.device,
    requires_grad: bool,
    may_measure: bool,
) -> str:
    """Return the choice for an input of which a trace knows the sizes. The graph holds the chosen backend alone.

    torch.compile calls this while it traces, and does not trace it.
    """
    last = len(shape) == 4 and not _is_packed(shape, strides, (0, 1, 2, 3)) and _is_packed(shape, strides, (0, 2, 3, 1))
    seen = Input(shape, last, dtype, device, requires_grad)
    return choose_for(seen, nnz[0], offset, Geometry.unpack(geometry), may_measure=may_measure)


def _is_packed(shape: tuple[int, ...], strides: tuple[int, ...], order: tuple[int, ...]) -> bool:
    """Return whether a tensor lies in memory without gaps, with its axes in this order."""
    step = 1
    for axis in reversed(order):
        if shape[axis] > 1 and strides[axis] != step:
            return False
        step *= shape[axis]
    return True
