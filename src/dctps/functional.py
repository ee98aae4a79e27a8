"""y = (alpha D + S) x for linear layers and convolutions: one operator with its gradients, several backends.

    dL/dx      = alpha D'g + S'g
    dL/dvalues = the weight gradient at the support, sampled
    dL/dalpha  = <x, D'g>: a by-product of dL/dx

The `torch` backend saves x and nothing else for the backward pass, and holds O(nnz) numbers for S and its gradient.
The `dense` backend builds W and calls torch's own operator; only the gradient at the support leaves the layer.

Both are built from operators of `torch.library`, so torch.compile and torch.export see them as such. An offset
crosses that border as its name, because operators take tensors, numbers and strings; a user's own `Offset` object
has no name and is composed from its own `apply` and `matrix` instead.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dctps import offset_products, sparse
from dctps.geometry import Geometry, convolve
from dctps.offsets import Offset, PatchOffset, TransformOffset
from dctps.registry import lookup


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
    """(alpha D + S) x + bias."""
    run = lookup(BACKENDS, backend, "backend")
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        x = x.to(torch.get_autocast_dtype(x.device.type))
    return run(x, values, positions, alpha, bias, offset, geometry)


def dense_weight(
    values: Tensor, positions: Tensor, alpha: Tensor | None, offset: Offset | None, shape: tuple[int, ...]
) -> Tensor:  # of shape `shape`
    """alpha D + S, differentiable in values and alpha."""
    named = alpha if isinstance(offset, PatchOffset) else None
    weight: Tensor = _weight(values, positions, named, _name(offset), list(shape))
    if offset is None or alpha is None or isinstance(offset, PatchOffset):
        return weight
    return weight + alpha * offset.matrix().to(values).reshape(shape)


def _name(offset: Offset | None) -> str:
    return offset.recipe.name if isinstance(offset, PatchOffset) else ""


def _offset(name: str, shape: tuple[int, ...]) -> PatchOffset:
    return TransformOffset.parse(name).bind(shape)


# --- dense backend --------------------------------------------------------------------------------------------------


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


@torch.library.custom_op("dctps::weight", mutates_args=())
def _weight(values: Tensor, positions: Tensor, alpha: Tensor | None, offset: str, shape: list[int]) -> Tensor:
    if alpha is None:
        weight = values.new_zeros(shape)
    else:
        weight = alpha * offset_products.weight(_offset(offset, tuple(shape)), values.dtype, values.device)
    weight.view(-1).index_add_(0, positions, values)
    return weight


@_weight.register_fake
def _(values: Tensor, positions: Tensor, alpha: Tensor | None, offset: str, shape: list[int]) -> Tensor:
    return values.new_empty(shape)


@torch.library.custom_op("dctps::weight_backward", mutates_args=())
def _weight_backward(
    grad: Tensor, positions: Tensor, offset: str, shape: list[int], needs_alpha: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of values and alpha from the dense gradient of W."""
    values = grad.reshape(-1).index_select(0, positions)
    if not needs_alpha:
        return values, grad.new_zeros(())
    own = offset_products.weight(_offset(offset, tuple(shape)), grad.dtype, grad.device)
    return values, torch.sum(grad * own)


@_weight_backward.register_fake
def _(grad: Tensor, positions: Tensor, offset: str, shape: list[int], needs_alpha: bool) -> tuple[Tensor, Tensor]:
    return grad.new_empty(positions.shape), grad.new_empty(())


def _weight_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, positions, _, ctx.offset, ctx.shape = inputs
    ctx.save_for_backward(positions)


def _weight_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    needs_alpha = ctx.needs_input_grad[2]
    values, alpha = _weight_backward(grad, *ctx.saved_tensors, ctx.offset, ctx.shape, needs_alpha)
    return values, None, alpha if needs_alpha else None, None, None


_weight.register_autograd(_weight_gradients, setup_context=_weight_setup)


# --- torch backend --------------------------------------------------------------------------------------------------


