"""The operators of `torch.library` behind the layers, with first and second derivatives.

torch.compile and torch.export see them as they are. Operators take tensors, numbers and strings, so an offset comes
in as its name and a geometry as a list of integers.

    dctps::weight     W = alpha D + S, dense
    dctps::multiply   (alpha D + S) x, without W, by torch's operators or by the native kernels:
                      dL/dx = alpha D'g + S'g,  dL/dvalues sampled at the support,  dL/dalpha = <x, D'g>
"""

from typing import Any

import torch
from torch import Tensor

from dctps.core.geometry import Geometry
from dctps.core.offsets import PatchOffset, TransformOffset
from dctps.ops import offset_torch, sparse
from dctps.ops.native import products


def _offset(name: str, shape: tuple[int, ...]) -> PatchOffset:
    return TransformOffset.parse(name).bind(shape)


def _dense_offset(name: str, shape: list[int], like: Tensor) -> Tensor:
    return offset_torch.weight(_offset(name, tuple(shape)), like.dtype, like.device)


# --- the dense weight -----------------------------------------------------------------------------------------------


@torch.library.custom_op("dctps::weight", mutates_args=())
def weight(values: Tensor, positions: Tensor, alpha: Tensor | None, offset: str, shape: list[int]) -> Tensor:
    """alpha D + S of the given shape; S alone where alpha is None."""
    dense = values.new_zeros(shape) if alpha is None else alpha * _dense_offset(offset, shape, values)
    dense.view(-1).index_add_(0, positions, values)
    return dense


@weight.register_fake
def _(values: Tensor, positions: Tensor, alpha: Tensor | None, offset: str, shape: list[int]) -> Tensor:
    return values.new_empty(shape)


