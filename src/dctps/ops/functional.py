"""The computation y = (alpha D + S) x + bias for linear layers and convolutions, by one of several backends.

`dense` builds W and calls torch's own operator. Of the gradient of W, only the entries at the support leave the layer.
`torch` never builds W. It saves x alone for the backward pass, and S and its gradient take O(nnz) memory.
`native` computes the same by the kernels of `dctps.ops.native`, on CPUs.

`routes.py` decides how each of them computes. Operators of torch.library know an offset by its name, which an offset of
a user's own class does not have. D x is then computed by the methods `apply` and `matrix` of that class, which must be
differentiable.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dctps.base.registry import lookup
from dctps.core.geometry import Geometry
from dctps.core.offsets import Offset
from dctps.ops import native, operators, routes
from dctps.ops.route import layout_of
from dctps.ops.torch_routes import DenseRoute, TorchRoute
from dctps.ops.weight import name_of, refuse_onnx, torch_func_is_active


def multiply(
    x: Tensor,  # (batch, channels, *spatial)
    values: Tensor,  # (nnz,)
    positions: Tensor,  # (nnz,)
    alpha: Tensor | None,  # (1,); None without offset
    bias: Tensor | None,  # (filters,)
    offset: Offset | None,
    geometry: Geometry,
    backend: str,
) -> Tensor:  # (batch, filters, *output)
    """Return (alpha D + S) x + bias; under autocast it is computed in autocast's type, as in torch's own layers."""
    refuse_onnx()
    run = lookup(BACKENDS, backend, "backend")
    if (
        not x.is_meta
        and torch.is_autocast_enabled(x.device.type)
        and x.is_floating_point()
        and x.dtype != torch.float64
    ):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    elif x.dtype != values.dtype:
        raise ValueError(f"the input is {x.dtype}, but the layer {values.dtype}; convert one of them with .to()")
    if torch_func_is_active():
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


def _native(x: Tensor, *layer: Any) -> Tensor:
    if x.device.type != "cpu":
        raise ValueError(f"backend='native' runs on CPUs, but x is on {x.device}; use backend='torch' or 'auto'")
    return _without_weight(x, *layer, backend="native")


def _without_weight(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    alpha: Tensor | None,
    bias: Tensor | None,
    offset: Offset | None,
    geometry: Geometry,
    *,
    backend: str = "torch",
) -> Tensor:
    """Compute by the operator that never builds W; an offset without a name, of a user's class, is added to it."""
    name, named_alpha = name_of(offset, alpha)
    y: Tensor = operators.multiply(x, values, positions, named_alpha, name, geometry.pack(), backend == "native")
    if offset is not None and alpha is not None and named_alpha is None:
        route = routes.choose(offset, geometry, layout_of(x), backend, values.numel())
        assert isinstance(route, TorchRoute)
        assert route.product is not None
        y = y + alpha.to(y.dtype) * route.product.forward(x)
    return y if bias is None else y + bias.to(y.dtype).view(-1, *(1 for _ in geometry.kernel))


BACKENDS: dict[str, Callable[..., Tensor]] = {"dense": _dense, "torch": _without_weight, "native": _native}
AUTO = "auto"  # the backend that `choosing.choose` replaces by one of these


def check_backend(backend: str) -> None:
    """Raise ValueError unless this is `auto` or the name of a backend that works in this installation."""
    if backend != AUTO:
        lookup(BACKENDS, backend, f"backend (or {AUTO!r})")
    if backend == "native" and native.kernels is None:
        raise ValueError(f"backend='native' cannot be used: {native.WHY_NOT}; backend='auto' works without them")


def backends() -> list[str]:
    """Return the names of the backends that work in this installation."""
    return [name for name in BACKENDS if name != "native" or native.kernels is not None]
