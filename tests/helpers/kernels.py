"""A layer's numbers, given to the native kernels and to torch's own operators."""

import dataclasses
import math
from unittest import mock

import pytest
import torch

from dctps import Support, TransformOffset
from dctps.core.geometry import Geometry, convolve, convolve_adjoint
from dctps.ops import native
from dctps.ops.route import layout_of
from dctps.ops.routes import choose
from helpers.tolerances import assert_close

if native.kernels is None:
    pytest.skip(native.WHY_NOT, allow_module_level=True)

from dctps.ops.native import routes as native_routes


@dataclasses.dataclass
class Case:
    """A layer's numbers: everything that the kernels take."""

    x: torch.Tensor
    values: torch.Tensor
    positions: torch.Tensor
    alpha: torch.Tensor | None
    recipe: TransformOffset | None
    geometry: Geometry
    layout: str = "rows"

    @classmethod
    def of(cls, geometry, spatial, recipe=None, batch=2, nnz=5, dtype=torch.float64, layout="rows"):
        generator = torch.Generator().manual_seed(3)
        positions = Support.sample(geometry.weight_shape, min(nnz, math.prod(geometry.weight_shape)), 1).positions
        values = torch.randn(len(positions), dtype=dtype, generator=generator)
        alpha = None if recipe is None else torch.tensor(0.7, dtype=dtype)
        x = torch.randn(batch, geometry.channels, *spatial, dtype=dtype, generator=generator)
        return cls(LAYOUTS[layout](x), values, positions, alpha, recipe, geometry, layout)

    @property
    def offset(self):
        return None if self.recipe is None else self.recipe.bind(self.geometry.weight_shape)

    def weight(self):
        flat = torch.zeros(math.prod(self.geometry.weight_shape), dtype=self.x.dtype)
        weight = flat.index_add(0, self.positions.long(), self.values).view(self.geometry.weight_shape)
        return weight if self.offset is None else weight + self.alpha * self.dense_offset()

    def dense_offset(self):
        return self.offset.matrix(self.x.dtype).view(self.geometry.weight_shape)

    def forward(self):
        y = self.as_output(
            torch.full((len(self.x), self.geometry.filters, *self.output()), math.nan, dtype=self.x.dtype)
        )
        with mock.patch.object(native_routes, "empty_output", return_value=y):
            return self.route(y).forward(self.x, self.values, self.positions, self.alpha)

    def route(self, other):
        """The native route for tensors that lie in memory as x and `other` do."""
        return choose(self.offset, self.geometry, layout_of(self.x, other), "native", len(self.values))

    def as_output(self, y):
        """As a layer's output lies in memory: channels last if its input does."""
        return _channels_last(y) if self.layout == "channels last" else y

    def backward(self, grad, needs=(True, True, True)):
        args = self.x, self.values, self.positions, self.alpha
        return self.route(grad).backward(grad, *args, (needs[0], needs[1], needs[2] and self.alpha is not None))

    def output(self):
        return self.geometry.output_size(self.x.shape[2:])

    def check(self):
        weight = self.weight()
        assert_close(self.forward(), convolve(self.x, weight, None, self.geometry))
        grad = self.as_output(torch.randn(len(self.x), self.geometry.filters, *self.output(), dtype=self.x.dtype))
        x, values, alpha = self.backward(grad)
        assert_close(x, convolve_adjoint(grad, weight, self.geometry, self.x.shape[2:]))
        leaf = weight.detach().requires_grad_()
        (dense,) = torch.autograd.grad(convolve(self.x, leaf, None, self.geometry), leaf, grad)
        assert_close(values, dense.flatten()[self.positions.long()])
        if alpha is not None:
            torch.testing.assert_close(alpha, torch.sum(dense * self.dense_offset()), rtol=1e-4, atol=1e-4)


def _channels_last(x):
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


LAYOUTS = {
    "rows": lambda x: x,
    "channels last": _channels_last,
    "every other": lambda x: torch.stack([x, x], dim=-1).flatten(-2)[..., ::2] if x.dim() > 2 else x.T.contiguous().T,
    "expanded": lambda x: x[:1].expand(x.shape),  # stride zero
    "flipped axes": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
}
