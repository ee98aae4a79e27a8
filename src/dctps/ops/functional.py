"""y = (alpha D + S) x + bias for linear layers and convolutions, by several backends.

`dense` builds W and calls torch's own operator; only the gradient at the support leaves the layer.
`torch` never builds W: it saves x and nothing else for the backward pass, and S and its gradient are O(nnz) numbers.
`native` is the same computation by the kernels of `dctps.kernels`, on CPUs.

A user's own `Offset` object has no name by which an operator could know it; it is composed from its own `apply` and
`matrix`, which must be differentiable.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from dctps.base.registry import lookup
from dctps.core.geometry import Geometry, convolve
from dctps.core.offsets import Offset, PatchOffset, TransformOffset
from dctps.ops import native, offset_torch, operators


def multiply(
    x: Tensor,  # (batch, channels, *spatial)
    values: Tensor,  # (nnz,)
    positions: Tensor,  # (nnz,)
    alpha: Tensor | None,  # (); None without offset
    bias: Tensor | None,  # (filters,)
    offset: Offset | None,
    geometry: Geometry,
    backend: str,
) -> Tensor:  # (batch, filters, *output)
    """(alpha D + S) x + bias; under autocast in its type, as torch's own layers."""
    run = lookup(BACKENDS, backend, "backend")
    if torch.is_autocast_enabled(x.device.type) and x.is_floating_point() and x.dtype != torch.float64:
        x = x.to(torch.get_autocast_dtype(x.device.type))
    elif x.dtype != values.dtype:
        raise ValueError(f"the input is {x.dtype}, the layer {values.dtype}; convert one of them with .to()")
    if transformed():
        run = _dense
    return run(x, values, positions, alpha, bias, offset, geometry)


def transformed() -> bool:
    """Whether torch.func (grad, vmap, jvp ...) or forward-mode differentiation is at work.

    They look into computations in a way that operators of torch.library do not allow (jvp would silently give zeros),
    so W is then composed from torch's own operations.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def dense_weight(
    values: Tensor, positions: Tensor, alpha: Tensor | None, offset: Offset | None, shape: tuple[int, ...]
) -> Tensor:  # of shape `shape`
    """alpha D + S, differentiable in values and alpha."""
    if transformed():
        return _composed_weight(values, positions, alpha, offset, shape)
    name, named = _by_name(offset, alpha)
    weight: Tensor = operators.weight(values, positions, named, name, list(shape))
    if offset is None or alpha is None or named is not None:
        return weight
    return weight + alpha * offset.matrix().to(values).reshape(shape)


def _composed_weight(
    values: Tensor, positions: Tensor, alpha: Tensor | None, offset: Offset | None, shape: tuple[int, ...]
) -> Tensor:
    flat = torch.zeros(math.prod(shape), dtype=values.dtype, device=values.device)
    weight = flat.index_put((positions.long(),), values).view(shape)
    if offset is None or alpha is None:
        return weight
    if isinstance(offset, PatchOffset):
        return weight + alpha * offset_torch.weight(offset, values.dtype, values.device)
    return weight + alpha * offset.matrix().to(values).reshape(shape)


def named_offset(name: str, shape: tuple[int, ...]) -> PatchOffset | None:
    """The offset of a weight from its name; none for an empty one."""
    return TransformOffset.parse(name).bind(shape) if name else None


def _by_name(offset: Offset | None, alpha: Tensor | None) -> tuple[str, Tensor | None]:
    """The name of an offset and its alpha as operators take them: none for a user's own."""
    return (offset.recipe.name, alpha) if isinstance(offset, PatchOffset) else ("", None)


def _dense(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    alpha: Tensor | None,
    bias: Tensor | None,
    offset: Offset | None,
    geometry: Geometry,
) -> Tensor:
    weight = dense_weight(values, positions, alpha, offset, geometry.weight_shape)
    return convolve(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype), geometry)


def _native(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    alpha: Tensor | None,
    bias: Tensor | None,
    offset: Offset | None,
    geometry: Geometry,
) -> Tensor:
    if x.device.type != "cpu":
        raise ValueError(f"backend='native' runs on CPUs, the input is on {x.device}; use backend='torch' or 'auto'")
    return _fast(x, values, positions, alpha, bias, offset, geometry, native=True)


def _fast(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    alpha: Tensor | None,
    bias: Tensor | None,
    offset: Offset | None,
    geometry: Geometry,
    native: bool = False,
) -> Tensor:
    name, named = _by_name(offset, alpha)
    y: Tensor = operators.multiply(x, values, positions, named, name, geometry.pack(), native)
    if offset is not None and alpha is not None and named is None:
        y = y + alpha.to(y.dtype) * offset_torch.forward(x, offset, geometry)
    return y if bias is None else y + bias.to(y.dtype).view(-1, *(1 for _ in geometry.kernel))


BACKENDS: dict[str, Callable[..., Tensor]] = {"dense": _dense, "torch": _fast, "native": _native}


AUTO = "auto"


def check_backend(backend: str) -> None:
    """ValueError unless it is the name of a backend that is there, or `auto`."""
    if backend != AUTO:
        lookup(BACKENDS, backend, f"backend (or {AUTO!r})")
    if backend == "native" and native.kernels is None:
        raise ValueError(f"backend='native': {native.WHY_NOT}; backend='auto' works without them")


def backends() -> list[str]:
    """The names of the backends that are there."""
    return [name for name in BACKENDS if name != "native" or native.kernels is not None]
