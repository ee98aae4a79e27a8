"""The product y = (W0 + S) x + bias of a linear layer whose W0 is frozen, as one node of autograd's graph.

torch's matrix products with W0 add to what the native kernels have written for S, so no sum is a pass over memory of
its own. W0 gets no gradient. For a gradient g of the output, dL/dx = g W0 + S' g. Second derivatives are those of the
operators.
"""

from typing import Any

import torch
from torch import Tensor

from dctps.ops import operators
from dctps.ops.eager import Plan
from dctps.ops.weight import is_eager


def multiply(
    x: Tensor,  # (rows, in)
    base: Tensor,  # W0, (out, in)
    bias: Tensor | None,  # (out,)
    values: Tensor,  # (nnz,)
    positions: Tensor,  # (nnz,)
    plan: Plan,
) -> Tensor:  # (rows, out)
    """Return (W0 + S) x + bias by a plan for S; the tensors are on the CPU and of one type, and `is_eager()`."""
    if torch.is_grad_enabled():
        y: Tensor = _apply(x, values, bias, base, positions, plan)  # type: ignore[no-untyped-call]
        return y
    return _product(x, values, bias, base, positions, plan)


def _product(x: Tensor, values: Tensor, bias: Tensor | None, base: Tensor, positions: Tensor, plan: Plan) -> Tensor:
    return plan.forward(x, values, positions, None, bias).addmm_(x, base.t())


class Multiply(torch.autograd.Function):
    """The node of autograd's graph: it saves x, which is not needed for dL/dx, and the layer's own tensors."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, values: Tensor, bias: Tensor | None, base: Tensor, positions: Tensor, plan: Plan
    ) -> Tensor:
        ctx.save_for_backward(x, values, base, positions)
        ctx.plan = plan
        return _product(x, values, bias, base, positions, plan)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, values, base, positions = ctx.saved_tensors
        plan, (needs_x, needs_values, needs_bias, *_) = ctx.plan, ctx.needs_input_grad
        x_grad: Tensor | None
        values_grad: Tensor | None
        if torch.is_grad_enabled() or not is_eager():
            layer = x, values, positions, None, "", plan.geometry.pack(), True
            x_grad, values_grad, _ = operators.multiply_backward(grad, *layer, [needs_x, needs_values, False])
            x_grad = x_grad + grad @ base if needs_x else None
        else:
            needs = needs_x, needs_values, False
            x_grad, values_grad, _ = plan.backward_route(grad, x).backward(grad, x, values, positions, None, needs)
            x_grad = None if x_grad is None else x_grad.addmm_(grad, base)
        return x_grad, values_grad if needs_values else None, grad.sum(0) if needs_bias else None, None, None, None


# Function.apply looks for transforms of torch.func first, which `is_eager` has excluded.
_apply = super(torch.autograd.Function, Multiply).apply
