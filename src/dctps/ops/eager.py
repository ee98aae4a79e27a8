"""The product y = (alpha D + S) x + bias by a route of the native kernels, as one node of autograd's graph.

`operators.py` computes the same by operators of torch.library, which torch.compile, torch.export and others can look
into. A call of such an operator takes tens of microseconds, more than a small layer computes. Where nobody looks on, a
layer calls `multiply` below. Second derivatives are those of the operators.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from dctps.core.geometry import Geometry
from dctps.core.patch_offset import PatchOffset
from dctps.ops import operators, routes
from dctps.ops.route import FinishingRoute, Route, finishing, forward_layout, layout_of
from dctps.ops.weight import is_eager

PLAIN = (Tensor, torch.nn.Parameter)  # classes of tensors that are what they seem; any other may be a wrapper


@dataclasses.dataclass(slots=True)
class Plan:
    """The routes by which a layer computes on inputs of one shape and layout in memory."""

    geometry: Geometry
    offset: PatchOffset | None
    nnz: int
    route: Route
    finishing: FinishingRoute | None  # the route, if it can finish its output
    bias_shape: tuple[int, ...]
    backward_routes: dict[tuple[int, ...], Route]  # by the strides of the gradient of the output

    @classmethod
    def of(cls, x: Tensor, nnz: int, offset: PatchOffset | None, geometry: Geometry) -> "Plan":
        """Return the plan for inputs like x."""
        route = routes.choose(offset, geometry, forward_layout(x, geometry), "native", nnz)
        return cls(geometry, offset, nnz, route, finishing(route), (-1, *(1 for _ in geometry.kernel)), {})

    def forward(
        self, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        """Return (alpha D + S) x + bias, without a graph."""
        y = self.route.forward(x, values, positions, alpha)
        if bias is not None:
            y += bias if x.dim() == 2 else bias.view(self.bias_shape)
        return y

    def backward_route(self, grad: Tensor, x: Tensor) -> Route:
        """Return the route for a gradient of the output, which may lie in memory in another way than the output."""
        key = grad.stride()
        if key not in self.backward_routes:
            self.backward_routes[key] = routes.choose(
                self.offset, self.geometry, layout_of(x, grad), "native", self.nnz
            )
        return self.backward_routes[key]


class Multiply(torch.autograd.Function):
    """The node of autograd's graph: it saves x and the layer's own tensors, as the operators do."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        values: Tensor,
        alpha: Tensor | None,
        bias: Tensor | None,
        positions: Tensor,
        plan: Plan,
    ) -> Tensor:
        ctx.save_for_backward(x, values, positions, alpha)
        ctx.plan = plan
        return plan.forward(x, values, positions, alpha, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, values, positions, alpha = ctx.saved_tensors
        plan, (needs_x, needs_values, needs_alpha, needs_bias, *_) = ctx.plan, ctx.needs_input_grad
        bias_grad = (grad.sum(0) if grad.dim() == 2 else grad.sum((0, *range(2, grad.dim())))) if needs_bias else None
        needs = needs_x, needs_values, needs_alpha
        if torch.is_grad_enabled() or not is_eager():
            layer = x, values, positions, alpha, plan.offset.name if plan.offset else "", plan.geometry.pack(), True
            found = operators.multiply_backward(grad, *layer, list(needs))
            grads = [g if needed else None for g, needed in zip(found, needs, strict=True)]
        elif any(needs):
            grads = list(plan.backward_route(grad, x).backward(grad, x, values, positions, alpha, needs))
            if alpha is not None and grads[2] is not None and grads[2].dim() != alpha.dim():
                grads[2] = grads[2].view(alpha.shape)
        else:
            grads = [None, None, None]
        return *grads, bias_grad, None, None


# Function.apply looks for transforms of torch.func first, which `is_eager` has excluded.
_apply = super(torch.autograd.Function, Multiply).apply


def multiply(
    x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, bias: Tensor | None, plan: Plan
) -> Tensor:
    """Return (alpha D + S) x + bias by a plan; all tensors are on the CPU and of the same type, and `is_eager()`."""
    if torch.is_grad_enabled():
        y: Tensor = _apply(x, values, alpha, bias, positions, plan)  # type: ignore[no-untyped-call]
        return y
    return plan.forward(x, values, positions, alpha, bias)
