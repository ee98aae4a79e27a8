"""D x and D' y for products and convolutions, without D: four ways, one of them fast for each layer.

transform  linear and 1x1 layers: the fast transform along the channels.
separable  D[k, (c, t)] = sum_r left[r, k, c] right[r, k, t]: pointwise convolutions, then depthwise ones, and a sum.
           Where the pointwise matrix has low numerical rank it is applied as two thin factors.
direct     patches so small, or groups so many, that the filters themselves are the shortest way.
patches    the definition: every patch is laid out and transformed; for signs per position and users' own offsets.
"""

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from dctps.base.cache import Cache
from dctps.core.geometry import Geometry, convolve, convolve_adjoint
from dctps.core.offsets import Offset, PatchOffset

SCRATCH = 1 << 22  # elements of a temporary: a batch is worked through in slices that keep to it
GAIN = 4  # the separable way must save this factor in multiplications to make up for its extra passes over memory
PATCH_GAIN = 16  # likewise for laying out every patch and transforming it
_kept = Cache(limit=1 << 29)  # bytes of factors and small dense offsets, shared between layers of one shape


def forward(x: Tensor, offset: Offset, geometry: Geometry) -> Tensor:
    """D x: (batch, channels, *spatial) -> (batch, filters, *output)."""
    run = WAYS[way(offset, geometry)][0]
    return run(x, offset, geometry)


def adjoint(y: Tensor, offset: Offset, geometry: Geometry, spatial: tuple[int, ...]) -> Tensor:
    """D' y: (batch, filters, *output) -> (batch, channels, *spatial)."""
    run = WAYS[way(offset, geometry)][1]
    return run(y, offset, geometry, spatial)


def way(offset: Offset, geometry: Geometry) -> str:
    """Which way serves a layer: the one with the fewest multiplications per output, judged by sizes alone."""
    g = geometry
    if g.taps == 1 and g.groups == 1:
        return "transform"
    if not isinstance(offset, PatchOffset):
        return "patches"
    direct, patches = math.prod(g.weight_shape), g.groups * offset.length * math.log2(max(2, offset.length))
    if offset.separable and g.taps > 1 and GAIN * separable_estimate(offset, g) < direct:
        return "separable"
    return "patches" if PATCH_GAIN * patches < direct else "direct"


def separable_estimate(offset: PatchOffset, geometry: Geometry) -> float:
    """Multiplications per pixel of the separable way.

    The lowest m frequencies of a line of length q, seen on n neighbouring channels, have about n m / q degrees of
    freedom, and some more at float32 precision: for n = m = 64 to 512 the ranks are 18, 27, 43, 74.
    """
    m, n, terms = geometry.filters, geometry.group_channels, offset.transform.terms
    full = terms * m * n
    recipe = offset.recipe
    if geometry.groups > 1 or (recipe.order, recipe.rows) != ("spatial", "lowest") or terms == 1:
        return full + terms * m * geometry.taps
    rank = n * m / offset.length + 18
    return min(full, rank * (n + terms * m)) + terms * m * geometry.taps


# --- transform ------------------------------------------------------------------------------------------------------


def _transform_forward(x: Tensor, offset: Offset, geometry: Geometry) -> Tensor:
    steps = (slice(None, None, step) for step in geometry.stride)
    seen = geometry.padded(x)[(slice(None), slice(None), *steps)]
    return offset.apply(_pixels_first(seen).movedim(1, -1)).movedim(-1, 1)


def _transform_adjoint(y: Tensor, offset: Offset, geometry: Geometry, spatial: tuple[int, ...]) -> Tensor:
    part = offset.adjoint(_pixels_first(y).movedim(1, -1)).movedim(-1, 1)
    if not any(geometry.padding) and max(geometry.stride, default=1) == 1:
        return part
    padded = [s + 2 * p for s, p in zip(spatial, geometry.padding, strict=True)]
    out = part.new_zeros(*part.shape[:2], *padded)
    (window,) = geometry.windows(y.shape[2:])
    out[(slice(None), slice(None), *window)] = part
    return geometry.unpadded(out)


# --- separable ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Factors:
    """Weights of the pointwise stages, first to last, and of the depthwise stage.

    The planes between the stages are ordered (group, term r, filter of the group): the terms are summed by halves,
    and the depthwise stage has one plane in and one out per group, which libraries have fast kernels for.
    """

    pointwise: tuple[Tensor, ...]
    depthwise: Tensor  # (R m, 1, *kernel)
    terms: int  # R

    @property
    def nbytes(self) -> int:
        return sum(w.nbytes for w in (*self.pointwise, self.depthwise))


