"""The geometry of a layer, where a linear layer is a convolution without spatial axes.

Inputs have the shape (batch, channels, *spatial), and weights the shape (filters, channels per group, *kernel). A
linear layer has neither spatial axes nor a kernel. Everything below is written once for zero to three axes.
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
    """The shape of a weight and how it slides over the input; zeros pad the input equally on both sides of an axis."""

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
        """Whether each filter reads one channel, and each channel is read by one filter."""
        return self.group_channels == 1 and self.filters == self.groups

    def __post_init__(self) -> None:
        # It is made here, not at its first use: torch.compile may look on there, and cannot read a cached property.
        packed = [self.groups, *self.weight_shape, *self.stride, *self.padding, *self.dilation]
        object.__setattr__(self, "_packed", packed)

    @classmethod
    def of_shape(cls, weight_shape: tuple[int, ...]) -> "Geometry":
        """Return a geometry that says the shape of a weight and nothing else, as for layers that we do not know."""
        ones = (1,) * (len(weight_shape) - 2)
        return cls(weight_shape, ones, tuple(0 for _ in ones), ones)

    def pack(self) -> list[int]:
        """Return the geometry as a list of integers, which an operator of torch.library can take; do not change it."""
        packed: list[int] = self.__dict__["_packed"]
        return packed

    @staticmethod
    def unpack(numbers: Sequence[int]) -> "Geometry":
        """Return the geometry of which `pack` made these integers; equal integers give the same object."""
        key = tuple(numbers)
        known = all(type(number) is int for number in key)  # torch.compile may pass symbols, which cannot be hashed
        return _unpacked(key) if known else _unpacked.__wrapped__(key)

    def output_size(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """Return the spatial size of the output for an input of spatial size `spatial`."""
        padded = self.padded_size(spatial)
        spans = tuple(d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True))
        if any(size < span for size, span in zip(padded, spans, strict=True)):
            raise ValueError(f"an input of (padded) size {padded} is smaller than the kernel, which spans {spans}")
        return tuple((size - span) // step + 1 for size, span, step in zip(padded, spans, self.stride, strict=True))

    def padded_size(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """Return the spatial size of an input of spatial size `spatial` together with its padding."""
        return tuple(size + 2 * p for size, p in zip(spatial, self.padding, strict=True))

    def windows(self, output: Sequence[int]) -> Iterator[tuple[slice, ...]]:
        """Yield, for each kernel position in row-major order, the part of the padded input that it reads."""
        for tap in range(self.taps):
            index = torch.unravel_index(torch.tensor(tap, device="cpu"), self.kernel) if self.axes else ()
            starts = [int(i) * d for i, d in zip(index, self.dilation, strict=True)]
            ranges = zip(starts, output, self.stride, strict=True)
            yield tuple(slice(start, start + (size - 1) * step + 1, step) for start, size, step in ranges)

    def padded(self, x: Tensor) -> Tensor:
        """Return x with zeros around it."""
        return F.pad(x, [p for pad in reversed(self.padding) for p in (pad, pad)]) if any(self.padding) else x

    def unpadded(self, x: Tensor) -> Tensor:
        """Return the part of a padded tensor that is not padding."""
        inner = (slice(p, size - p) for p, size in zip(self.padding, x.shape[2:], strict=True))
        return x[(slice(None), slice(None), *inner)]


@functools.lru_cache(maxsize=4096)
def _unpacked(numbers: tuple[int, ...]) -> Geometry:
    groups, filters, channels, *rest = numbers
    axes = len(rest) // 4
    kernel, stride, padding, dilation = (tuple(rest[i * axes : (i + 1) * axes]) for i in range(4))
    return Geometry((filters, channels, *kernel), stride, padding, dilation, groups)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """Apply a dense weight by torch's own operator: F.linear, F.conv1d, F.conv2d or F.conv3d."""
    g = geometry
    if g.axes == 0:
        return F.linear(x, weight, bias)
    run = (F.conv1d, F.conv2d, F.conv3d)[g.axes - 1]
    return run(x, weight, bias, g.stride, g.padding, g.dilation, g.groups)


def convolve_adjoint(y: Tensor, weight: Tensor, geometry: Geometry, spatial: Sequence[int]) -> Tensor:
    """Apply the adjoint of `convolve` in x, which maps (batch, filters, *output) to (batch, channels, *spatial)."""
    g = geometry
    if g.axes == 0:
        return F.linear(y, weight.T)
    run = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[g.axes - 1]
    per_axis = zip(spatial, y.shape[2:], g.kernel, g.stride, g.padding, g.dilation, strict=True)
    rest = [s - ((o - 1) * step - 2 * p + d * (k - 1) + 1) for s, o, k, step, p, d in per_axis]
    return run(y, weight, None, g.stride, g.padding, rest, g.groups, g.dilation)
