"""D x and D' y for products and convolutions by torch's operators, without D: four ways.

transform  linear and 1x1 layers: the fast transform along the channels.
separable  D[k, (c, t)] = sum_r left[r, k, c] right[r, k, t]: pointwise convolutions, then depthwise ones, and a sum.
           Where the pointwise matrix has low numerical rank it is applied as two thin factors.
direct     the filters themselves, stored: for short patches, and for many groups.
patches    the definition: every patch is laid out and transformed; for signs per position and users' own offsets.

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
from dctps.core.offsets import Offset, PatchOffset
from dctps.ops.route import count_outputs, count_pixels
from dctps.ops.separable import factors_of, last_stage, pixels_first, pointwise_stage, repeat_terms, sum_terms

SCRATCH = 1 << 22  # elements of a temporary tensor: a batch is worked through in slices that keep to this size
_stored = Cache(limit=1 << 29)  # small dense offsets, shared between layers of one shape


@dataclasses.dataclass(frozen=True)
class OffsetProduct:
    """D x, its adjoint and its cost, for the layers of one geometry."""

    offset: Offset
    geometry: Geometry
    name: ClassVar[str]

    def forward(self, x: Tensor) -> Tensor:
        """D x: (batch, channels, *spatial) -> (batch, filters, *output)."""
        raise NotImplementedError

    def adjoint(self, y: Tensor, spatial: tuple[int, ...]) -> Tensor:
        """D' y: (batch, filters, *output) -> (batch, channels, *spatial)."""
        raise NotImplementedError

    def multiply_adds(self, x: Tensor) -> int:
        """The multiply-adds of D x for a batch x; a fast transform of length q counts q log2 q."""
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
    """Linear and 1x1 layers: the fast transform along the channels of the pixels that an output reads."""

    name = "transform"

    def forward(self, x: Tensor) -> Tensor:
        steps = (slice(None, None, step) for step in self.geometry.stride)
        seen = self.geometry.padded(x)[(slice(None), slice(None), *steps)]
        return self.offset.apply(pixels_first(seen).movedim(1, -1)).movedim(-1, 1)

    def adjoint(self, y: Tensor, spatial: tuple[int, ...]) -> Tensor:
        geometry = self.geometry
        part = self.offset.adjoint(pixels_first(y).movedim(1, -1)).movedim(-1, 1)
        if not any(geometry.padding) and max(geometry.stride, default=1) == 1:
            return part
        padded = [s + 2 * p for s, p in zip(spatial, geometry.padding, strict=True)]
        out = part.new_zeros(*part.shape[:2], *padded)
        (window,) = geometry.windows(y.shape[2:])
        out[(slice(None), slice(None), *window)] = part
        return geometry.unpadded(out)

    def multiply_adds(self, x: Tensor) -> int:
        return count_outputs(x, self.geometry) * transform_operations(self.length)


class SeparableProduct(OffsetProduct):
    """Pointwise convolutions with the channel factors, then depthwise ones with the kernel position factors."""

    name = "separable"

    def forward(self, x: Tensor) -> Tensor:
        geometry = self.geometry
        factors = factors_of(self.patch_offset, geometry.groups, x.dtype, x.device)

        def run(part: Tensor) -> Tensor:
            for weight in factors.pointwise:
                part = convolve(part, weight, None, pointwise_stage(weight, geometry))
            part = convolve(part, factors.depthwise, None, last_stage(factors.depthwise, geometry))
            return sum_terms(part, factors.terms, geometry.groups)

        return _in_slices(run, pixels_first(x), factors.terms * geometry.filters * math.prod(x.shape[2:]))

    def adjoint(self, y: Tensor, spatial: tuple[int, ...]) -> Tensor:
        geometry = self.geometry
        factors = factors_of(self.patch_offset, geometry.groups, y.dtype, y.device)

        def run(part: Tensor) -> Tensor:
            part = pixels_first(repeat_terms(part, factors.terms, geometry.groups))
            part = convolve_adjoint(part, factors.depthwise, last_stage(factors.depthwise, geometry), spatial)
            for weight in reversed(factors.pointwise):
                part = convolve_adjoint(part, weight, pointwise_stage(weight, geometry), spatial)
            return part

        return _in_slices(run, pixels_first(y), factors.terms * geometry.filters * math.prod(spatial))

    def multiply_adds(self, x: Tensor) -> int:
        factors = factors_of(self.patch_offset, self.geometry.groups, x.dtype, torch.device("cpu"))
        pointwise = sum(weight.numel() for weight in factors.pointwise)
        return count_pixels(x) * pointwise + count_outputs(x, self.geometry) * factors.depthwise.numel()


class DirectProduct(OffsetProduct):
    """torch's own convolution with the filters of D, which are stored."""

    name = "direct"

    def forward(self, x: Tensor) -> Tensor:
        return convolve(x, stored_weight(self.patch_offset, x.dtype, x.device), None, self.geometry)

    def adjoint(self, y: Tensor, spatial: tuple[int, ...]) -> Tensor:
        return convolve_adjoint(y, stored_weight(self.patch_offset, y.dtype, y.device), self.geometry, spatial)

    def multiply_adds(self, x: Tensor) -> int:
        return count_outputs(x, self.geometry) * math.prod(self.geometry.weight_shape)


def stored_weight(offset: PatchOffset, dtype: torch.dtype, device: torch.device) -> Tensor:
    """D as a weight, shared between layers of one shape; not to be changed in place."""
    key = offset, dtype, device
    return _stored.get(key, lambda: offset.matrix(dtype).to(device).view(offset.weight_shape))


class PatchProduct(OffsetProduct):
    """Every patch is laid out and transformed: the definition."""

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
        padded = [s + 2 * p for s, p in zip(spatial, geometry.padding, strict=True)]

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
    """Of all filters applied to all groups, each filter on the group that it belongs to."""
    blocks: Tensor = y.unflatten(-1, (geometry.groups, -1))  # (..., group of the input, of the filter, m / groups)
    return blocks.diagonal(dim1=-3, dim2=-2).transpose(-1, -2).flatten(-2)


def _rows_of_all_groups(y: Tensor, geometry: Geometry) -> Tensor:  # (..., m) -> (..., groups, m)
    """The adjoint of `_rows_of_own_group`: zeros where a filter does not see a group."""
    return torch.diag_embed(y.unflatten(-1, (geometry.groups, -1)).transpose(-1, -2), dim1=-3, dim2=-2).flatten(-2)


def _in_slices(run: Callable[[Tensor], Tensor], x: Tensor, scratch_per_image: int) -> Tensor:
    """`run` over slices of the batch, so that its temporary tensors stay small."""
    step = max(1, SCRATCH // max(1, scratch_per_image))
    if len(x) <= step:
        return run(x)
    return torch.cat([run(part) for part in x.split(step)])


OFFSET_PRODUCTS: dict[str, type[OffsetProduct]] = {
    product.name: product for product in (TransformProduct, SeparableProduct, DirectProduct, PatchProduct)
}