def _stage(weight: Tensor, geometry: Geometry) -> Geometry:
    """The geometry of a pointwise stage."""
    ones = (1,) * geometry.axes
    return Geometry(tuple(weight.shape), ones, (0,) * geometry.axes, ones, geometry.groups)


def _last_stage(weight: Tensor, geometry: Geometry) -> Geometry:
    return dataclasses.replace(geometry, weight_shape=tuple(weight.shape), groups=len(weight))


def _separable_forward(x: Tensor, offset: PatchOffset, geometry: Geometry) -> Tensor:
    own = factors(offset, geometry.groups, x.dtype, x.device)

    def run(part: Tensor) -> Tensor:
        for weight in own.pointwise:
            part = convolve(part, weight, None, _stage(weight, geometry))
        part = convolve(part, own.depthwise, None, _last_stage(own.depthwise, geometry))
        return _sum_terms(part, own.terms, geometry.groups)

    return _in_slices(run, _pixels_first(x), own.terms * geometry.filters * math.prod(x.shape[2:]))


def _separable_adjoint(y: Tensor, offset: PatchOffset, geometry: Geometry, spatial: tuple[int, ...]) -> Tensor:
    own = factors(offset, geometry.groups, y.dtype, y.device)

    def run(part: Tensor) -> Tensor:
        part = _pixels_first(_repeat_terms(part, own.terms, geometry.groups))
        part = convolve_adjoint(part, own.depthwise, _last_stage(own.depthwise, geometry), spatial)
        for weight in reversed(own.pointwise):
            part = convolve_adjoint(part, weight, _stage(weight, geometry), spatial)
        return part

    return _in_slices(run, _pixels_first(y), own.terms * geometry.filters * math.prod(spatial))


