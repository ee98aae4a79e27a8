"""The geometry of a layer: a linear layer is a convolution without spatial axes.

Inputs are (batch, channels, *spatial), weights (filters, channels per group, *kernel); a linear layer has neither
spatial axes nor a kernel. Everything below is written once for zero to three axes.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Shape of a weight and how it slides over the input (`padding` is with zeros, the same on both sides)."""

    weight_shape: tuple[int, ...]
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1

    @property
    def filters(self) -> int:
        return self.weight_shape[0]

    @property
    def group_channels(self) -> int:
        return self.weight_shape[1]

    @property
    def channels(self) -> int:
        return self.weight_shape[1] * self.groups

    @property
    def kernel(self) -> tuple[int, ...]:
        return self.weight_shape[2:]

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    @property
    def axes(self) -> int:
        return len(self.kernel)

    @property
    def is_depthwise(self) -> bool:
        """Whether each filter reads one channel, and each channel one filter."""
        return self.group_channels == 1 and self.filters == self.groups

    def pack(self) -> list[int]:
        """The geometry as a list of integers, which an operator of torch.library can take; not to be changed."""
        return self._packed

    @functools.cached_property
    def _packed(self) -> list[int]:
        return [self.groups, *self.weight_shape, *self.stride, *self.padding, *self.dilation]

    @staticmethod
    def unpack(numbers: Sequence[int]) -> "Geometry":
        """The geometry that `pack` made these integers of; the same object for the same integers."""
        return _unpacked(tuple(numbers))

    def output_size(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """Spatial size of the output for an input of spatial size `spatial`."""
        per_axis = list(zip(spatial, self.kernel, self.stride, self.padding, self.dilation, strict=True))
        if any(s + 2 * p < d * (k - 1) + 1 for s, k, _, p, d in per_axis):
            spread = tuple(d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True))
            padded = tuple(s + 2 * p for s, p in zip(spatial, self.padding, strict=True))
            raise ValueError(f"an input of (padded) size {padded} is smaller than the kernel, which spans {spread}")
        return tuple((s + 2 * p - d * (k - 1) - 1) // step + 1 for s, k, step, p, d in per_axis)

    def windows(self, output: Sequence[int]) -> Iterator[tuple[slice, ...]]:
        """For each kernel position in row-major order, where in the padded input it reads for all outputs."""
        for tap in range(self.taps):
            index = torch.unravel_index(torch.tensor(tap, device="cpu"), self.kernel) if self.axes else ()
            starts = [int(i) * d for i, d in zip(index, self.dilation, strict=True)]
            ranges = zip(starts, output, self.stride, strict=True)
            yield tuple(slice(start, start + (size - 1) * step + 1, step) for start, size, step in ranges)

    def padded(self, x: Tensor) -> Tensor:
        return F.pad(x, [p for pad in reversed(self.padding) for p in (pad, pad)]) if any(self.padding) else x

    def unpadded(self, x: Tensor) -> Tensor:
        """The part of a padded tensor that is not padding."""
        inner = (slice(p, size - p) for p, size in zip(self.padding, x.shape[2:], strict=True))
        return x[(slice(None), slice(None), *inner)]


@functools.lru_cache(maxsize=4096)
def _unpacked(numbers: tuple[int, ...]) -> Geometry:
    groups, filters, channels, *rest = numbers
    axes = len(rest) // 4
    kernel, stride, padding, dilation = (tuple(rest[i * axes : (i + 1) * axes]) for i in range(4))
    return Geometry((filters, channels, *kernel), stride, padding, dilation, groups)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """torch's own operator with a dense weight: F.linear, F.conv1d, F.conv2d or F.conv3d."""
    g = geometry
    if g.axes == 0:
        return F.linear(x, weight, bias)
    run = (F.conv1d, F.conv2d, F.conv3d)[g.axes - 1]
    return run(x, weight, bias, g.stride, g.padding, g.dilation, g.groups)


def convolve_adjoint(y: Tensor, weight: Tensor, geometry: Geometry, spatial: Sequence[int]) -> Tensor:
    """The adjoint of `convolve` in x: from (batch, filters, *output) to (batch, channels, *spatial)."""
    g = geometry
    if g.axes == 0:
        return F.linear(y, weight.T)
    run = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[g.axes - 1]
    per_axis = zip(spatial, y.shape[2:], g.kernel, g.stride, g.padding, g.dilation, strict=True)
    rest = [s - ((o - 1) * step - 2 * p + d * (k - 1) + 1) for s, o, k, step, p, d in per_axis]
    return run(y, weight, None, g.stride, g.padding, rest, g.groups, g.dilation)
