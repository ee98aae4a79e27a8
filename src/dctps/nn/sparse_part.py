"""The sparse part S of a fine-tuned weight W = W0 + S, where W0 is the frozen weight of a layer that stays as it is.

A part holds values at the positions of a support, as every sparse layer does, so rewiring, files and reports take it
for one. It has no offset and no bias: W0 and the bias belong to the layer. The layer asks it for what it needs:

    part(x)                  S x, for linear layers and convolutions
    part.with_base(x, ...)   (W0 + S) x + bias, for linear layers, where it can be computed as one
    part.adjoint(x)          S' x, for layers whose weight is that of an adjoint
    part.rows(numbers)       rows of S, for embeddings
    part.added_to(base)      W0 + S, for layers that we do not know

With `alpha`, a trainable scale of W0, the weight is alpha W0 + S.
"""

import torch
from torch import Tensor, nn

from dctps.core.geometry import Geometry
from dctps.core.offsets import PRETRAINED
from dctps.core.support import Support
from dctps.nn.dps_layer import DpsLayer, LayerTensors
from dctps.nn.layers import DpsConv1d, DpsConv2d, DpsConv3d, DpsLinear
from dctps.nn.lazy import has_hooks
from dctps.ops import frozen, native
from dctps.ops.adjoint import multiply_adjoint
from dctps.ops.eager import PLAIN
from dctps.ops.functional import AUTO
from dctps.ops.table import look_up
from dctps.ops.weight import is_eager


class SparsePart(DpsLayer):
    """The values of S at their positions, and alpha if W0 has a scale that trains."""

    is_shared = False  # whether several layers use it

    def scale_base(self) -> None:
        """Give W0 the scale alpha, which starts at 1 and trains."""
        self.alpha = nn.Parameter(torch.ones_like(self.values[:1]) if self.nnz else self.values.new_ones(1))

    def added_to(self, base: Tensor) -> Tensor:
        """Return W0 + S, or alpha W0 + S, in the shape of W0; differentiable in values and alpha."""
        self._check_positions()
        flat = (base if self.alpha is None else base * self.alpha).reshape(-1)
        return flat.index_add(0, self._positions, self.values.to(base.dtype)).view(base.shape)

    def adjoint(self, x: Tensor, spatial: tuple[int, ...] = ()) -> Tensor:
        """Return S' x: (batch, filters, *output) -> (batch, channels, *spatial), in the words of `geometry`.

        transformers' Conv1D computes x W with a weight (in, out), and a transposed convolution is the adjoint of a
        convolution.
        """
        values, positions, _, _ = self._layer_tensors()
        is_native = self.chosen_backend(x) == "native"
        return multiply_adjoint(x, values, positions, self.geometry, spatial, is_native)

    def rows(self, numbers: Tensor, padding: int | None = None) -> Tensor:
        """Return the rows of S with these numbers: (...) -> (..., columns); the row `padding` gets no gradient."""
        values, positions, _, _ = self._layer_tensors()
        return look_up(numbers, values, positions, self.geometry.weight_shape, padding)

    def chosen_backend(self, x: Tensor) -> str:
        """Return the backend; `auto` is one that builds no weight, unlike in other layers."""
        if self.backend != AUTO:
            return self.backend
        return "native" if x.device.type == "cpu" and native.kernels is not None else "torch"

    def reset_parameters(self, seed: int | None = None) -> None:
        """Set S to zero, and alpha to 1."""
        self._sign()
        nn.init.zeros_(self.values)
        if self.alpha is not None:
            nn.init.ones_(self.alpha)

    def _layer_tensors(self) -> LayerTensors:
        values, positions, _, _ = super()._layer_tensors()
        return values, positions, None, None  # alpha is the scale of W0, which the layer applies

    def _offset_name(self) -> str:
        return PRETRAINED

    def extra_repr(self) -> str:
        alpha = "" if self.alpha is None or self.alpha.is_meta else f", alpha={self.alpha.item():.4g}"
        shape = " x ".join(map(str, self.geometry.weight_shape))
        return f"{shape}, nnz={self.nnz}, density={self.density:.3g}{alpha}"


class PartOfLinear(SparsePart, DpsLinear):
    """S x for a linear layer."""

    def with_base(self, x: Tensor, base: Tensor, bias: Tensor | None) -> Tensor | None:
        """Return (W0 + S) x + bias where the native kernels and torch compute it as one, else None.

        They do so for a frozen W0 without a scale, while nobody watches the part, traces it or casts its input.
        """
        if self.alpha is not None or base.requires_grad or self.observer is not None or not is_eager():
            return None
        tensors = (x, base) if bias is None else (x, base, bias)
        if not all(type(t) in PLAIN and t.is_cpu and t.dtype == x.dtype for t in tensors) or self._has_hooks():
            return None
        rows = self._as_batch(x)
        values, positions, _, _ = self._layer_tensors()
        plan = self._bound_layer().native_plan(rows, values, self.backend, self.chosen_backend)
        if plan is None:
            return None
        y = frozen.multiply(rows, base, bias, values, positions, plan)
        return y if x.dim() == 2 else y.view(*x.shape[:-1], self.out_features)

    def _has_hooks(self) -> bool:
        return bool(self._forward_pre_hooks) or has_hooks(self)


class PartOfConv1d(SparsePart, DpsConv1d):
    """S x for a convolution over one axis."""


class PartOfConv2d(SparsePart, DpsConv2d):
    """S x for a convolution over two axes."""


class PartOfConv3d(SparsePart, DpsConv3d):
    """S x for a convolution over three axes."""


class PartOfWeight(SparsePart):
    """S for all other layers, which do not call it: they ask for its adjoint, for rows or for W0 + S."""

    shows_gradient = False

    def __init__(
        self,
        geometry: Geometry,
        *,
        support: Support,
        backend: str = AUTO,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._build(
            geometry,
            bias=False,
            density=None,
            nnz=None,
            support=support,
            offset=None,
            alpha=1.0,
            train_alpha=False,
            seed=0,
            backend=backend,
            device=device,
            dtype=dtype,
        )
