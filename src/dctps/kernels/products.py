"""(alpha D + S) x and its gradients by the native kernels; parts that they do not have come from torch."""

from typing import Any

import torch
from torch import Tensor

from dctps import offset_products, sparse
from dctps.cache import Cache
from dctps.geometry import Geometry
from dctps.kernels import native
from dctps.kernels.plans import Plan, offset_plan
from dctps.offsets import PatchOffset

_full = Cache(limit=1 << 26)

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def forward(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    alpha: Tensor | None,
    offset: PatchOffset | None,
    geometry: Geometry,
    out: Tensor,
) -> None:
    """out = (alpha D + S) x."""
    if offset is not None and alpha is not None and is_direct(offset, geometry):
        weight = _weight(values, positions, alpha, offset)
        return _forward(x, weight, _every_place(geometry), None, 0.0, geometry, out)
    plan = None if offset is None else offset_plan(offset, geometry, x.dtype)
    scale = 0.0 if alpha is None or plan is None else alpha.item()
    _forward(x, values, _places(positions, geometry), plan, scale, geometry, out)
    if offset is not None and alpha is not None and plan is None:
        out.add_(offset_products.forward(x, offset, geometry) * alpha)


def backward(
    grad: Tensor,
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    alpha: Tensor | None,
    offset: PatchOffset | None,
    geometry: Geometry,
    needs: tuple[bool, bool, bool],
) -> Gradients:
    """The gradients of x, values and alpha that are needed."""
    needs_x, needs_values, needs_alpha = needs
    if offset is not None and alpha is not None and is_direct(offset, geometry):
        return _direct_backward(grad, x, values, positions, alpha, offset, geometry, needs)
    plan = None if offset is None else offset_plan(offset, geometry, x.dtype)
    scale = 0.0 if alpha is None or plan is None else alpha.item()
    values_grad = torch.empty_like(values) if needs_values else None
    where = _places(positions, geometry)
    x_grad = torch.empty_like(x) if needs_x else None
    inner = _backward(grad, x, values, where, plan, scale, geometry, x_grad, values_grad, needs_alpha)
    alpha_grad = None if alpha is None else alpha.new_tensor(inner)
    if offset is not None and alpha is not None and plan is None and (needs_x or needs_alpha):
        back = offset_products.adjoint(grad, offset, geometry, tuple(x.shape[2:]))
        alpha_grad = torch.sum(x * back)
        x_grad = None if x_grad is None else x_grad.add_(back * alpha)
    return x_grad, values_grad, alpha_grad if needs_alpha else None


# --- filters so short that they are applied as they are: depthwise convolutions above all ---------------------------


DIRECT = 64  # entries of a filter


def is_direct(offset: PatchOffset, geometry: Geometry) -> bool:
    """Whether W itself is the shortest way: alpha D + S is then a sparse weight with every place taken."""
    return geometry.taps > 1 and offset.shape[1] <= DIRECT


def _weight(values: Tensor, positions: Tensor, alpha: Tensor, offset: PatchOffset) -> Tensor:
    dense = (offset_products.weight(offset, values.dtype, values.device) * alpha).view(-1)
    return dense.index_add_(0, positions, values)


def _direct_backward(
    grad: Tensor,
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    alpha: Tensor,
    offset: PatchOffset,
    geometry: Geometry,
    needs: tuple[bool, bool, bool],
) -> Gradients:
    weight, where = _weight(values, positions, alpha, offset), _every_place(geometry)
    target = torch.empty_like(x) if needs[0] else None
    full = torch.empty_like(weight) if needs[2] else None
    some = torch.empty_like(values) if needs[1] and not needs[2] else None
    if needs[0] or needs[2]:
        _backward(grad, x, weight, where, None, 0.0, geometry, target, full, False)
    if some is not None:  # alpha alone needs the gradient of every place
        _backward(grad, x, values, _places(positions, geometry), None, 0.0, geometry, None, some, False)
    if full is None:
        return target, some, None
    alpha_grad = torch.dot(full, offset_products.weight(offset, x.dtype, x.device).view(-1))
    return target, full.index_select(0, positions) if needs[1] else None, alpha_grad


def _every_place(geometry: Geometry) -> Any:
    def make() -> Plan:
        size = geometry.filters * geometry.group_channels * geometry.taps
        return Plan(native.Sparse(geometry.pack(), torch.arange(size, device="cpu").numpy()), 32 * size)

    return _full.get(geometry, make).own


# --- calls ----------------------------------------------------------------------------------------------------------


def _places(positions: Tensor, geometry: Geometry) -> Any:
    def make(places: Tensor) -> Any:
        return native.Sparse(geometry.pack(), places.long().contiguous().numpy())

    return sparse.planned(positions, geometry, "native", make)


def _forward(x: Tensor, values: Tensor, where: Any, plan: Any, alpha: float, geometry: Geometry, out: Tensor) -> None:
    threads = torch.get_num_threads()
    native.forward(geometry.pack(), _raw(x), plan, alpha, where, _raw(values.contiguous()), None, _raw(out), threads)


def _backward(
    grad: Tensor,
    x: Tensor,
    values: Tensor,
    where: Any,
    plan: Any,
    alpha: float,
    geometry: Geometry,
    x_grad: Tensor | None,
    values_grad: Tensor | None,
    needs_alpha: bool,
) -> float:
    targets = [None if target is None else _raw(target) for target in (x_grad, values_grad)]
    numbers = geometry.pack()
    if x_grad is not None and max(geometry.stride, default=1) > 1 and not native.reads_all(numbers, list(x.shape)):
        x_grad.zero_()  # pixels that no output reads
    arrays = _raw(grad), _raw(x), plan, alpha, where, _raw(values.contiguous())
    return float(native.backward(numbers, *arrays, *targets, needs_alpha, torch.get_num_threads()))


def _raw(tensor: Tensor) -> Tensor:
    """A tensor that DLPack lets out: without its gradient."""
    return tensor.detach()
