"""Routes by the native kernels, on CPUs; parts that the kernels do not have come from torch."""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from dctps.base.cache import Cache
from dctps.core.geometry import Geometry
from dctps.core.offsets import PatchOffset
from dctps.ops import sparse
from dctps.ops.native import kernels
from dctps.ops.native.stages import Compiled, compiled_offset
from dctps.ops.offset_torch import OffsetProduct, stored_weight
from dctps.ops.route import Gradients, Needs, count_outputs, count_read_pixels, output_like
from dctps.ops.torch_routes import add_offset_gradients

_full_supports = Cache(limit=1 << 26)


@dataclasses.dataclass(frozen=True)
class SparseRoute:
    """S by the kernels, and D, where there is an offset, by torch."""

    geometry: Geometry
    product: OffsetProduct | None

    @property
    def name(self) -> str:
        return "sparse" if self.product is None else f"sparse and torch {self.product.name}"

    def forward(self, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None) -> Tensor:
        y = output_like(x, self.geometry)
        _forward(self.geometry, x, None, 0.0, compiled_support(positions, self.geometry), values, y)
        return y if alpha is None or self.product is None else y.add_(self.product.forward(x) * alpha)

    def backward(
        self, grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, needs: Needs
    ) -> Gradients:
        x_grad, values_grad = _room(x, needs[0]), _room(values, needs[1])
        places = compiled_support(positions, self.geometry)
        _backward(self.geometry, grad, x, None, 0.0, places, values, x_grad, values_grad, needs_alpha=False)
        x_grad, alpha_grad = add_offset_gradients(self.product, grad, x, alpha, needs, x_grad)
        return x_grad, values_grad, alpha_grad

    def multiply_adds(self, x: Tensor, nnz: int) -> int:
        own = count_outputs(x, self.geometry) * nnz
        return own if self.product is None else own + self.product.multiply_adds(x)


@dataclasses.dataclass(frozen=True)
class StagedRoute:
    """D by a pointwise stage along the channels and depthwise taps, with S, in one call of the kernels."""

    geometry: Geometry
    offset: PatchOffset
    kind: str  # of the pointwise stage: product, or a key of `stages.STAGES`

    @property
    def name(self) -> str:
        return self.kind

    def forward(self, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None) -> Tensor:
        assert alpha is not None
        y, places = output_like(x, self.geometry), compiled_support(positions, self.geometry)
        _forward(self.geometry, x, self._compiled(x), alpha.item(), places, values, y)
        return y

    def backward(
        self, grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, needs: Needs
    ) -> Gradients:
        assert alpha is not None
        x_grad, values_grad = _room(x, needs[0]), _room(values, needs[1])
        scale, places = alpha.item(), compiled_support(positions, self.geometry)
        offset = self._compiled(x)
        inner = _backward(self.geometry, grad, x, offset, scale, places, values, x_grad, values_grad, needs[2])
        return x_grad, values_grad, alpha.new_tensor(inner) if needs[2] else None

    def _compiled(self, x: Tensor) -> Any:
        return compiled_offset(self.kind, self.offset, self.geometry, x.dtype)

    def multiply_adds(self, x: Tensor, nnz: int) -> int:
        per_pixel, per_output = self._compiled(x).multiply_adds
        outputs = count_outputs(x, self.geometry)
        return int(count_read_pixels(x, self.geometry) * per_pixel + outputs * (per_output + nnz))


# --- W itself, where filters are so short that nothing is shorter -----------------------------------------------------


