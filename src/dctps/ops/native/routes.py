"""Routes that use the native kernels, on CPUs; torch computes what the kernels cannot."""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack  # type: ignore[attr-defined]

from dctps.base.cache import Cache
from dctps.core.geometry import Geometry
from dctps.core.patch_offset import PatchOffset
from dctps.ops import sparse
from dctps.ops.finish import Finish
from dctps.ops.native import kernels
from dctps.ops.native.stages import Compiled, compiled_offset
from dctps.ops.normalise import ACTIVATIONS, as_in
from dctps.ops.offset_torch import stored_weight
from dctps.ops.route import Gradients, Needs, count_dense, count_outputs, count_read_pixels, empty_output
from dctps.ops.torch_routes import TorchRoute

LARGEST = torch.finfo(torch.float32).max
_full_supports = Cache(limit=1 << 26)  # supports with every place, up to this many bytes, by geometry


class SparseRoute(TorchRoute):
    """The route that applies S by the kernels and, where there is an offset, D by torch."""

    @property
    def name(self) -> str:
        return "sparse" if self.product is None else f"sparse and torch {self.product.name}"

    @property
    def finishes(self) -> bool:
        return self.product is None

    def forward_finished(
        self, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, bias: Tensor | None, finish: Finish
    ) -> Tensor:
        y, places = empty_output(x, self.geometry), compiled_support(positions, self.geometry)
        _forward(self.geometry, x, None, 0.0, places, values, y, bias, finish)
        return y

    def _sparse_forward(self, x: Tensor, values: Tensor, positions: Tensor) -> Tensor:
        y = empty_output(x, self.geometry)
        _forward(self.geometry, x, None, 0.0, compiled_support(positions, self.geometry), values, y)
        return y

    def _sparse_backward(
        self, grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, needs: Needs
    ) -> tuple[Tensor | None, Tensor | None]:
        x_grad, values_grad = _empty_if(needs[0], x), _empty_if(needs[1], values)
        places = compiled_support(positions, self.geometry)
        _backward(self.geometry, grad, x, None, 0.0, places, values, x_grad, values_grad, needs_alpha=False)
        return x_grad, values_grad


@dataclasses.dataclass(frozen=True)
class StagedRoute:
    """The route that applies S and D in one call; D is a pointwise stage along the channels and a depthwise stage."""

    geometry: Geometry
    offset: PatchOffset
    kind: str  # kind of the pointwise stage: "product", or a key of `stages.STAGES`
    finishes = True

    @property
    def name(self) -> str:
        return self.kind

    def forward(self, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None) -> Tensor:
        return self.forward_finished(x, values, positions, alpha)

    def forward_finished(
        self,
        x: Tensor,
        values: Tensor,
        positions: Tensor,
        alpha: Tensor | None,
        bias: Tensor | None = None,
        finish: Finish | None = None,
    ) -> Tensor:
        assert alpha is not None
        y, places = empty_output(x, self.geometry), compiled_support(positions, self.geometry)
        _forward(self.geometry, x, self.compiled(x.dtype), alpha.item(), places, values, y, bias, finish)
        return y

    def backward(
        self, grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, needs: Needs
    ) -> Gradients:
        assert alpha is not None
        x_grad, values_grad = _empty_if(needs[0], x), _empty_if(needs[1], values)
        scale, places = alpha.item(), compiled_support(positions, self.geometry)
        offset = self.compiled(x.dtype)
        alpha_grad = _backward(self.geometry, grad, x, offset, scale, places, values, x_grad, values_grad, needs[2])
        return x_grad, values_grad, _like(alpha, alpha_grad) if needs[2] else None

    def compiled(self, dtype: torch.dtype) -> Any:
        """Return the offset as the kernels take it."""
        return compiled_offset(self.kind, self.offset, dtype)

    def multiply_adds(self, x: Tensor, nnz: int) -> int:
        per_pixel, per_output = self.compiled(x.dtype).multiply_adds
        outputs = count_outputs(x, self.geometry)
        return int(count_read_pixels(x, self.geometry) * per_pixel + outputs * (per_output + nnz))


