"""Where weights grow: at the largest entries of a dense gradient that is seen part by part, or anywhere.

Entries are ranked by magnitude and, where magnitudes are equal, by a number that follows from the seed and the
position alone. The choice therefore does not depend on the parts, the device or the process, and among equals (such as
the zeros of a layer without gradient) it is uniform.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dctps.core.support import Int64, sample

Magnitudes = npt.NDArray[np.floating]
PART = 1 << 15, 1 << 18  # bounds of the number of entries that are looked at together, which is a 256th of all


def lots(positions: Int64, seed: int) -> npt.NDArray[np.uint64]:
    """The numbers that decide between equals, the smallest first: splitmix64 of each position."""
    z = positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def ranking(magnitudes: Magnitudes, positions: Int64, seed: int) -> Int64:
    """The indices from the largest magnitude to the smallest, equals by lot."""
    return np.lexsort((lots(positions, seed), -magnitudes))


class Largest:
    """The `count` largest entries outside a support, and the entries on it, of a gradient seen part by part."""

    def __init__(self, support: Int64, size: int, count: int, seed: int) -> None:
        self.support, self.count, self.seed = support, count, seed
        self.part = min(max(PART[0], size // 256), PART[1])
        self.positions: Int64 = np.empty(0, dtype=np.int64)  # outside the support; (count,) when settled
        self.magnitudes: Magnitudes = np.empty(0)
        self.least = 0.0  # what is smaller cannot be among the largest any more
        self.on_support: Magnitudes = np.zeros(len(support))
        self.finite = True

    def see(self, rows: Tensor, start: int) -> None:
        """Look at some rows of the gradient, whose first entry has the flat position `start`."""
        width = rows[0].numel()
        step = max(1, self.part // width)
        for row in range(0, len(rows), step):
            for i, entries in enumerate(rows[row : row + step].reshape(-1).split(self.part)):
                self._see(entries.abs(), start + row * width + i * self.part)

    def _see(self, magnitudes: Tensor, start: int) -> None:
        self.finite = self.finite and bool(magnitudes.amax().isfinite())  # the largest of anything and nan is nan
        first, last = np.searchsorted(self.support, [start, start + len(magnitudes)])
        if last > first:
            inside = torch.from_numpy(self.support[first:last] - start).to(magnitudes.device)
            self.on_support[first:last] = magnitudes[inside].cpu().numpy()
            magnitudes[inside] = -1
        if not self.count:
            return
        near = (magnitudes >= self.least).nonzero().flatten()
        self.positions = np.concatenate([self.positions, near.cpu().numpy() + start])
        self.magnitudes = np.concatenate([self.magnitudes, magnitudes[near].cpu().numpy()])
        if len(self.positions) > self.count + max(self.count, self.part // 2):
            self.settle()

    def settle(self) -> None:
        """Keep only the largest entries seen so far."""
        if len(self.positions) < self.count or not self.count:
            return
        self.least = float(np.partition(self.magnitudes, -self.count)[-self.count])
        near = np.flatnonzero(self.magnitudes >= self.least)  # the largest, and more only where there are equals
        best = near[ranking(self.magnitudes[near], self.positions[near], self.seed)[: self.count]]
        self.positions, self.magnitudes = self.positions[best], self.magnitudes[best]

    def outside(self, kept: npt.NDArray[np.bool_], count: int) -> Int64:
        """The positions of the `count` largest entries outside those positions of the support that are kept."""
        positions = np.concatenate([self.positions, self.support[~kept]])
        magnitudes = np.concatenate([self.magnitudes, self.on_support[~kept]])
        return positions[ranking(magnitudes, positions, self.seed)[:count]]


def anywhere(kept: Int64, size: int, count: int, seed: int) -> Int64:
    """Draw `count` positions of range(size) outside `kept` (sorted), uniformly without replacement.

    The draw takes memory for the kept positions only.
    """
    places = sample(size - len(kept), count, seed)  # numbers of positions outside `kept`, counted without gaps
    return places + np.searchsorted(kept - np.arange(len(kept)), places, side="right")
