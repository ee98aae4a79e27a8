"""What a route is: one way to compute y = (alpha D + S) x and its gradients for the layers of one geometry."""

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dctps.core.geometry import Geometry

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]  # those of x, values and alpha
Needs = tuple[bool, bool, bool]  # which of these gradients are needed


class Route(Protocol):
    """A way to compute, with its gradients and its cost. `routes.choose` says which route a layer takes."""

    @property
    def name(self) -> str:
        """The word for the way, as benchmarks print it."""

    def forward(self, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None) -> Tensor:
        """(alpha D + S) x: (batch, channels, *spatial) -> (batch, filters, *output)."""

    def backward(
        self, grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, needs: Needs
    ) -> Gradients:
        """The gradients of x, values and alpha that are needed, for a gradient `grad` of the output."""

    def multiply_adds(self, x: Tensor, nnz: int) -> int:
        """The multiply-adds of `forward` on a batch x with nnz values. Making W or tables of D is not counted."""


class Layout(NamedTuple):
    """How tensors (batch, channels, *spatial) lie in memory, as far as a route depends on it."""

    adjacent: bool  # the channels of a pixel are neighbours
    packed: bool  # the channels of a pixel are neighbours, if it has several, and pixels follow without gaps


def layout_of(*tensors: Tensor) -> Layout:
    """The layout that all of the tensors share."""
    adjacent = all(tensor.stride(1) == 1 for tensor in tensors)
    return Layout(adjacent, all(tensor.movedim(1, -1).is_contiguous() for tensor in tensors))


def forward_layout(x: Tensor, geometry: Geometry) -> Layout:
    """The layout that an input x and the output that is made for it share."""
    layout = layout_of(x)
    if not any(layout) or x.dim() == 2 or memory_format(x) is not torch.contiguous_format:
        return layout
    one_pixel = math.prod(geometry.output_size(x.shape[2:])) == 1  # then contiguous outputs have adjacent channels, too
    return Layout(layout.adjacent and one_pixel, layout.packed and (one_pixel or geometry.filters == 1))


def output_like(x: Tensor, geometry: Geometry) -> Tensor:
    """Room for the result, in memory as the input is."""
    size = x.shape[0], geometry.filters, *geometry.output_size(x.shape[2:])
    return torch.empty(size, dtype=x.dtype, device=x.device, memory_format=memory_format(x))


def memory_format(x: Tensor) -> torch.memory_format:
    """Channels-last for channels-last input, else contiguous: results lie in memory as their source does."""
    for dims, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if x.dim() == dims and x.is_contiguous(memory_format=layout) and not x.is_contiguous():
            return layout
    return torch.contiguous_format


def count_outputs(x: Tensor, geometry: Geometry) -> int:
    """The number of output pixels of a batch x."""
    return len(x) * math.prod(geometry.output_size(x.shape[2:]))


def count_pixels(x: Tensor) -> int:
    """The number of input pixels of a batch x."""
    return len(x) * math.prod(x.shape[2:])


def count_read_pixels(x: Tensor, geometry: Geometry) -> int:
    """The number of input pixels of a batch x in those phases of a stride that some kernel position reads.

    With stride s, the pixels whose padded coordinates leave the same remainder modulo s are one phase.
    """
    g, count = geometry, len(x)
    for size, kernel, stride, padding, dilation in zip(
        x.shape[2:], g.kernel, g.stride, g.padding, g.dilation, strict=True
    ):
        read = {tap * dilation % stride for tap in range(kernel)}
        count *= sum((pixel + padding) % stride in read for pixel in range(size))
    return count
