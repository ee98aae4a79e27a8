"""Does S learn better if it has more values at first? The narrow ResNet18 of `dctps reproduce scale`, at 0.1 %.

A training begins with two or three times the values, at random places. Between a quarter and three quarters of the
steps the smallest |s| of each layer go, along a cubic curve (Zhu and Gupta, 2017), until 0.1 % are left; a value that
has gone stays zero. For all lines the best epoch is one of those in which no more values go. Images, steps, offset and
alphas are those of the line "DCT, channel order, signs, leverage", which is the line "1x" here.

    python benchmarks/explore_density.py                   # one seed
    python benchmarks/explore_density.py --seeds 0 1 2
"""

import explore
import torch
from torch import Tensor, nn

import dctps
from dctps.data.dataset import Dataset
from dctps.nn.dps_layer import DpsLayer
from dctps.train.settings import Settings

FACTORS = {"1x": 1, "2x to 1x": 2, "3x to 1x": 3}  # the values at the first step over those at the last
FIRST, LAST = 0.25, 0.75  # the fractions of all steps between which values go


def surplus(done: float) -> float:
    """Return the fraction of the surplus that is left after a fraction `done` of the steps."""
    return (1 - min(1.0, max(0.0, (done - FIRST) / (LAST - FIRST)))) ** 3


class Shrinking:
    """Sets the smallest values of each layer to zero, so that fewer and fewer are left, and keeps them there."""

    def __init__(self, model: nn.Module, ends: dict[str, int]) -> None:
        """ends: the number of values that each layer has at the end."""
        layers = {name: m for name, m in model.named_modules() if isinstance(m, DpsLayer)}
        self.layers = [(layer.values, ends[name], torch.ones_like(layer.values)) for name, layer in layers.items()]

    @torch.no_grad()
    def __call__(self, done: float) -> None:
        for values, end, alive in self.layers:
            self._shrink(values, alive, end + round(surplus(done) * (len(values) - end)))

    @staticmethod
    def _shrink(values: Tensor, alive: Tensor, count: int) -> None:
        if (excess := int(alive.sum()) - count) > 0:
            magnitudes = values.abs().masked_fill(alive == 0, torch.inf)
            alive[magnitudes.topk(excess, largest=False).indices] = 0
        values.mul_(alive)


def train(line: str, settings: Settings) -> list[object]:
    """Return the best validation accuracy, its epoch, and the test accuracy there, in the last quarter of the steps."""
    options = {"offset": settings.offset, "allocation": settings.allocation, "seed": settings.seed}

    def make(dataset: Dataset) -> explore.Trained:
        model, twin = (explore.network(settings, dataset) for _ in range(2))
        dctps.sparsify(twin, settings.density, alpha=settings.alpha, **options)
        at_the_end = dctps.report(twin).layers
        alphas = {row.name: row.alpha for row in at_the_end}
        dctps.sparsify(model, FACTORS[line] * explore.DENSITY, alpha=alphas, **options)
        shrink = Shrinking(model, {row.name: row.nnz for row in at_the_end})
        return explore.Trained(model, shrink, whole_from=LAST)

    return explore.fit(settings, make)


if __name__ == "__main__":
    explore.main("explore-density", __doc__, FACTORS, train)