def _pixels_first(x: Tensor) -> Tensor:
    """Channels fastest in memory, where torch has that layout: pointwise and depthwise stages are fastest in it."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats.get(x.dim(), torch.contiguous_format))


def _sum_terms(planes: Tensor, terms: int, groups: int) -> Tensor:  # (b, G R m/G, ...) -> (b, m, ...)
    if terms == 1:
        return planes
    grouped: Tensor = planes.unflatten(1, (groups, terms, -1))
    return (grouped[:, :, 0] + grouped[:, :, 1]).flatten(1, 2)


def _repeat_terms(y: Tensor, terms: int, groups: int) -> Tensor:  # (b, m, ...) -> (b, G R m/G, ...)
    grouped: Tensor = y.unflatten(1, (groups, 1, -1))
    return grouped.expand(-1, -1, terms, *(-1 for _ in y.shape[1:])).flatten(1, 3)


def factors(offset: PatchOffset, groups: int, dtype: torch.dtype, device: torch.device) -> Factors:
    """The factors of an offset, computed in float64, cut and rounded to the precision of `dtype`; shared."""
    return _kept.get(("factors", offset, groups, dtype, device), lambda: _factors(offset, groups, dtype, device))


def _factors(offset: PatchOffset, groups: int, dtype: torch.dtype, device: torch.device) -> Factors:
    left, right = (f.unflatten(1, (groups, -1)).transpose(0, 1) for f in offset.factors())  # (G, R, m/G, c or t)
    kernel = offset.weight_shape[2:]
    pointwise = left.flatten(0, 2)
    stages = [pointwise] if groups > 1 else thin(pointwise, torch.finfo(dtype).eps)
    stages = [_pixels_first(stage[(...,) + (None,) * len(kernel)].to(device, dtype)) for stage in stages]
    depthwise = right.reshape(-1, 1, *kernel).to(device, dtype)
    return Factors(tuple(stages), depthwise, left.shape[1])


def thin(matrix: Tensor, precision: float) -> list[Tensor]:
    """[V, U] with U V = matrix up to `precision` (relative to its norm) where that is shorter, else [matrix].

    The range is found with a random sketch, doubled until it holds the matrix, and then cut by a small SVD: a full
    one would take longer than many trainings.
    """
    generator = torch.Generator(device="cpu").manual_seed(0)
    size = 8
    while size * sum(matrix.shape) < matrix.numel():
        sketch = torch.randn(matrix.shape[1], size, dtype=matrix.dtype, generator=generator, device="cpu")
        basis = torch.linalg.qr(matrix @ sketch).Q
        inner = basis.T @ matrix
        if torch.linalg.norm(matrix - basis @ inner) <= precision * torch.linalg.norm(matrix):
            u, s, v = torch.linalg.svd(inner, full_matrices=False)
            rank = max(1, int((s > precision * s[0]).sum()))
            return [s[:rank, None] * v[:rank], basis @ u[:, :rank]]
        size *= 2
    return [matrix]


def _in_slices(run: Callable[[Tensor], Tensor], x: Tensor, scratch_per_image: int) -> Tensor:
    """`run` over slices of the batch, so that its temporaries stay small."""
    step = max(1, SCRATCH // max(1, scratch_per_image))
    if len(x) <= step:
        return run(x)
    return torch.cat([run(part) for part in x.split(step)])


# --- direct ---------------------------------------------------------------------------------------------------------


def _direct_forward(x: Tensor, offset: PatchOffset, geometry: Geometry) -> Tensor:
    return convolve(x, weight(offset, x.dtype, x.device), None, geometry)


def _direct_adjoint(y: Tensor, offset: PatchOffset, geometry: Geometry, spatial: tuple[int, ...]) -> Tensor:
    return convolve_adjoint(y, weight(offset, y.dtype, y.device), geometry, spatial)


def weight(offset: PatchOffset, dtype: torch.dtype, device: torch.device) -> Tensor:
    """D as a weight, shared between layers of one shape; not to be changed in place."""
    key = "weight", offset, dtype, device
    return _kept.get(key, lambda: offset.matrix(dtype).to(device).view(offset.weight_shape))


# --- patches --------------------------------------------------------------------------------------------------------


def _patches_forward(x: Tensor, offset: Offset, geometry: Geometry) -> Tensor:
    output = geometry.output_size(x.shape[2:])

    def run(part: Tensor) -> Tensor:
        padded = geometry.padded(part)
        seen = [padded[(slice(None), slice(None), *window)] for window in geometry.windows(output)]
        patch = torch.stack(seen, -1).movedim(1, -2)  # (b, *output, channels, taps)
        patch = patch.unflatten(-2, (geometry.groups, -1)).flatten(-2)  # (b, *output, groups, n)
        return _own_rows(offset.apply(patch), geometry).movedim(-1, 1)

    return _in_slices(run, x, _patch_scratch(offset, geometry) * math.prod(output))


def _patches_adjoint(y: Tensor, offset: Offset, geometry: Geometry, spatial: tuple[int, ...]) -> Tensor:
    output = tuple(y.shape[2:])
    padded = [s + 2 * p for s, p in zip(spatial, geometry.padding, strict=True)]

    def run(part: Tensor) -> Tensor:
        patch = offset.adjoint(_all_rows(part.movedim(1, -1), geometry))  # (b, *output, groups, n)
        patch = patch.unflatten(-1, (-1, geometry.taps)).flatten(-3, -2).movedim(-2, 1)  # (b, channels, *output, taps)
        out = part.new_zeros(len(part), geometry.channels, *padded)
        for tap, window in enumerate(geometry.windows(output)):
            out[(slice(None), slice(None), *window)] += patch[..., tap]
        return geometry.unpadded(out)

    return _in_slices(run, y, _patch_scratch(offset, geometry) * math.prod(output))


def _patch_scratch(offset: Offset, geometry: Geometry) -> int:
    """Numbers per output pixel: a line of the transform for each group."""
    return geometry.groups * (offset.length if isinstance(offset, PatchOffset) else max(offset.shape))


def _own_rows(y: Tensor, geometry: Geometry) -> Tensor:  # (..., groups, m) -> (..., m)
    """Of all filters applied to all groups, each filter on its own group."""
    blocks: Tensor = y.unflatten(
        -1, (geometry.groups, -1)
    )  # (..., group of the input, group of the filter, m / groups)
    return blocks.diagonal(dim1=-3, dim2=-2).transpose(-1, -2).flatten(-2)


def _all_rows(y: Tensor, geometry: Geometry) -> Tensor:  # (..., m) -> (..., groups, m)
    return torch.diag_embed(y.unflatten(-1, (geometry.groups, -1)).transpose(-1, -2), dim1=-3, dim2=-2).flatten(-2)


WAYS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "transform": (_transform_forward, _transform_adjoint),
    "separable": (_separable_forward, _separable_adjoint),
    "direct": (_direct_forward, _direct_adjoint),
    "patches": (_patches_forward, _patches_adjoint),
}
