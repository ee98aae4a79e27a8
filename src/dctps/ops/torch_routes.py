"""Routes that use torch's own operators and run on any device."""

import dataclasses

import torch
from torch import Tensor

from dctps.core.geometry import Geometry, convolve
from dctps.core.offsets import Offset
from dctps.ops import sparse
from dctps.ops.offset_torch import OffsetProduct
from dctps.ops.route import Gradients, Needs, count_dense, count_outputs, read_pixels
from dctps.ops.weight import dense_weight


@dataclasses.dataclass(frozen=True)
class DenseRoute:
    """The route that builds W and applies it by torch's own product or convolution."""

    offset: Offset | None
    geometry: Geometry
    name = "dense"

    def forward(
        self, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, bias: Tensor | None = None
    ) -> Tensor:
        """Return (alpha D + S) x + bias, differentiable by autograd."""
        weight = dense_weight(values, positions, alpha, self.offset, self.geometry.weight_shape)
        return convolve(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype), self.geometry)

    def backward(
        self, grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, needs: Needs
    ) -> Gradients:
        """Return the gradients, computed by autograd as in training."""
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
        return count_dense(x, self.geometry)


@dataclasses.dataclass(frozen=True)
class TorchRoute:
    """The route that applies S by `sparse.py` and, where there is an offset, D by a product of `offset_torch.py`."""

    geometry: Geometry
    product: OffsetProduct | None

    @property
    def name(self) -> str:
        return "sparse" if self.product is None else self.product.name

    def forward(self, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None) -> Tensor:
        y = self._sparse_forward(x, values, positions)
        return y if alpha is None or self.product is None else y.add_(self.product.forward(x) * alpha)

    def backward(
        self, grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, needs: Needs
    ) -> Gradients:
        needs_x, _, needs_alpha = needs
        x_grad, values_grad = self._sparse_backward(grad, x, values, positions, needs)
        if self.product is None or alpha is None or not (needs_x or needs_alpha):
            return x_grad, values_grad, None
        offset_grad = self.product.adjoint(grad, tuple(x.shape[2:]))  # D'g
        alpha_grad = self._alpha_gradient(x, offset_grad) if needs_alpha else None
        return None if x_grad is None else x_grad.add_(offset_grad * alpha), values_grad, alpha_grad

    def _alpha_gradient(self, x: Tensor, offset_grad: Tensor) -> Tensor:
        """Return <x, D'g> over the pixels that outputs read; D'g is zero elsewhere, but zero times infinity is NaN."""
        return torch.sum(read_pixels(x, self.geometry) * read_pixels(offset_grad, self.geometry))

    def multiply_adds(self, x: Tensor, nnz: int) -> int:
        count = count_outputs(x, self.geometry) * nnz
        return count if self.product is None else count + self.product.multiply_adds(x)

    def _sparse_forward(self, x: Tensor, values: Tensor, positions: Tensor) -> Tensor:
        """Return S x."""
        return sparse.forward(x, values, positions, self.geometry)

    def _sparse_backward(
        self, grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, needs: Needs
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return those gradients of x and values that are needed, for the output S x."""
        values_grad = sparse.sampled_gradient(grad, x, positions, self.geometry) if needs[1] else None
        x_grad = sparse.adjoint(grad, values, positions, self.geometry, tuple(x.shape[2:])) if needs[0] else None
        return x_grad, values_grad
