"""The dense gradient dL/dW of a layer, from its inputs x and the gradients g of its outputs."""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import grad as gradients

from dctps.core.geometry import Geometry

# Sizes of one piece of work. Torch's convolutions need several times as much memory for themselves, and larger pieces
# are hardly faster.
BLOCK = 1 << 18  # entries of the dense gradient, unless a 64th of all is more
IMAGES = 1 << 18  # entries of x and g

Pair = tuple[Tensor, Tensor]  # x (batch, channels, *spatial) and g (batch, filters, *output) of one use of a layer


def blocks(geometry: Geometry) -> Iterator[slice]:
    """The filters of a layer in blocks; the filters of a group stay together."""
    width = geometry.group_channels * geometry.taps
    unit = geometry.filters // geometry.groups if geometry.groups > 1 else 1
    step = unit * max(1, max(BLOCK, geometry.filters * width // 64) // (unit * width))
    return (slice(start, min(start + step, geometry.filters)) for start in range(0, geometry.filters, step))


@torch.no_grad()
def weight_gradient(pairs: Iterable[Pair], geometry: Geometry, filters: slice) -> Tensor:
    """The gradient dL/dW of some filters, summed over the uses of the layer: (filters, channels per group, *kernel).

    It takes a few images at a time, because torch's operators copy their inputs.
    """
    total = None
    for x, g in pairs:
        work = torch.float64 if x.dtype == torch.float64 else torch.float32  # half types are summed in float32
        g = g[:, filters]
        each = math.prod(x.shape[1:]) + math.prod(g.shape[1:])
        images = max(1, IMAGES // each) if geometry.axes else max(1, len(x))
        for some_x, some_g in zip(x.split(images), g.split(images), strict=True):
            with torch.autocast(x.device.type, enabled=False):
                part = _weight_gradient(some_x.to(work), some_g.to(work), geometry, filters)
            total = part if total is None else total.add_(part)
    if total is None:
        raise ValueError("there is no gradient without a use of the layer")
    return total


def _weight_gradient(x: Tensor, g: Tensor, geometry: Geometry, filters: slice) -> Tensor:
    """The gradient of one use of the layer, by torch's own operators."""
    if geometry.axes == 0:
        return g.T @ x
    size = geometry.filters // geometry.groups
    groups = range(filters.start // size, -(-filters.stop // size))
    channels = slice(groups.start * geometry.group_channels, groups.stop * geometry.group_channels)
    run = (gradients.conv1d_weight, gradients.conv2d_weight, gradients.conv3d_weight)[geometry.axes - 1]
    shape = (g.shape[1], *geometry.weight_shape[1:])
    sliding = geometry.stride, geometry.padding, geometry.dilation
    result: Tensor = run(x[:, channels], shape, g, *sliding, len(groups))  # type: ignore[no-untyped-call]
    return result
