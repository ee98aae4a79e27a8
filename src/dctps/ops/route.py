"""What a route is: an algorithm for y = (alpha D + S) x and its gradients, for the layers of one geometry."""

import functools
import math
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

from dctps.core.geometry import Geometry
from dctps.ops.finish import Finish

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]  # gradients of x, values and alpha
Needs = tuple[bool, bool, bool]  # whether the gradients of x, values and alpha are needed


class Route(Protocol):
    """An algorithm for y = (alpha D + S) x, its gradients and its cost; `routes.choose` chooses one for a layer."""

    @property
    def name(self) -> str:
        """The name of the route, which benchmarks print."""

    def forward(self, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None) -> Tensor:
        """Return (alpha D + S) x; it maps (batch, channels, *spatial) to (batch, filters, *output)."""

    def backward(
        self, grad: Tensor, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, needs: Needs
    ) -> Gradients:
        """Return those gradients of x, values and alpha that are needed, for a gradient `grad` of the output."""

    def multiply_adds(self, x: Tensor, nnz: int) -> int:
        """Return the multiply-adds of `forward` on a batch x with nnz values; they exclude making W and tables of D."""


class FinishingRoute(Route, Protocol):
    """A route that can finish its output before it is written."""

    def forward_finished(
        self, x: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None, bias: Tensor | None, finish: Finish
    ) -> Tensor:
        """Return the finished (alpha D + S) x + bias."""


def finishing(route: Route) -> FinishingRoute | None:
    """Return the route if it can finish its output, else None."""
    return cast(FinishingRoute, route) if getattr(route, "finishes", False) else None


class Layout(NamedTuple):
    """The layout in memory of tensors (batch, channels, *spatial), as far as the choice of a route depends on it."""

    adjacent: bool  # whether the channels of a pixel are neighbours
    packed: bool  # whether the channels of a pixel are neighbours (or there is only one) and pixels follow without gaps


def layout_of(*tensors: Tensor) -> Layout:
    """Return the layout that all of the tensors share."""
    adjacent = all(tensor.stride(1) == 1 for tensor in tensors)
    return Layout(adjacent, all(tensor.movedim(1, -1).is_contiguous() for tensor in tensors))


def forward_layout(x: Tensor, geometry: Geometry) -> Layout:
    """Return the layout that an input x shares with its output, as `empty_output` makes it."""
    layout = layout_of(x)
    if not any(layout) or x.dim() == 2 or memory_format(x) is not torch.contiguous_format:
        return layout
    one_pixel = math.prod(geometry.output_size(x.shape[2:])) == 1  # a contiguous output then has adjacent channels, too
    return Layout(layout.adjacent and one_pixel, layout.packed and (one_pixel or geometry.filters == 1))


def empty_output(x: Tensor, geometry: Geometry) -> Tensor:
    """Return an uninitialised tensor for the output, in the type and memory format of the input x."""
    if x.dim() == 2:
        return torch.empty((x.shape[0], geometry.filters), dtype=x.dtype, device=x.device)
    size = x.shape[0], geometry.filters, *geometry.output_size(x.shape[2:])
    return torch.empty(size, dtype=x.dtype, device=x.device, memory_format=memory_format(x))


def memory_format(x: Tensor) -> torch.memory_format:
    """Return the memory format that results for x have: channels-last where x is, else contiguous."""
    for dims, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if x.dim() == dims and x.is_contiguous(memory_format=layout) and not x.is_contiguous():
            return layout
    return torch.contiguous_format


def read_pixels(x: Tensor, geometry: Geometry) -> Tensor:
    """Return the pixels of x that some output reads; the others, which a stride or a dilation skips, are no factors."""
    g = geometry
    for axis, numbers in enumerate(zip(x.shape[2:], g.kernel, g.stride, g.padding, g.dilation, strict=True)):
        read = _read_coordinates(*numbers)
        if len(read) < x.shape[axis + 2]:
            x = x.index_select(axis + 2, torch.tensor(read, dtype=torch.int64, device="cpu").to(x.device))
    return x


@functools.lru_cache(maxsize=4096)
def _read_coordinates(size: int, kernel: int, stride: int, padding: int, dilation: int) -> tuple[int, ...]:
    """Return the coordinates along one axis that some output reads."""
    starts = range(-padding, size + padding - dilation * (kernel - 1), stride)
    read = {start + tap * dilation for start in starts for tap in range(kernel)}
    return tuple(sorted(read & set(range(size))))


def count_outputs(x: Tensor, geometry: Geometry) -> int:
    """Return the number of output pixels of a batch x."""
    return len(x) * math.prod(geometry.output_size(x.shape[2:]))


def count_dense(x: Tensor, geometry: Geometry) -> int:
    """Return the multiply-adds of a dense weight on a batch x."""
    return count_outputs(x, geometry) * math.prod(geometry.weight_shape)


def count_pixels(x: Tensor) -> int:
    """Return the number of input pixels of a batch x."""
    return len(x) * math.prod(x.shape[2:])


def count_read_pixels(x: Tensor, geometry: Geometry) -> int:
    """Return the number of input pixels of a batch x in the phases that some kernel position reads.

    With stride s, the pixels whose padded coordinates have the same remainder modulo s form one phase.
    """
    g, count = geometry, len(x)
    for size, kernel, stride, padding, dilation in zip(
        x.shape[2:], g.kernel, g.stride, g.padding, g.dilation, strict=True
    ):
        read = {tap * dilation % stride for tap in range(kernel)}
        count *= sum((pixel + padding) % stride in read for pixel in range(size))
    return count
