"""Is a weight that has just grown dropped because it is new? The narrow ResNet18 of `dctps reproduce scale`, at 0.1 %.

A value that moves by independent steps of one size has |s| about proportional to the square root of its age
(docs/offsets.md). RigL and SET drop the smallest |s|, and so rather the young. The lines "by age" drop the smallest
|s| / sqrt(steps since it grew) instead. That does not make ages equal: Adam's moments of a new value start at zero, so
its first steps are larger, and old values are those that were never among the smallest. Images, steps, offset, alphas
and first places are those of the line "DCT, channel order, signs, leverage"; weights move every 20 steps, as in `dctps
reproduce places`.

    python benchmarks/explore_rewiring.py                   # one seed
    python benchmarks/explore_rewiring.py --seeds 0 1 2
"""

from typing import Any

import explore
import numpy as np
import numpy.typing as npt
import torch

import dctps
from dctps.core.support import Int64
from dctps.data.dataset import Dataset
from dctps.methods.rewiring.base import positions_of
from dctps.methods.rewiring.by_magnitude import ByMagnitude
from dctps.train.settings import Settings

EVERY, UNTIL = 20, 0.75  # steps from one move to the next, and the fraction of all steps after which there is none


class ByAge(ByMagnitude):
    """Drops the smallest |s| / sqrt(steps since it grew)."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.grown: dict[str, tuple[Int64, Int64]] = {}  # by layer: positions, and the iterations at which they grew

    def _importance(self, name: str, iteration: int) -> npt.NDArray[np.float64]:
        positions = positions_of(self.layers[name])
        before, since = self.grown.get(name, (positions, np.zeros(len(positions), dtype=np.int64)))
        index = np.minimum(np.searchsorted(before, positions), len(before) - 1)
        since = np.where(before[index] == positions, since[index], iteration - self.schedule.every)
        self.grown[name] = positions, since
        return super()._importance(name, iteration) / np.sqrt(iteration - since)


class RigLByAge(ByAge, dctps.RigL):
    """RigL that drops by age, too."""


class SETByAge(ByAge, dctps.SET):
    """SET that drops by age, too."""


METHODS: dict[str, type[ByMagnitude]] = {
    "RigL": dctps.RigL,
    "SET": dctps.SET,
    "RigL, by age": RigLByAge,
    "SET, by age": SETByAge,
}


def train(line: str, settings: Settings) -> list[object]:
    """Return the best validation accuracy, its epoch, and the test accuracy there."""
    options = {"offset": settings.offset, "alpha": settings.alpha, "allocation": settings.allocation}

    def make(dataset: Dataset) -> explore.Trained:
        net = dctps.sparsify(explore.network(settings, dataset), settings.density, seed=settings.seed, **options)

        def watch(optimiser: torch.optim.Optimizer, steps: int) -> None:
            stop = int(UNTIL * steps)
            METHODS[line](net, optimiser, stop=stop, every=EVERY, seed=settings.seed).take_over()

        return explore.Trained(net, watch=watch)

    return explore.fit(settings, make)


if __name__ == "__main__":
    explore.main("explore-rewiring", __doc__, METHODS, train)