def _fast(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    alpha: Tensor | None,
    bias: Tensor | None,
    offset: Offset | None,
    geometry: Geometry,
) -> Tensor:
    g = geometry
    named = alpha if isinstance(offset, PatchOffset) else None
    lists = list(g.weight_shape), list(g.stride), list(g.padding), list(g.dilation)
    y: Tensor = _multiply(x, values, positions, named, _name(offset), *lists, g.groups)
    if named is None and alpha is not None:
        assert offset is not None
        y = y + alpha.to(y.dtype) * offset_products.forward(x, offset, g)
    return y if bias is None else y + bias.to(y.dtype).view(-1, *(1,) * g.axes)


@torch.library.custom_op("dctps::multiply", mutates_args=())
def _multiply(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    alpha: Tensor | None,
    offset: str,
    shape: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    geometry = Geometry(tuple(shape), tuple(stride), tuple(padding), tuple(dilation), groups)
    work = _work_dtype(x)
    source = x.to(work)
    with torch.autocast(x.device.type, enabled=False):
        y = sparse.forward(source, values.to(work), positions, geometry)
        if alpha is not None:
            own = offset_products.forward(source, _offset(offset, geometry.weight_shape), geometry)
            y = y.add_(own * alpha.to(work))
    return y.to(x.dtype).contiguous()


def _work_dtype(x: Tensor) -> torch.dtype:
    return x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32


@_multiply.register_fake
def _(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    alpha: Tensor | None,
    offset: str,
    shape: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    geometry = Geometry(tuple(shape), tuple(stride), tuple(padding), tuple(dilation), groups)
    return x.new_empty(x.shape[0], shape[0], *geometry.output_size(x.shape[2:]))


@torch.library.custom_op("dctps::multiply_backward", mutates_args=())
def _multiply_backward(
    grad: Tensor,
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    alpha: Tensor | None,
    offset: str,
    shape: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, values and alpha; those not needed come back as empty tensors."""
    geometry = Geometry(tuple(shape), tuple(stride), tuple(padding), tuple(dilation), groups)
    needs_x, needs_values, needs_alpha = needs
    spatial, work = tuple(x.shape[2:]), _work_dtype(x)
    source, g = x.to(work), grad.to(work)
    x_grad, values_grad, alpha_grad = x.new_empty(0), values.new_empty(0), values.new_empty(0)
    with torch.autocast(x.device.type, enabled=False):
        if needs_values:
            values_grad = sparse.sampled_gradient(g, source, positions, geometry).to(values.dtype)
        if needs_x:
            x_grad = sparse.adjoint(g, values.to(work), positions, geometry, spatial)
        if alpha is not None and (needs_x or needs_alpha):
            back = offset_products.adjoint(g, _offset(offset, geometry.weight_shape), geometry, spatial)
            alpha_grad = torch.sum(source * back).to(alpha.dtype)
            x_grad = x_grad.add_(back * alpha.to(work)) if needs_x else x_grad
    return x_grad.to(x.dtype).contiguous(), values_grad, alpha_grad


@_multiply_backward.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    alpha: Tensor | None,
    offset: str,
    shape: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    none = values.new_empty(0)
    scalar = none if alpha is None or not (needs[0] or needs[2]) else alpha.new_empty(())
    x_grad = torch.empty_like(x, memory_format=torch.contiguous_format) if needs[0] else x.new_empty(0)
    return x_grad, torch.empty_like(values) if needs[1] else none, scalar


def _multiply_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, values, positions, alpha, *ctx.layer = inputs
    ctx.save_for_backward(x, values, positions, alpha)


def _multiply_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    needs = [ctx.needs_input_grad[i] for i in (0, 1, 3)]
    x, values, alpha = _multiply_backward(grad, *ctx.saved_tensors, *ctx.layer, needs)
    return (
        x if needs[0] else None,
        values if needs[1] else None,
        None,
        alpha if needs[2] else None,
        *(None for _ in ctx.layer),
    )


_multiply.register_autograd(_multiply_gradients, setup_context=_multiply_setup)


BACKENDS: dict[str, Callable[..., Tensor]] = {"dense": _dense, "torch": _fast}


def choose_backend(geometry: Geometry, nnz: int) -> str:
    """The simple rule behind `auto`: dense weights for small or well-filled layers, else never a dense weight."""
    size = geometry.filters * geometry.group_channels * geometry.taps
    return "dense" if size <= SMALL or nnz > WELL_FILLED * size else "torch"


SMALL = 1 << 17  # weights
WELL_FILLED = 0.1  # density
