"""(alpha D + S) x and its gradients by the native kernels; parts that they do not have come from torch."""

from typing import Any

import torch
from torch import Tensor

from dctps.base.cache import Cache
from dctps.core.geometry import Geometry
from dctps.core.offsets import PatchOffset
from dctps.ops import offset_torch, sparse
from dctps.ops.native import kernels
from dctps.ops.native.plans import Plan, offset_plan

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
        return _direct_forward(x, _weight(values, positions, alpha, offset), geometry, out)
    if offset is not None and alpha is not None and is_pointwise(geometry, values.numel(), x, out):
        layer = _pointwise_layer(values, positions, alpha, offset, geometry)
        kernels.pointwise_forward(_raw(x), *layer, _raw(out), torch.get_num_threads())
        return
    plan = None if offset is None else offset_plan(offset, geometry, x.dtype)
    scale = 0.0 if alpha is None or plan is None else alpha.item()
    _forward(x, values, _places(positions, geometry), plan, scale, geometry, out)
    if offset is not None and alpha is not None and plan is None:
        out.add_(offset_torch.forward(x, offset, geometry) * alpha)


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
    if offset is not None and alpha is not None and is_pointwise(geometry, values.numel(), x, grad):
        return _pointwise_backward(grad, x, values, positions, alpha, offset, geometry, needs)
    plan = None if offset is None else offset_plan(offset, geometry, x.dtype)
    scale = 0.0 if alpha is None or plan is None else alpha.item()
    values_grad = torch.empty_like(values) if needs_values else None
    where = _places(positions, geometry)
    x_grad = torch.empty_like(x) if needs_x else None
    inner = _backward(grad, x, values, where, plan, scale, geometry, x_grad, values_grad, needs_alpha)
    alpha_grad = None if alpha is None else alpha.new_tensor(inner)
    if offset is not None and alpha is not None and plan is None and (needs_x or needs_alpha):
        back = offset_torch.adjoint(grad, offset, geometry, tuple(x.shape[2:]))
        alpha_grad = torch.sum(x * back)
        x_grad = None if x_grad is None else x_grad.add_(back * alpha)
    return x_grad, values_grad, alpha_grad if needs_alpha else None


# --- filters so short that they are applied as they are: depthwise convolutions above all ---------------------------


DIRECT = 64  # entries of a filter


def is_direct(offset: PatchOffset, geometry: Geometry) -> bool:
    """Whether W itself is the shortest way: alpha D + S is then a sparse weight with every place taken."""
    return geometry.taps > 1 and offset.shape[1] <= DIRECT


def _weight(values: Tensor, positions: Tensor, alpha: Tensor, offset: PatchOffset) -> Tensor:
    dense = (offset_torch.weight(offset, values.dtype, values.device) * alpha).view(-1)
    return dense.index_add_(0, positions, values)


def _direct_forward(x: Tensor, weight: Tensor, geometry: Geometry, out: Tensor) -> None:
    if _is_depthwise(geometry, x, out):
        kernels.depthwise_forward(geometry.pack(), _raw(x), _raw(weight), _raw(out), torch.get_num_threads())
    else:
        _forward(x, weight, _every_place(geometry), None, 0.0, geometry, out)


def _is_depthwise(geometry: Geometry, *tensors: Tensor) -> bool:
    """Whether the kernels that take channels as they lie serve: one channel per filter, channels-last tensors."""
    alone = geometry.group_channels == 1 and geometry.filters == geometry.groups
    return alone and all(tensor.stride(1) == 1 for tensor in tensors)


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
    if _is_depthwise(geometry, x, grad):
        some, full = None, torch.empty_like(weight) if needs[1] or needs[2] else None
        targets = [None if t is None else _raw(t) for t in (target, full)]
        kernels.depthwise_backward(
            geometry.pack(), _raw(grad), _raw(x), _raw(weight), *targets, torch.get_num_threads()
        )
    elif needs[0] or needs[2]:
        _backward(grad, x, weight, where, None, 0.0, geometry, target, full, False)
    if some is not None:  # alpha alone needs the gradient of every place
        _backward(grad, x, values, _places(positions, geometry), None, 0.0, geometry, None, some, False)
    if full is None:
        return target, some, None
    alpha_grad = torch.dot(full, offset_torch.weight(offset, x.dtype, x.device).view(-1)) if needs[2] else None
    return target, full.index_select(0, positions) if needs[1] else None, alpha_grad


