"""Batches of images in memory: shuffled, cropped, mirrored and normalised, the same for the same seed.

Everything random in an epoch is drawn at its start, for all samples, from generators seeded with (seed, epoch,
purpose). What happens to a sample does not depend on the batches before it or on the number of processes, so an epoch
can be entered at any batch and split over any number of ranks.
"""

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

RULES = ("exact", "paper")


def split(count: int, seed: int, rule: str = "exact", fraction: float = 0.1) -> tuple[Tensor, Tensor]:
    """Return the indices (int64) of training and of validation samples, of which `fraction` are taken at random.

    The rule "exact" takes round(fraction * count) samples. The rule "paper" takes floor((1 - 0.9) * count) in floating
    point, like the authors: 4,999 of 50,000. Both take them from the start of the same permutation.

    >>> [len(part) for part in split(50_000, seed=0)], [len(part) for part in split(50_000, seed=0, rule="paper")]
    ([45000, 5000], [45001, 4999])
    """
    if rule not in RULES:
        raise ValueError(f"unknown rule {rule!r} of a split; choose one of: {', '.join(RULES)}")
    if not 0 < fraction < 1:
        raise ValueError(f"cannot take a fraction of {fraction} for validation; it must lie between 0 and 1")
    order = np.arange(count)
    np.random.RandomState(seed).shuffle(order)
    taken = round(fraction * count) if rule == "exact" else math.floor((1 - (1 - fraction)) * count)
    permutation = torch.from_numpy(order.astype(np.int64))
    return permutation[taken:].clone(), permutation[:taken].clone()


@dataclasses.dataclass(frozen=True)
class _Draws:
    """The random numbers of one epoch: the order of the indices, and for each image its crop and its mirroring."""

    order: Tensor  # int64 (len(indices),)
    top: Tensor  # int64 (len(images),), the first row of the crop, 0 to 2 * padding
    left: Tensor  # int64 (len(images),), its first column
    flipped: Tensor  # bool (len(images),)


class Batches:
    """Batches of the images with these indices, as (x, y): x float32 (b, channels, height, width), y int64 (b,).

    Batches have `batch_size` samples; the last may have fewer. Each of `world` ranks gets a contiguous share of every
    batch, which is empty for some ranks if a batch has fewer samples than there are ranks.

    >>> batches = Batches(torch.zeros(5, 1, 2, 2, dtype=torch.uint8), torch.arange(5), range(5), 2, [0.5], [0.5])
    >>> [(tuple(x.shape), y.tolist()) for x, y in batches.epoch(0, start=1)]
    [((2, 1, 2, 2), [2, 3]), ((1, 1, 2, 2), [4])]
    """

    def __init__(
        self,
        images: Tensor,  # uint8 (n, channels, height, width)
        labels: Tensor,  # int64 (n,)
        indices: Tensor | Sequence[int],
        batch_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        padding: int = 0,
        flip: bool = False,
        shuffle: bool = False,
        seed: int = 0,
        device: torch.device | str = "cpu",
        channels_last: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        indices = torch.as_tensor(indices, dtype=torch.int64)
        _check(images, labels, indices, batch_size, padding, rank, world)
        self.images, self.labels, self.indices = images.to(device), labels.to(device), indices.cpu()
        self.batch_size, self.padding, self.flip, self.shuffle, self.seed = batch_size, padding, flip, shuffle, seed
        self.device, self.rank, self.world = torch.device(device), rank, world
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        deviation = torch.tensor(std, dtype=torch.float64).view(-1, 1, 1)
        # (x / 255 - mean) / std is computed as one multiplication and one addition.
        self.scale = (1 / (255 * deviation)).float().to(device)
        self.shift = (-torch.tensor(mean, dtype=torch.float64).view(-1, 1, 1) / deviation).float().to(device)

    def __len__(self) -> int:
        """Return the number of batches of an epoch, which is the same on every rank."""
        return -(-len(self.indices) // self.batch_size)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of an epoch from batch `start` on."""
        if not 0 <= start <= len(self):
            raise ValueError(f"cannot start at batch {start}; an epoch has batches 0 to {len(self) - 1}")
        return self._batches(self._draws(number), start)

    def _batches(self, draws: _Draws, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in draws.order.split(self.batch_size)[start:] if len(draws.order) else ():
            first, last = (len(batch) * rank // self.world for rank in (self.rank, self.rank + 1))
            chosen = batch[first:last]
            yield self._normalised(self._augmented(chosen, draws)), self.labels[chosen]

    def _draws(self, number: int) -> _Draws:
        count, sides = len(self.images), 2 * self.padding + 1
        order = self.indices
        if self.shuffle:
            order = order[torch.randperm(len(order), generator=epoch_generator(self.seed, number, "order"))]
        top, left = (
            torch.randint(sides, (count,), generator=epoch_generator(self.seed, number, p)) for p in ("top", "left")
        )
        flipped = torch.zeros(count, dtype=torch.bool)
        if self.flip:
            flipped = torch.randint(2, (count,), generator=epoch_generator(self.seed, number, "flip")) == 1
        return _Draws(*(draw.to(self.device) for draw in (order, top, left, flipped)))

    def _augmented(self, chosen: Tensor, draws: _Draws) -> Tensor:
        """Return crops of the zero-padded images, some of them mirrored, as uint8 (b, channels, height, width)."""
        images = self.images[chosen]
        if not self.padding and not self.flip:
            return images
        count, channels, height, width = images.shape
        padded = F.pad(images, (self.padding,) * 4).flatten(2)
        columns = torch.arange(width, device=self.device)
        columns = torch.where(draws.flipped[chosen, None], width - 1 - columns, columns) + draws.left[chosen, None]
        rows = torch.arange(height, device=self.device) + draws.top[chosen, None]
        # One gather on the flat planes is twice as fast as indexing rows and columns.
        places = rows[:, :, None] * (width + 2 * self.padding) + columns[:, None, :]
        places = places.view(count, 1, height * width).expand(count, channels, height * width)
        return padded.gather(2, places).view(images.shape)

    def _normalised(self, images: Tensor) -> Tensor:
        # A multiplication and an addition in two kernels: a fused kernel may round the end of a tensor differently, and
        # a sample must not depend on its place in the batch.
        return images.contiguous(memory_format=self.memory_format).float().mul_(self.scale).add_(self.shift)


def epoch_generator(seed: int, epoch: int, purpose: str) -> torch.Generator:
    """Return a generator for one purpose, on the CPU, so that its numbers are the same for every device."""
    digest = hashlib.sha256(f"{seed}/{epoch}/{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def _check(images: Tensor, labels: Tensor, indices: Tensor, batch: int, padding: int, rank: int, world: int) -> None:
    if images.dtype != torch.uint8 or images.dim() != 4:
        raise ValueError(f"images must be uint8 (n, channels, height, width), not {images.dtype} {tuple(images.shape)}")
    if labels.shape != (len(images),):
        raise ValueError(f"labels must have one number per image, {len(images)}, not shape {tuple(labels.shape)}")
    wrong = indices[(indices < 0) | (indices >= len(images))]
    if indices.dim() != 1 or len(wrong):
        what = f"index {int(wrong[0])}" if len(wrong) else f"{indices.dim()}-D indices"
        raise ValueError(f"indices must be a list of numbers from 0 to {len(images) - 1}, not {what}")
    if batch < 1 or padding < 0 or not 0 <= rank < world:
        raise ValueError(
            f"batch_size {batch}, padding {padding}, rank {rank} of {world}: a batch needs at least one sample, "
            "a padding is not negative, and ranks are numbered from 0"
        )