# --- routes with a dense weight, where filters are short --------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class FilterRoute:
    """The route that builds W and applies it by the kernels of S, as a sparse weight with a value at every place."""

    geometry: Geometry
    offset: PatchOffset
    name = "filters"

    def forward(self, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None) -> Tensor:
        y, weight = empty_output(x, self.geometry), self._weight(values, positions, alpha)
        _forward(self.geometry, x, None, 0.0, full_support(self.geometry), weight, y)
        return y

    def backward(
        self, grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, needs: Needs
    ) -> Gradients:
        needs_x, needs_values, needs_alpha = needs
        geometry, weight = self.geometry, self._weight(values, positions, alpha)
        x_grad, weight_grad = _empty_if(needs_x, x), _empty_if(needs_alpha, weight)  # only alpha needs all of dL/dW
        if needs_x or needs_alpha:
            places = full_support(geometry)
            _backward(geometry, grad, x, None, 0.0, places, weight, x_grad, weight_grad, needs_alpha=False)
        if needs_values and not needs_alpha:
            values_grad, places = torch.empty_like(values), compiled_support(positions, geometry)
            _backward(geometry, grad, x, None, 0.0, places, values, None, values_grad, needs_alpha=False)
            return x_grad, values_grad, None
        return x_grad, *self._from_weight_gradient(weight_grad, x, positions, needs)

    def _weight(self, values: Tensor, positions: Tensor, alpha: Tensor | None) -> Tensor:
        """Return W as a vector."""
        assert alpha is not None
        sparse.check_positions(positions, self.geometry.weight_shape)
        dense = (stored_weight(self.offset, values.dtype, values.device) * alpha).view(-1)
        return dense.index_add_(0, positions, values)

    def _from_weight_gradient(
        self, weight_grad: Tensor | None, x: Tensor, positions: Tensor, needs: Needs
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return those gradients of values and alpha that are needed, for the gradient of W as a vector."""
        if weight_grad is None:
            return None, None
        D = stored_weight(self.offset, x.dtype, x.device).view(-1)
        values_grad = weight_grad.index_select(0, positions) if needs[1] else None
        return values_grad, torch.dot(weight_grad, D) if needs[2] else None

    def multiply_adds(self, x: Tensor, nnz: int) -> int:
        return count_dense(x, self.geometry)


class DepthwiseRoute(FilterRoute):
    """The route that builds W of a depthwise convolution and applies it to channels-last tensors without a copy."""

    name = "depthwise"

    def forward(self, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None) -> Tensor:
        y, weight = empty_output(x, self.geometry), self._weight(values, positions, alpha)
        arrays = _array(x), _array(weight), _array(y)
        _typed(x).depthwise_forward(self.geometry.pack(), *arrays, torch.get_num_threads())
        return y

    def backward(
        self, grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, needs: Needs
    ) -> Gradients:
        weight = self._weight(values, positions, alpha)
        x_grad, weight_grad = _empty_if(needs[0], x), _empty_if(needs[1] or needs[2], weight)
        targets = _array(x_grad), _array(weight_grad)
        arrays = _array(grad), _array(x), _array(weight)
        _typed(x).depthwise_backward(self.geometry.pack(), *arrays, *targets, torch.get_num_threads())
        return x_grad, *self._from_weight_gradient(weight_grad, x, positions, needs)


@dataclasses.dataclass(frozen=True)
class PixelRoute:
    """The route of small 1x1 layers: alpha D + S, a small matrix, is applied to packed channels-last pixels."""

    geometry: Geometry
    offset: PatchOffset
    name = "pixels"

    def forward(self, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None) -> Tensor:
        y = empty_output(x, self.geometry)
        layer = self._layer(values, positions, alpha)
        _typed(x).pointwise_forward(_array(x), *layer, _array(y), torch.get_num_threads())
        return y

    def backward(
        self, grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, needs: Needs
    ) -> Gradients:
        x_grad, values_grad = _empty_if(needs[0], x), _empty_if(needs[1], values)
        layer, targets = self._layer(values, positions, alpha), (_array(x_grad), _array(values_grad))
        inner = _typed(x).pointwise_backward(_array(grad), _array(x), *layer, *targets, torch.get_num_threads())
        return x_grad, values_grad, _like(alpha, inner) if alpha is not None and needs[2] else None

    def _layer(self, values: Tensor, positions: Tensor, alpha: Tensor | None) -> tuple[Any, ...]:
        """Return D, alpha, the support and the values as the kernels take them."""
        assert alpha is not None
        D = stored_weight(self.offset, values.dtype, values.device)
        return (
            _array(D if D.dim() == 2 else D.view(self.offset.shape)),
            alpha.item(),
            compiled_support(positions, self.geometry),
            _array(values.contiguous()),
        )

    def multiply_adds(self, x: Tensor, nnz: int) -> int:
        return count_dense(x, self.geometry)


# --- calls of the kernels -------------------------------------------------------------------------------------------


def compiled_support(positions: Tensor, geometry: Geometry) -> Any:
    """Return the support as the kernels take it, which is kept for as long as the tensor of positions lives."""

    def compile_(places: Tensor) -> Any:
        return kernels.Sparse(geometry.pack(), places.long().contiguous().numpy())

    return sparse.derived(positions, geometry, "native", compile_)


def full_support(geometry: Geometry) -> Any:
    """Return the support with every place of the weight, as the kernels take it."""

    def compile_() -> Compiled:
        size = math.prod(geometry.weight_shape)
        return Compiled(kernels.Sparse(geometry.pack(), torch.arange(size, device="cpu").numpy()), 32 * size)

    return _full_supports.get(geometry, compile_).native


def _forward(
    geometry: Geometry,
    x: Tensor,
    offset: Any,
    alpha: float,
    places: Any,
    values: Tensor,
    y: Tensor,
    bias: Tensor | None = None,
    finish: Finish | None = None,
) -> None:
    """Write (alpha D + S) x + bias to y, finished."""
    own = None if bias is None else _array(bias.contiguous())
    arguments = _array(x), offset, alpha, places, _array(values.contiguous()), own, _array(y), torch.get_num_threads()
    if finish is None:
        _typed(x).forward(geometry.pack(), *arguments)
        return
    norm = [None if t is None else _array(t.contiguous()) for t in finish[:4]]
    residual = None if finish.residual is None else _array(as_in(y, finish.residual))
    activation = ACTIVATIONS[finish.activation]
    _typed(x).forward(geometry.pack(), *arguments, norm, finish.eps, residual, activation)


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
    """Write the gradients of x and values to those tensors that are not None, and return <x, D'g>."""
    numbers = geometry.pack()
    if x_grad is not None and max(geometry.stride, default=1) > 1 and not kernels.reads_all(numbers, list(x.shape)):
        x_grad.zero_()  # the kernels do not write pixels that no output reads
    arrays = _array(grad), _array(x), offset, alpha, places, _array(values.contiguous())
    targets = _array(x_grad), _array(values_grad)
    return float(_typed(x).backward(numbers, *arrays, *targets, needs_alpha, torch.get_num_threads()))


def _empty_if(needed: bool, like: Tensor) -> Tensor | None:
    """Return an uninitialised tensor like `like` where it is needed, else None."""
    return torch.empty_like(like) if needed else None


def _like(alpha: Tensor, number: float) -> Tensor:
    """Return a number in the shape and type of alpha, infinite where it is beyond the largest number of that type."""
    beyond = abs(number) > LARGEST and alpha.dtype == torch.float32
    return torch.full_like(alpha, math.copysign(math.inf, number) if beyond else number)


def _typed(x: Tensor) -> Any:
    """Return the module of the kernels for the type of x."""
    return kernels.float32 if x.dtype == torch.float32 else kernels.float64


def _array(tensor: Tensor | None) -> Any:
    """Return the tensor as a DLPack capsule: the kernels take a tensor, too, but that takes ten times as long."""
    return None if tensor is None else to_dlpack(tensor)
