"""Routes on torch's own operators, on any device."""

import dataclasses
import math

import torch
from torch import Tensor

from dctps.core.geometry import Geometry, convolve
from dctps.core.offsets import Offset
from dctps.ops import sparse
from dctps.ops.offset_torch import OffsetProduct
from dctps.ops.route import Gradients, Needs, count_outputs
from dctps.ops.weight import dense_weight


@dataclasses.dataclass(frozen=True)
class DenseRoute:
    """W is built, and torch's own product or convolution applies it."""

    offset: Offset | None
    geometry: Geometry
    name = "dense"

    def forward(
        self, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, bias: Tensor | None = None
    ) -> Tensor:
        """(alpha D + S) x + bias; differentiable by autograd."""
        weight = dense_weight(values, positions, alpha, self.offset, self.geometry.weight_shape)
        return convolve(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype), self.geometry)

    def backward(
        self, grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, needs: Needs
    ) -> Gradients:
        """The gradients by autograd, which is also what runs in training."""
        leaves = [None if t is None else t.detach().requires_grad_() for t in (x, values, alpha)]
        wanted = [t for t, needed in zip(leaves, needs, strict=True) if needed and t is not None]
        with torch.enable_grad():
            y = self.forward(leaves[0], leaves[1], positions, leaves[2])  # type: ignore[arg-type]
        found = iter(torch.autograd.grad(y, wanted, grad) if wanted else ())
        x_grad, values_grad, alpha_grad = (
            next(found) if needed and t is not None else None for t, needed in zip(leaves, needs, strict=True)
        )
        return x_grad, values_grad, alpha_grad

    def multiply_adds(self, x: Tensor, nnz: int) -> int:
        return count_outputs(x, self.geometry) * math.prod(self.geometry.weight_shape)


@dataclasses.dataclass(frozen=True)
class TorchRoute:
    """S by sparse products, and D by one of the products of `offset_torch.py` where there is an offset."""

    geometry: Geometry
    product: OffsetProduct | None

    @property
    def name(self) -> str:
        return "sparse" if self.product is None else self.product.name

    def forward(self, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None) -> Tensor:
        y = sparse.forward(x, values, positions, self.geometry)
        if alpha is None or self.product is None:
            return y
        return y.add_(self.product.forward(x) * alpha)

    def backward(
        self, grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, needs: Needs
    ) -> Gradients:
        needs_x, needs_values, _ = needs
        spatial = tuple(x.shape[2:])
        values_grad = sparse.sampled_gradient(grad, x, positions, self.geometry) if needs_values else None
        x_grad = sparse.adjoint(grad, values, positions, self.geometry, spatial) if needs_x else None
        x_grad, alpha_grad = add_offset_gradients(self.product, grad, x, alpha, needs, x_grad)
        return x_grad, values_grad, alpha_grad

    def multiply_adds(self, x: Tensor, nnz: int) -> int:
        own = count_outputs(x, self.geometry) * nnz
        return own if self.product is None else own + self.product.multiply_adds(x)


def add_offset_gradients(
    product: OffsetProduct | None, grad: Tensor, x: Tensor, alpha: Tensor | None, needs: Needs, x_grad: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """The gradient of x with the part alpha D'g added to it, and the gradient <x, D'g> of alpha where it is needed."""
    needs_x, _, needs_alpha = needs
    if product is None or alpha is None or not (needs_x or needs_alpha):
        return x_grad, None
    back = product.adjoint(grad, tuple(x.shape[2:]))
    alpha_grad = torch.sum(x * back) if needs_alpha else None
    return None if x_grad is None else x_grad.add_(back * alpha), alpha_grad
