"""The factors of a separable offset, D[k, (c, t)] = sum_r left[r, k, c] right[r, k, t], as weights of convolutions."""

import dataclasses

import torch
from torch import Tensor

from dctps.base.cache import Cache
from dctps.core.geometry import Geometry
from dctps.core.offsets import PatchOffset

_factors_kept = Cache(limit=1 << 29)  # bytes of factors, shared between layers of one shape


@dataclasses.dataclass(frozen=True)
class Factors:
    """Weights of the pointwise stages, first to last, and of the depthwise stage.

    The planes between the stages are ordered (group, term r, filter of the group): the terms are summed by parts, and
    the depthwise stage has one plane in and one out per group, which libraries have fast kernels for.
    """

    pointwise: tuple[Tensor, ...]
    depthwise: Tensor  # (R m, 1, *kernel)
    terms: int  # R

    @property
    def nbytes(self) -> int:
        return sum(weight.nbytes for weight in (*self.pointwise, self.depthwise))


def factors_of(offset: PatchOffset, groups: int, dtype: torch.dtype, device: torch.device) -> Factors:
    """The factors of an offset, computed in float64, cut and rounded to the precision of `dtype`; shared."""
    key = offset, groups, dtype, device
    return _factors_kept.get(key, lambda: _make_factors(offset, groups, dtype, device))


def _make_factors(offset: PatchOffset, groups: int, dtype: torch.dtype, device: torch.device) -> Factors:
    left, right = (f.unflatten(1, (groups, -1)).transpose(0, 1) for f in offset.factors())  # (G, R, m/G, c or t)
    kernel = offset.weight_shape[2:]
    pointwise = left.flatten(0, 2)
    stages = [pointwise] if groups > 1 else thin_factors(pointwise, torch.finfo(dtype).eps)
    stages = [pixels_first(stage[(...,) + (None,) * len(kernel)].to(device, dtype)) for stage in stages]
    depthwise = right.reshape(-1, 1, *kernel).to(device, dtype)
    return Factors(tuple(stages), depthwise, left.shape[1])


def thin_factors(matrix: Tensor, precision: float) -> list[Tensor]:
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


def pointwise_stage(weight: Tensor, geometry: Geometry) -> Geometry:
    """The geometry of a pointwise stage."""
    ones = (1,) * geometry.axes
    return Geometry(tuple(weight.shape), ones, (0,) * geometry.axes, ones, geometry.groups)


def last_stage(weight: Tensor, geometry: Geometry) -> Geometry:
    """The geometry of the depthwise stage, which has the layer's stride, padding and dilation."""
    return dataclasses.replace(geometry, weight_shape=tuple(weight.shape), groups=len(weight))


def sum_terms(planes: Tensor, terms: int, groups: int) -> Tensor:  # (b, G R m/G, ...) -> (b, m, ...)
    """The sum over the terms r."""
    if terms == 1:
        return planes
    grouped: Tensor = planes.unflatten(1, (groups, terms, -1))
    total = grouped[:, :, 0] + grouped[:, :, 1]
    for term in range(2, terms):
        total = total + grouped[:, :, term]
    return total.flatten(1, 2)


def repeat_terms(y: Tensor, terms: int, groups: int) -> Tensor:  # (b, m, ...) -> (b, G R m/G, ...)
    """The adjoint of `sum_terms`."""
    grouped: Tensor = y.unflatten(1, (groups, 1, -1))
    return grouped.expand(-1, -1, terms, *(-1 for _ in y.shape[1:])).flatten(1, 3)


def pixels_first(x: Tensor) -> Tensor:
    """x with channels fastest in memory, where torch has that layout: both stages are fastest in it."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats.get(x.dim(), torch.contiguous_format))
