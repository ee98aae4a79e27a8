"""Offsets that are not in the library, on the narrow ResNet18 of `dctps reproduce scale`: is one worth being added?

Each offset is trained like the line "DCT, channel order, signs, leverage" at 0.1 %: the same places, images, steps and
rule for alpha. D is held as a matrix, since nothing but the accuracy is asked here.

    python benchmarks/explore_offsets.py                   # one seed
    python benchmarks/explore_offsets.py --seeds 0 1 2 --lines dct_signed taps
"""

import math
from collections.abc import Callable

import explore
import torch
from torch import Tensor

import dctps
from dctps.core.offsets import OffsetLike
from dctps.core.random import Stream
from dctps.data.dataset import Dataset
from dctps.train.settings import Settings

Shape = tuple[int, ...]


class Stored:
    """An offset that is a function of the shape of a weight and is held as a matrix."""

    def __init__(self, weight: Tensor) -> None:  # of the shape of the weight
        self.dense = weight.flatten(1).float()
        self.shape = tuple(self.dense.shape)

    def apply(self, x: Tensor) -> Tensor:
        return x @ self.dense.T.to(x)

    def adjoint(self, v: Tensor) -> Tensor:
        return v @ self.dense.to(v)

    def matrix(self) -> Tensor:
        return self.dense


def signed_dct(shape: Shape) -> Tensor:
    return dctps.OFFSETS["dct_signed"].bind(shape).matrix().view(shape)


def gaussian(shape: Shape) -> Tensor:
    """Independent normal numbers, which would have to be stored."""
    return torch.from_numpy(Stream(0, f"gaussian/{shape}").normals(math.prod(shape))).view(shape)


def taps(shape: Shape) -> Tensor:
    """A signed DCT over the channels times one pattern over the kernel: a box, or (every second filter) dx or dy."""
    if len(shape) == 2 or shape[2:] == (1, 1):
        return signed_dct(shape)
    step, even = torch.tensor([-1.0, 0.0, 1.0]) / 2**0.5, torch.ones(3) / 3**0.5
    patterns = [torch.outer(even, even), torch.outer(even, step), torch.outer(even, even), torch.outer(step, even)]
    filters, channels = shape[:2]
    waves = signed_dct((channels, channels, 1, 1))[:, :, 0, 0]
    rows = [waves[(k // 2 if k % 2 == 0 else k // 4) % channels] for k in range(filters)]  # each pattern from 0 on
    return torch.stack([row[:, None, None] * patterns[k % 4] for k, row in enumerate(rows)])


def mirrored(shape: Shape) -> Tensor:
    """[[Q, -Q], [-Q, Q]] with a signed DCT Q of half the size: a pair of outputs is x and -x, so ReLU loses nothing."""
    filters, channels, *kernel = shape
    rows = filters // 2 if kernel and filters % 2 == 0 else filters  # classes are no pairs
    columns = channels // 2 if channels % 2 == 0 else channels
    q = signed_dct((rows, columns, *kernel))
    wide = q if columns == channels else torch.cat([q, -q], 1)
    return wide if rows == filters else torch.cat([wide, -wide])


def delta(shape: Shape) -> Tensor:
    """A signed DCT over the channels at the middle of the kernel, and zero elsewhere."""
    if len(shape) == 2:
        return signed_dct(shape)
    weight = torch.zeros(shape)
    weight[:, :, shape[2] // 2, shape[3] // 2] = signed_dct((*shape[:2], 1, 1))[:, :, 0, 0]
    return weight


def stored(make: Callable[[Shape], Tensor]) -> Callable[[Shape], Stored]:
    return lambda shape: Stored(make(shape))


OFFSETS: dict[str, OffsetLike] = {
    "dct_signed": "dct_signed",
    "taps": stored(taps),
    "mirrored": stored(mirrored),
    "delta": stored(delta),
    "gaussian": stored(gaussian),
    "rotation": "rotation",
    "hadamard/channel/channel/lowest/0": "hadamard/channel/channel/lowest/0",
}


def train(line: str, settings: Settings) -> list[object]:
    """Return the best validation accuracy, its epoch, and the test accuracy there."""
    options = {"alpha": settings.alpha, "allocation": settings.allocation, "seed": settings.seed, "backend": "dense"}

    def make(dataset: Dataset) -> explore.Trained:
        net = explore.network(settings, dataset)
        return explore.Trained(dctps.sparsify(net, settings.density, offset=OFFSETS[line], **options))

    return explore.fit(settings, make)


if __name__ == "__main__":
    explore.main("explore-offsets", __doc__, OFFSETS, train)
