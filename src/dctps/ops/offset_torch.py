"""The products D x and D' y by torch's operators, for linear layers and convolutions: four classes.

transform  applies the fast transform along the channels, in linear and 1x1 layers.
separable  uses D[k, (c, t)] = sum_r left[r, k, c] right[r, k, t]: pointwise convolutions, then depthwise ones, then a
           sum. Where the pointwise matrix has low numerical rank, it is applied as two thin factors.
direct     stores D and convolves with it, for short patches and for many groups.
patches    lays out every patch and transforms it, which is the definition; for signs per position and users' offsets.

`routes.py` decides which of them serves a layer.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from dctps.base.cache import Cache
from dctps.core.complexity import transform_operations
from dctps.core.geometry import Geometry, convolve, convolve_adjoint
from dctps.core.offsets import Offset
from dctps.core.patch_offset import PatchOffset
from dctps.ops.route import count_dense, count_outputs, count_pixels
from dctps.ops.separable import (
    channels_innermost,
    depthwise_geometry,
    factors_of,
    pointwise_geometry,
    repeat_terms,
    sum_terms,
)

SCRATCH = 1 << 22  # elements of a temporary tensor, which the slices of a batch do not exceed
_stored = Cache(limit=1 << 29)  # offsets as dense tensors, up to this many bytes, shared by layers of one shape


@dataclasses.dataclass(frozen=True)
class OffsetProduct:
    """A method to compute D x, with its adjoint and its cost, for the layers of one geometry."""

    offset: Offset
    geometry: Geometry
    name: ClassVar[str]

    def forward(self, x: Tensor) -> Tensor:
        """Return D x; it maps (batch, channels, *spatial) to (batch, filters, *output)."""
        raise NotImplementedError

    def adjoint(self, y: Tensor, spatial: tuple[int, ...]) -> Tensor:
        """Return D' y; it maps (batch, filters, *output) to (batch, channels, *spatial)."""
        raise NotImplementedError

    def multiply_adds(self, x: Tensor) -> int:
        """Return the multiply-adds of D x for a batch x; a fast transform of length q counts q log2 q."""
        raise NotImplementedError

    @property
    def length(self) -> int:
        """The length of the transform that a patch goes through."""
        return self.offset.length if isinstance(self.offset, PatchOffset) else max(self.offset.shape)

    @property
    def patch_offset(self) -> PatchOffset:
        assert isinstance(self.offset, PatchOffset)
        return self.offset


class TransformProduct(OffsetProduct):
    """The fast transform along the channels of the pixels that an output reads, for linear and 1x1 layers."""

    name = "transform"

    def forward(self, x: Tensor) -> Tensor:
        steps = (slice(None, None, step) for step in self.geometry.stride)
        seen = self.geometry.padded(x)[(slice(None), slice(None), *steps)]
        return self.offset.apply(channels_innermost(seen).movedim(1, -1)).movedim(-1, 1)

    def adjoint(self, y: Tensor, spatial: tuple[int, ...]) -> Tensor:
        geometry = self.geometry
        part = self.offset.adjoint(channels_innermost(y).movedim(1, -1)).movedim(-1, 1)
        if not any(geometry.padding) and max(geometry.stride, default=1) == 1:
            return part
        out = part.new_zeros(*part.shape[:2], *geometry.padded_size(spatial))
        (window,) = geometry.windows(y.shape[2:])
        out[(slice(None), slice(None), *window)] = part
        return geometry.unpadded(out)

    def multiply_adds(self, x: Tensor) -> int:
        return count_outputs(x, self.geometry) * transform_operations(self.length)


class SeparableProduct(OffsetProduct):
    """Pointwise convolutions with the channel factors, followed by depthwise ones with the kernel position factors."""

    name = "separable"

    def forward(self, x: Tensor) -> Tensor:
        geometry = self.geometry
        factors = factors_of(self.patch_offset, geometry.groups, x.dtype, x.device)

        def run(part: Tensor) -> Tensor:
            for weight in factors.pointwise:
                part = convolve(part, weight, None, pointwise_geometry(weight, geometry))
            part = convolve(part, factors.depthwise, None, depthwise_geometry(factors.depthwise, geometry))
            return sum_terms(part, factors.terms, geometry.groups)

        return _in_slices(run, channels_innermost(x), factors.terms * geometry.filters * math.prod(x.shape[2:]))

    def adjoint(self, y: Tensor, spatial: tuple[int, ...]) -> Tensor:
        geometry = self.geometry
        factors = factors_of(self.patch_offset, geometry.groups, y.dtype, y.device)

        def run(part: Tensor) -> Tensor:
            part = channels_innermost(repeat_terms(part, factors.terms, geometry.groups))
            part = convolve_adjoint(part, factors.depthwise, depthwise_geometry(factors.depthwise, geometry), spatial)
            for weight in reversed(factors.pointwise):
                part = convolve_adjoint(part, weight, pointwise_geometry(weight, geometry), spatial)
            return part

        return _in_slices(run, channels_innermost(y), factors.terms * geometry.filters * math.prod(spatial))

    def multiply_adds(self, x: Tensor) -> int:
        factors = factors_of(self.patch_offset, self.geometry.groups, x.dtype, torch.device("cpu"))
        pointwise = sum(weight.numel() for weight in factors.pointwise)
        return count_pixels(x) * pointwise + count_outputs(x, self.geometry) * factors.depthwise.numel()