def _every_place(geometry: Geometry) -> Any:
    def make() -> Plan:
        size = geometry.filters * geometry.group_channels * geometry.taps
        return Plan(kernels.Sparse(geometry.pack(), torch.arange(size, device="cpu").numpy()), 32 * size)

    return _full.get(geometry, make).own


# --- 1x1 layers with so few channels that a transform would not pay for changing the memory format -------------------


POINTWISE = 1 << 13  # weights; above, the transform is faster although it changes the memory format there and back
SAMPLED = 1 / 32  # density; above, the gradient at single places costs more than a product


def is_pointwise(geometry: Geometry, nnz: int, *tensors: Tensor) -> bool:
    """Whether W itself is applied to the pixels as they lie."""
    size = geometry.filters * geometry.group_channels
    plain = geometry.taps == geometry.groups == 1 and max(geometry.stride, default=1) == 1 and not any(geometry.padding)
    return plain and size <= POINTWISE and nnz <= SAMPLED * size and all(_dense_pixels(tensor) for tensor in tensors)


def _dense_pixels(x: Tensor) -> bool:
    return x.movedim(1, -1).is_contiguous()


def _pointwise_layer(
    values: Tensor, positions: Tensor, alpha: Tensor, offset: PatchOffset, geometry: Geometry
) -> tuple[Any, ...]:
    table = offset_torch.weight(offset, values.dtype, values.device).view(offset.shape)
    return table, alpha.item(), _places(positions, geometry), _raw(values.contiguous())


def _pointwise_backward(
    grad: Tensor,
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    alpha: Tensor,
    offset: PatchOffset,
    geometry: Geometry,
    needs: tuple[bool, bool, bool],
) -> Gradients:
    layer = _pointwise_layer(values, positions, alpha, offset, geometry)
    targets = [torch.empty_like(t) if need else None for t, need in zip((x, values), needs[:2], strict=True)]
    raw = [None if t is None else _raw(t) for t in targets]
    inner = kernels.pointwise_backward(_raw(grad), _raw(x), *layer, *raw, torch.get_num_threads())
    return targets[0], targets[1], alpha.new_tensor(inner) if needs[2] else None


# --- calls ----------------------------------------------------------------------------------------------------------


def _places(positions: Tensor, geometry: Geometry) -> Any:
    def make(places: Tensor) -> Any:
        return kernels.Sparse(geometry.pack(), places.long().contiguous().numpy())

    return sparse.planned(positions, geometry, "native", make)


def _forward(x: Tensor, values: Tensor, where: Any, plan: Any, alpha: float, geometry: Geometry, out: Tensor) -> None:
    threads = torch.get_num_threads()
    kernels.forward(geometry.pack(), _raw(x), plan, alpha, where, _raw(values.contiguous()), None, _raw(out), threads)


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
    if x_grad is not None and max(geometry.stride, default=1) > 1 and not kernels.reads_all(numbers, list(x.shape)):
        x_grad.zero_()  # pixels that no output reads
    arrays = _raw(grad), _raw(x), plan, alpha, where, _raw(values.contiguous())
    return float(kernels.backward(numbers, *arrays, *targets, needs_alpha, torch.get_num_threads()))


def _raw(tensor: Tensor) -> Tensor:
    """A tensor that DLPack lets out: without its gradient."""
    return tensor.detach()