@torch.library.custom_op("dctps::weight_backward", mutates_args=())
def weight_backward(
    grad: Tensor, positions: Tensor, offset: str, shape: list[int], needs_alpha: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of values and alpha from the dense gradient of W."""
    values = grad.reshape(-1).index_select(0, positions)
    alpha = torch.sum(grad * _dense_offset(offset, shape, grad)) if needs_alpha else grad.new_zeros(())
    return values, alpha


@weight_backward.register_fake
def _(grad: Tensor, positions: Tensor, offset: str, shape: list[int], needs_alpha: bool) -> tuple[Tensor, Tensor]:
    return grad.new_empty(positions.shape), grad.new_empty(())


def _weight_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, positions, _, ctx.offset, ctx.shape = inputs
    ctx.save_for_backward(positions)


def _weight_first(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    needs_alpha = ctx.needs_input_grad[2]
    values, alpha = weight_backward(grad, *ctx.saved_tensors, ctx.offset, ctx.shape, needs_alpha)
    return values, None, alpha if needs_alpha else None, None, None


def _weight_backward_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, positions, ctx.offset, ctx.shape, ctx.needs_alpha = inputs
    ctx.save_for_backward(positions)


def _weight_second(ctx: Any, values: Tensor, alpha: Tensor) -> tuple[Tensor | None, ...]:
    """`weight_backward` is the adjoint of `weight`, and so the other way round."""
    grad = weight(values, *ctx.saved_tensors, alpha if ctx.needs_alpha else None, ctx.offset, ctx.shape)
    return grad, None, None, None, None


weight.register_autograd(_weight_first, setup_context=_weight_setup)
weight_backward.register_autograd(_weight_second, setup_context=_weight_backward_setup)


# --- the product ----------------------------------------------------------------------------------------------------


@torch.library.custom_op("dctps::multiply", mutates_args=())
def multiply(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    alpha: Tensor | None,
    offset: str,
    geometry: list[int],
    native: bool,
) -> Tensor:
    """(alpha D + S) x: (batch, channels, *spatial) -> (batch, filters, *output); half types work in float32."""
    g, work = Geometry.unpack(geometry), _work_dtype(x)
    args = x.to(work), values.to(work), positions, _scale(alpha, work), _bound(offset, alpha, g), g
    with torch.autocast(x.device.type, enabled=False):
        if native:
            y = _output(args[0], g)
            products.forward(*args, y)
            return y.to(x.dtype)
        y = _torch_forward(*args)
    return y.to(x.dtype).clone(memory_format=_layout(x))  # a tensor of its own, never a view


def _torch_forward(
    x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, offset: PatchOffset | None, geometry: Geometry
) -> Tensor:
    y = sparse.forward(x, values, positions, geometry)
    if alpha is None or offset is None:
        return y
    return y.add_(offset_torch.forward(x, offset, geometry) * alpha)


def _bound(offset: str, alpha: Tensor | None, geometry: Geometry) -> PatchOffset | None:
    return None if alpha is None else _offset(offset, geometry.weight_shape)


def _scale(alpha: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if alpha is None else alpha.to(dtype)


def _output(x: Tensor, geometry: Geometry) -> Tensor:
    """Room for the result, in memory as the input is."""
    size = x.shape[0], geometry.filters, *geometry.output_size(x.shape[2:])
    return torch.empty(size, dtype=x.dtype, device=x.device, memory_format=_layout(x))


def _layout(x: Tensor) -> torch.memory_format:
    """Channels-last for channels-last input, else contiguous: results lie in memory as their source does."""
    for dims, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if x.dim() == dims and x.is_contiguous(memory_format=layout) and not x.is_contiguous():
            return layout
    return torch.contiguous_format


def _work_dtype(x: Tensor) -> torch.dtype:
    return x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32


@multiply.register_fake
def _(
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    alpha: Tensor | None,
    offset: str,
    geometry: list[int],
    native: bool,
) -> Tensor:
    return _output(x, Geometry.unpack(geometry))


@torch.library.custom_op("dctps::multiply_backward", mutates_args=())
def multiply_backward(
    grad: Tensor,
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    alpha: Tensor | None,
    offset: str,
    geometry: list[int],
    native: bool,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, values and alpha; those not needed come back as empty tensors."""
    g, work = Geometry.unpack(geometry), _work_dtype(x)
    args = x.to(work), values.to(work), positions, _scale(alpha, work), _bound(offset, alpha, g), g
    run = products.backward if native else _torch_backward
    with torch.autocast(x.device.type, enabled=False):
        x_grad, values_grad, alpha_grad = run(grad.to(work), *args, (needs[0], needs[1], needs[2]))
    return (
        x.new_empty(0) if x_grad is None else _as_owned(x_grad, x),
        values.new_empty(0) if values_grad is None else values_grad.to(values.dtype),
        values.new_empty(0) if alpha_grad is None or alpha is None else alpha_grad.to(alpha.dtype),
    )


def _as_owned(gradient: Tensor, x: Tensor) -> Tensor:
    """In the type and layout of x, as a tensor of its own and never a view."""
    gradient = gradient.to(x.dtype)
    whole = gradient._base is None and gradient.is_contiguous(memory_format=_layout(x))
    return gradient if whole else gradient.clone(memory_format=_layout(x))


def _torch_backward(
    grad: Tensor,
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    alpha: Tensor | None,
    offset: PatchOffset | None,
    geometry: Geometry,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    needs_x, needs_values, needs_alpha = needs
    spatial = tuple(x.shape[2:])
    values_grad = sparse.sampled_gradient(grad, x, positions, geometry) if needs_values else None
    x_grad = sparse.adjoint(grad, values, positions, geometry, spatial) if needs_x else None
    alpha_grad = None
    if alpha is not None and offset is not None and (needs_x or needs_alpha):
        back = offset_torch.adjoint(grad, offset, geometry, spatial)
        alpha_grad = torch.sum(x * back) if needs_alpha else None
        x_grad = None if x_grad is None else x_grad.add_(back * alpha)
    return x_grad, values_grad, alpha_grad


@multiply_backward.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    values: Tensor,
    positions: Tensor,
    alpha: Tensor | None,
    offset: str,
    geometry: list[int],
    native: bool,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    x_grad = torch.empty_like(x, memory_format=_layout(x)) if needs[0] else x.new_empty(0)
    with_alpha = alpha is not None and needs[2]
    return x_grad, values.new_empty(values.shape if needs[1] else 0), values.new_empty(() if with_alpha else 0)


def _multiply_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, values, positions, alpha, *ctx.layer = inputs
    ctx.save_for_backward(x, values, positions, alpha)


def _multiply_first(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    needs = [ctx.needs_input_grad[i] for i in (0, 1, 3)]
    grads = multiply_backward(grad, *ctx.saved_tensors, *ctx.layer, needs)
    x, values, alpha = (grad if needed else None for grad, needed in zip(grads, needs, strict=True))
    return x, values, None, alpha, None, None, None


def _multiply_backward_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    grad, x, values, positions, alpha, *ctx.layer, ctx.needs = inputs
    ctx.save_for_backward(grad, x, values, positions, alpha)


def _multiply_second(ctx: Any, dx: Tensor, dvalues: Tensor, dalpha: Tensor) -> tuple[Tensor | None, ...]:
    """Second derivatives: A x is linear in x and in (values, alpha), so everything is the two operators again.

    With A = alpha D + S and dA = dalpha D + dS, the first derivatives <dx, A'g> + <dA x, g> have the gradients
    A dx + dA x in g, dA'g in x, and in A those of `multiply_backward` with dx in the place of x.
    """
    grad, x, values, positions, alpha = ctx.saved_tensors
    needs_x, needs_values, needs_alpha = ctx.needs
    dx = dx if needs_x else torch.zeros_like(x)
    dvalues = dvalues if needs_values else torch.zeros_like(values)
    da = None if alpha is None else (dalpha if needs_alpha else torch.zeros_like(alpha))
    d_grad = multiply(dx, values, positions, alpha, *ctx.layer) + multiply(x, dvalues, positions, da, *ctx.layer)
    d_x, _, _ = multiply_backward(grad, x, dvalues, positions, da, *ctx.layer, [True, False, False])
    wanted = [False, True, alpha is not None]
    _, d_values, d_alpha = multiply_backward(grad, dx, values, positions, alpha, *ctx.layer, wanted)
    return d_grad, d_x, d_values, None, None if alpha is None else d_alpha, None, None, None, None


multiply.register_autograd(_multiply_first, setup_context=_multiply_setup)
multiply_backward.register_autograd(_multiply_second, setup_context=_multiply_backward_setup)