class DirectProduct(OffsetProduct):
    """A convolution by torch's own operator with D, which is stored."""

    name = "direct"

    def forward(self, x: Tensor) -> Tensor:
        return convolve(x, stored_weight(self.patch_offset, x.dtype, x.device), None, self.geometry)

    def adjoint(self, y: Tensor, spatial: tuple[int, ...]) -> Tensor:
        return convolve_adjoint(y, stored_weight(self.patch_offset, y.dtype, y.device), self.geometry, spatial)

    def multiply_adds(self, x: Tensor) -> int:
        return count_dense(x, self.geometry)


def stored_weight(offset: PatchOffset, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return D in the shape of the weight; layers of one shape share the tensor, so do not change it in place."""
    key = offset, dtype, device
    return _stored.get(key, lambda: offset.matrix(dtype).to(device).view(offset.weight_shape))


class PatchProduct(OffsetProduct):
    """The transform of every patch, laid out in memory, which is the definition of D x."""

    name = "patches"

    def forward(self, x: Tensor) -> Tensor:
        geometry = self.geometry
        output = geometry.output_size(x.shape[2:])

        def run(part: Tensor) -> Tensor:
            padded = geometry.padded(part)
            seen = [padded[(slice(None), slice(None), *window)] for window in geometry.windows(output)]
            patch = torch.stack(seen, -1).movedim(1, -2)  # (b, *output, channels, taps)
            patch = patch.unflatten(-2, (geometry.groups, -1)).flatten(-2)  # (b, *output, groups, n)
            return _rows_of_own_group(self.offset.apply(patch), geometry).movedim(-1, 1)

        return _in_slices(run, x, geometry.groups * self.length * math.prod(output))

    def adjoint(self, y: Tensor, spatial: tuple[int, ...]) -> Tensor:
        geometry, output = self.geometry, tuple(y.shape[2:])
        padded = geometry.padded_size(spatial)

        def run(part: Tensor) -> Tensor:
            patch = self.offset.adjoint(_rows_of_all_groups(part.movedim(1, -1), geometry))  # (b, *output, groups, n)
            patch = patch.unflatten(-1, (-1, geometry.taps)).flatten(-3, -2).movedim(-2, 1)
            out = part.new_zeros(len(part), geometry.channels, *padded)
            for tap, window in enumerate(geometry.windows(output)):  # patch: (b, channels, *output, taps)
                out[(slice(None), slice(None), *window)] += patch[..., tap]
            return geometry.unpadded(out)

        return _in_slices(run, y, geometry.groups * self.length * math.prod(output))

    def multiply_adds(self, x: Tensor) -> int:
        return count_outputs(x, self.geometry) * self.geometry.groups * transform_operations(self.length)


def _rows_of_own_group(y: Tensor, geometry: Geometry) -> Tensor:  # (..., groups, m) -> (..., m)
    """Return the output of each filter on its own group, given the outputs of all filters on all groups."""
    blocks: Tensor = y.unflatten(-1, (geometry.groups, -1))  # (..., input group, filter group, m / groups)
    return blocks.diagonal(dim1=-3, dim2=-2).transpose(-1, -2).flatten(-2)


def _rows_of_all_groups(y: Tensor, geometry: Geometry) -> Tensor:  # (..., m) -> (..., groups, m)
    """Apply the adjoint of `_rows_of_own_group`: there are zeros where a filter does not read a group."""
    return torch.diag_embed(y.unflatten(-1, (geometry.groups, -1)).transpose(-1, -2), dim1=-3, dim2=-2).flatten(-2)


def _in_slices(run: Callable[[Tensor], Tensor], x: Tensor, scratch_per_image: int) -> Tensor:
    """Apply `run` to slices of the batch, so that its temporary tensors stay small."""
    step = max(1, SCRATCH // max(1, scratch_per_image))
    if len(x) <= step:
        return run(x)
    return torch.cat([run(part) for part in x.split(step)])


OFFSET_PRODUCTS: dict[str, type[OffsetProduct]] = {
    product.name: product for product in (TransformProduct, SeparableProduct, DirectProduct, PatchProduct)
}
