"""The adjoint S' y of a sparse linear layer or convolution, with its gradients, on the operators of `operators.py`.

For a gradient g of the output S' y, the first derivatives are dL/dy = S g and dL/dS = the weight gradient with g in the
place of the input and y in the place of the gradient of the output.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dctps.core.geometry import Geometry, convolve_adjoint
from dctps.ops import operators
from dctps.ops.weight import dense_weight, torch_func_is_active


def multiply_adjoint(
    y: Tensor,  # (batch, filters, *output)
    values: Tensor,  # (nnz,)
    positions: Tensor,  # (nnz,)
    geometry: Geometry,
    spatial: Sequence[int],
    native: bool,
) -> Tensor:  # (batch, channels, *spatial)
    """Return S' y; under autocast it is computed in autocast's type, as torch's own layers do."""
    kind = y.device.type
    if torch.is_autocast_enabled(kind) and y.is_floating_point() and y.dtype != torch.float64:
        y = y.to(torch.get_autocast_dtype(kind))
    elif y.dtype != values.dtype:
        raise ValueError(f"the input is {y.dtype}, but the layer {values.dtype}; convert one of them with .to()")
    if torch_func_is_active():
        weight = dense_weight(values, positions, None, None, geometry.weight_shape).to(y.dtype)
        return convolve_adjoint(y, weight, geometry, spatial)
    shape = (len(y), geometry.channels, *spatial)
    result: Tensor = _Adjoint.apply(y, values, positions, geometry, shape, native)  # type: ignore[no-untyped-call]
    return result


class _Adjoint(torch.autograd.Function):
    """S' y, which is the gradient of the input of S x; its own gradients are products of the same operators."""

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, values: Tensor, positions: Tensor, geometry: Geometry, shape: tuple[int, ...], native: bool
    ) -> Tensor:
        ctx.save_for_backward(y, values, positions)
        ctx.layer = "", geometry.pack(), native
        only_input = [True, False, False]
        source = y.new_empty(shape)  # it is not read, only its shape
        result: Tensor = operators.multiply_backward(y, source, values, positions, None, *ctx.layer, only_input)[0]
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, values, positions = ctx.saved_tensors
        needs_y, needs_values, *_ = ctx.needs_input_grad
        y_grad = operators.multiply(grad, values, positions, None, *ctx.layer) if needs_y else None
        only_values = [False, True, False]
        layer = values, positions, None, *ctx.layer
        values_grad = operators.multiply_backward(y, grad, *layer, only_values)[1] if needs_values else None
        return y_grad, values_grad, None, None, None, None
