"""y = (alpha D + S) x + bias for linear layers and convolutions, by several backends.

`dense` builds W and calls torch's own operator; only the gradient at the support leaves the layer.
`torch` never builds W: it saves x and nothing else for the backward pass, and S and its gradient are O(nnz) numbers.
`native` is the same computation by the kernels of `dctps.ops.native`, on CPUs.

`routes.py` decides how each of them computes. A user's own `Offset` object has no name by which an operator could know
it; D x is composed from its own `apply` and `matrix`, which must be differentiable.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from dctps.base.registry import lookup
from dctps.core.geometry import Geometry
from dctps.core.offsets import Offset
from dctps.ops import native, operators, routes
from dctps.ops.native.routes import SparseRoute
from dctps.ops.route import layout_of
from dctps.ops.torch_routes import DenseRoute, TorchRoute
from dctps.ops.weight import name_of, transformed


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


def _dense(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    alpha: Tensor | None,
    bias: Tensor | None,
    offset: Offset | None,
    geometry: Geometry,
) -> Tensor:
    return DenseRoute(offset, geometry).forward(x, values, positions, alpha, bias)


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
    return _without_weight(x, values, positions, alpha, bias, offset, geometry, "native")


def _without_weight(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    alpha: Tensor | None,
    bias: Tensor | None,
    offset: Offset | None,
    geometry: Geometry,
    backend: str = "torch",
) -> Tensor:
    name, named = name_of(offset, alpha)
    y: Tensor = operators.multiply(x, values, positions, named, name, geometry.pack(), backend == "native")
    if offset is not None and alpha is not None and named is None:  # an offset of a user's own class
        route = routes.choose(offset, geometry, layout_of(x), backend, values.numel())
        assert isinstance(route, TorchRoute | SparseRoute)
        assert route.product is not None
        y = y + alpha.to(y.dtype) * route.product.forward(x)
    return y if bias is None else y + bias.to(y.dtype).view(-1, *(1 for _ in geometry.kernel))


BACKENDS: dict[str, Callable[..., Tensor]] = {"dense": _dense, "torch": _without_weight, "native": _native}


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