@dataclasses.dataclass(frozen=True)
class FilterRoute:
    """W is built, and the kernels of S apply it as a weight with every place taken."""

    geometry: Geometry
    offset: PatchOffset
    name = "filters"

    def forward(self, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None) -> Tensor:
        y, weight = output_like(x, self.geometry), self._weight(values, positions, alpha)
        _forward(self.geometry, x, None, 0.0, _full_support(self.geometry), weight, y)
        return y

    def backward(
        self, grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, needs: Needs
    ) -> Gradients:
        needs_x, needs_values, needs_alpha = needs
        geometry, weight = self.geometry, self._weight(values, positions, alpha)
        x_grad, weight_grad = _room(x, needs_x), _room(weight, needs_alpha)  # alpha alone needs every place
        if needs_x or needs_alpha:
            places = _full_support(geometry)
            _backward(geometry, grad, x, None, 0.0, places, weight, x_grad, weight_grad, needs_alpha=False)
        if needs_values and not needs_alpha:
            values_grad, places = torch.empty_like(values), compiled_support(positions, geometry)
            _backward(geometry, grad, x, None, 0.0, places, values, None, values_grad, needs_alpha=False)
            return x_grad, values_grad, None
        return x_grad, *self._from_weight(weight_grad, x, positions, needs)

    def _weight(self, values: Tensor, positions: Tensor, alpha: Tensor | None) -> Tensor:
        """W as a vector."""
        assert alpha is not None
        dense = (stored_weight(self.offset, values.dtype, values.device) * alpha).view(-1)
        return dense.index_add_(0, positions, values)

    def _from_weight(
        self, weight_grad: Tensor | None, x: Tensor, positions: Tensor, needs: Needs
    ) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of values and alpha from that of W."""
        if weight_grad is None:
            return None, None
        D = stored_weight(self.offset, x.dtype, x.device).view(-1)
        values_grad = weight_grad.index_select(0, positions) if needs[1] else None
        return values_grad, torch.dot(weight_grad, D) if needs[2] else None

    def multiply_adds(self, x: Tensor, nnz: int) -> int:
        return count_outputs(x, self.geometry) * math.prod(self.geometry.weight_shape)


class DepthwiseRoute(FilterRoute):
    """W is built, and applied to channels-last tensors as they lie: one channel per filter."""

    name = "depthwise"

    def forward(self, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None) -> Tensor:
        y, weight = output_like(x, self.geometry), self._weight(values, positions, alpha)
        kernels.depthwise_forward(self.geometry.pack(), _raw(x), _raw(weight), _raw(y), torch.get_num_threads())
        return y

    def backward(
        self, grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, needs: Needs
    ) -> Gradients:
        weight = self._weight(values, positions, alpha)
        x_grad, weight_grad = _room(x, needs[0]), _room(weight, needs[1] or needs[2])
        targets = _raw_or_none(x_grad), _raw_or_none(weight_grad)
        arrays = _raw(grad), _raw(x), _raw(weight)
        kernels.depthwise_backward(self.geometry.pack(), *arrays, *targets, torch.get_num_threads())
        return x_grad, *self._from_weight(weight_grad, x, positions, needs)


@dataclasses.dataclass(frozen=True)
class PixelRoute:
    """1x1 layers: alpha D + S is applied to packed channels-last pixels as they lie, by a product and few additions."""

    geometry: Geometry
    offset: PatchOffset
    name = "pixels"

    def forward(self, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None) -> Tensor:
        y = output_like(x, self.geometry)
        layer = self._layer(values, positions, alpha)
        kernels.pointwise_forward(_raw(x), *layer, _raw(y), torch.get_num_threads())
        return y

    def backward(
        self, grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, needs: Needs
    ) -> Gradients:
        x_grad, values_grad = _room(x, needs[0]), _room(values, needs[1])
        layer, targets = self._layer(values, positions, alpha), (_raw_or_none(x_grad), _raw_or_none(values_grad))
        inner = kernels.pointwise_backward(_raw(grad), _raw(x), *layer, *targets, torch.get_num_threads())
        return x_grad, values_grad, alpha.new_tensor(inner) if alpha is not None and needs[2] else None

    def _layer(self, values: Tensor, positions: Tensor, alpha: Tensor | None) -> tuple[Any, ...]:
        assert alpha is not None
        table = stored_weight(self.offset, values.dtype, values.device).view(self.offset.shape)
        return table, alpha.item(), compiled_support(positions, self.geometry), _raw(values.contiguous())

    def multiply_adds(self, x: Tensor, nnz: int) -> int:
        return count_outputs(x, self.geometry) * math.prod(self.geometry.weight_shape)


# --- calls ----------------------------------------------------------------------------------------------------------


def compiled_support(positions: Tensor, geometry: Geometry) -> Any:
    """The places of S as the kernels take them, kept for as long as the tensor of positions lives."""

    def compile_(places: Tensor) -> Any:
        return kernels.Sparse(geometry.pack(), places.long().contiguous().numpy())

    return sparse.derived(positions, geometry, "native", compile_)


def _full_support(geometry: Geometry) -> Any:
    """Every place of a weight as the kernels take it."""

    def compile_() -> Compiled:
        size = math.prod(geometry.weight_shape)
        return Compiled(kernels.Sparse(geometry.pack(), torch.arange(size, device="cpu").numpy()), 32 * size)

    return _full_supports.get(geometry, compile_).native


def _forward(geometry: Geometry, x: Tensor, offset: Any, alpha: float, places: Any, values: Tensor, y: Tensor) -> None:
    arguments = _raw(x), offset, alpha, places, _raw(values.contiguous()), None, _raw(y)
    kernels.forward(geometry.pack(), *arguments, torch.get_num_threads())


def _backward(
    geometry: Geometry,
    grad: Tensor,
    x: Tensor,
    offset: Any,
    alpha: float,
    places: Any,
    values: Tensor,
    x_grad: Tensor | None,
    values_grad: Tensor | None,
    needs_alpha: bool,
) -> float:
    """Fill the gradients of x and values that have room; returns <x, D'g>."""
    numbers = geometry.pack()
    if x_grad is not None and max(geometry.stride, default=1) > 1 and not kernels.reads_all(numbers, list(x.shape)):
        x_grad.zero_()  # pixels that no output reads
    arrays = _raw(grad), _raw(x), offset, alpha, places, _raw(values.contiguous())
    targets = _raw_or_none(x_grad), _raw_or_none(values_grad)
    return float(kernels.backward(numbers, *arrays, *targets, needs_alpha, torch.get_num_threads()))


def _room(like: Tensor, needed: bool) -> Tensor | None:
    return torch.empty_like(like) if needed else None


def _raw(tensor: Tensor) -> Tensor:
    """The tensor without its gradient, which DLPack would not let out."""
    return tensor.detach()


def _raw_or_none(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()
