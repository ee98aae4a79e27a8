"""The factors of a separable offset D[k, (c, t)] = sum_r left[r, k, c] right[r, k, t] as weights of convolutions."""

import dataclasses

import torch
from torch import Tensor

from dctps.base.cache import Cache
from dctps.core.geometry import Geometry
from dctps.core.patch_offset import PatchOffset

_factors = Cache(limit=1 << 29)  # factors, up to this many bytes, shared by layers of one shape


@dataclasses.dataclass(frozen=True)
class Factors:
    """The weights of the pointwise stages, from first to last, and of the depthwise stage.

    The planes between the stages have the order (group, term r, filter of the group). Each group of the depthwise
    stage has one plane in and one plane out, for which libraries have fast kernels.
    """

    pointwise: tuple[Tensor, ...]
    depthwise: Tensor  # (R m, 1, *kernel)
    terms: int  # R

    @property
    def nbytes(self) -> int:
        return sum(weight.nbytes for weight in (*self.pointwise, self.depthwise))


def factors_of(offset: PatchOffset, groups: int, dtype: torch.dtype, device: torch.device) -> Factors:
    """Return the factors of an offset: computed in float64, cut to the rank that `dtype` can resolve, and cached."""
    key = offset, groups, dtype, device
    return _factors.get(key, lambda: _make_factors(offset, groups, dtype, device))


def _make_factors(offset: PatchOffset, groups: int, dtype: torch.dtype, device: torch.device) -> Factors:
    left, right = (f.unflatten(1, (groups, -1)).transpose(0, 1) for f in offset.factors())  # (G, R, m/G, c or t)
    kernel = offset.weight_shape[2:]
    pointwise = left.flatten(0, 2)
    stages = [pointwise] if groups > 1 else thin_factors(pointwise, torch.finfo(dtype).eps)
    stages = [channels_innermost(stage[(...,) + (None,) * len(kernel)].to(device, dtype)) for stage in stages]
    depthwise = right.reshape(-1, 1, *kernel).to(device, dtype)
    return Factors(tuple(stages), depthwise, left.shape[1])


def thin_factors(matrix: Tensor, precision: float) -> list[Tensor]:
    """Return [V, U] with U V = matrix up to `precision` (relative to its norm) where they are smaller, else [matrix].

    A random sketch finds the range of the matrix. Its size is doubled until it holds the matrix, and a small SVD then
    cuts it to the rank. An SVD of the matrix itself would take longer than many trainings.
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


def pointwise_geometry(weight: Tensor, geometry: Geometry) -> Geometry:
    """Return the geometry of a pointwise stage."""
    ones = (1,) * geometry.axes
    return Geometry(tuple(weight.shape), ones, (0,) * geometry.axes, ones, geometry.groups)


def depthwise_geometry(weight: Tensor, geometry: Geometry) -> Geometry:
    """Return the geometry of the depthwise stage, which has the layer's stride, padding and dilation."""
    return dataclasses.replace(geometry, weight_shape=tuple(weight.shape), groups=len(weight))


def sum_terms(planes: Tensor, terms: int, groups: int) -> Tensor:  # (b, G R m/G, ...) -> (b, m, ...)
    """Return the sum over the terms r."""
    if terms == 1:
        return planes
    grouped: Tensor = planes.unflatten(1, (groups, terms, -1))
    total = grouped[:, :, 0] + grouped[:, :, 1]
    for term in range(2, terms):
        total = total + grouped[:, :, term]
    return total.flatten(1, 2)


def repeat_terms(y: Tensor, terms: int, groups: int) -> Tensor:  # (b, m, ...) -> (b, G R m/G, ...)
    """Apply the adjoint of `sum_terms`: every term gets a copy of y."""
    grouped: Tensor = y.unflatten(1, (groups, 1, -1))
    return grouped.expand(-1, -1, terms, *(-1 for _ in y.shape[1:])).flatten(1, 3)


def channels_innermost(x: Tensor) -> Tensor:
    """Return x in a channels-last format, where stages are fastest, or contiguous where torch has no such format."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats.get(x.dim(), torch.contiguous_format))
