"""`dctps::multiply`, the operator of `torch.library` behind the layers, with first and second derivatives.

It computes (alpha D + S) x without W. For a gradient g of the output, the first derivatives are

    dL/dx = alpha D'g + S'g,    dL/dvalues = the weight gradient at the support,    dL/dalpha = <x, D'g>

torch.compile and torch.export treat it as one operator. Operators take tensors, numbers and strings, so an offset is
passed by its name and a geometry as a list of integers. From the second call on, both are found in caches.
"""

from typing import Any

import torch
from torch import Tensor

from dctps.core.geometry import Geometry
from dctps.ops import routes
from dctps.ops.route import Layout, Route, empty_output, forward_layout, layout_of, memory_format
from dctps.ops.weight import offset_by_name, refuse_onnx


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
    """Return (alpha D + S) x, where x is (batch, channels, *spatial); the half types are computed in float32."""
    g, work = Geometry.unpack(geometry), _work_dtype(x)
    source = x.to(work)
    route = _route(forward_layout(source, g), values, alpha, offset, g, native)
    with torch.autocast(x.device.type, enabled=False):
        y = route.forward(source, values.to(work), positions, _in_type(alpha, work)).to(x.dtype)
    return y if native else y.clone(memory_format=memory_format(x))  # an operator must not return a view


def _route(
    layout: Layout, values: Tensor, alpha: Tensor | None, offset: str, geometry: Geometry, native: bool
) -> Route:
    bound = None if alpha is None else offset_by_name(offset, geometry.weight_shape)
    return routes.choose(bound, geometry, layout, "native" if native else "torch", values.numel())


def _in_type(alpha: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if alpha is None else alpha.to(dtype)


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
    refuse_onnx()
    return empty_output(x, Geometry.unpack(geometry))


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
    """Return the gradients of x, values and alpha, with an empty tensor in place of each that is not needed."""
    work = _work_dtype(x)
    upstream, source, scale = grad.to(work), x.to(work), _in_type(alpha, work)
    layout = layout_of(source, upstream)
    route = _route(layout, values, alpha, offset, Geometry.unpack(geometry), native)
    with torch.autocast(x.device.type, enabled=False):
        x_grad, values_grad, alpha_grad = route.backward(
            upstream, source, values.to(work), positions, scale, (needs[0], needs[1], needs[2])
        )
    return (
        x.new_empty(0) if x_grad is None else _not_a_view(x_grad, x),
        values.new_empty(0) if values_grad is None else values_grad.to(values.dtype),
        values.new_empty(0) if alpha_grad is None or alpha is None else alpha_grad.to(alpha.dtype).reshape(alpha.shape),
    )


def _not_a_view(gradient: Tensor, x: Tensor) -> Tensor:
    """Return the gradient in the type and memory format of x, cloned where it is a view."""
    gradient = gradient.to(x.dtype)
    whole = gradient._base is None and gradient.is_contiguous(memory_format=memory_format(x))
    return gradient if whole else gradient.clone(memory_format=memory_format(x))


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
    x_grad = torch.empty_like(x, memory_format=memory_format(x)) if needs[0] else x.new_empty(0)
    alpha_shape = alpha.shape if alpha is not None and needs[2] else 0
    return x_grad, values.new_empty(values.shape if needs[1] else 0), values.new_empty(alpha_shape)


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
    """Return the second derivatives, which the two operators compute because A x is linear in x and in (values, alpha).

    With A = alpha D + S and dA = dalpha D + dS, the sum <dx, A'g> + <dA x, g> of the first derivatives has the gradient
    A dx + dA x in g and the gradient dA'g in x. Its gradients in values and alpha are those of `multiply_backward` with
    dx in the place of x.
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
