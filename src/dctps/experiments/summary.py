"""Means over seeds: the points of a figure's lines, with what is missing from them.

The deviation is that of a sample, with n - 1, as seeds are a few out of many; with one seed there is none. Runs whose
method collapsed have no network of that density: where all collapsed the accuracy is that of guessing, where some did
the mean is over the others (paper: appendix A.1, footnote, and appendix D.1).
"""

import dataclasses
import statistics
from collections.abc import Iterable, Sequence

from dctps.core.allocation import budget
from dctps.data import DATASETS
from dctps.experiments.sheet import Training
from dctps.experiments.status import COLLAPSED, DONE


@dataclasses.dataclass(frozen=True)
class Point:
    """A method at a density, over its seeds. Accuracies are fractions."""

    panel: str
    line: str
    density: float | None  # None: the dense network
    weights: int | None  # that train, on average; None: not known
    mean: float | None  # None: nothing to take a mean of
    std: float | None  # of the sample; None with fewer than two seeds
    n: int  # seeds with a result
    asked: int  # seeds in the grid
    collapsed: int  # seeds at which the method failed to prune

    @property
    def missing(self) -> int:
        """Seeds of which nothing can be said: not run, failed, or broken."""
        return self.asked - self.n - self.collapsed

    @property
    def is_chance(self) -> bool:
        """Whether the mean is that of guessing, as no network of this density was made."""
        return self.n == 0 and self.collapsed > 0


def points(lines: Iterable[Training], validation: bool = False) -> list[Point]:
    """One for each panel, line and density, in the order in which they come.

    validation: the best accuracy on the validation images, instead of the test accuracy of that epoch.
    """
    groups: dict[tuple[str, str, float | None], list[Training]] = {}
    sizes: dict[str, int] = {}
    for one in lines:
        groups.setdefault((one.panel, one.line, one.density), []).append(one)
        if one.weights_size is not None:
            sizes.setdefault(one.panel, one.weights_size)
    return [_point(own, validation, sizes.get(panel)) for (panel, _, _), own in groups.items()]


def _point(own: Sequence[Training], validation: bool, size: int | None) -> Point:
    done = [one for one in own if one.status == DONE]
    found = [one.best_validation if validation else one.test_at_best for one in done]
    accuracies = [accuracy for accuracy in found if accuracy is not None]
    collapsed = sum(one.status == COLLAPSED for one in own)
    mean = statistics.fmean(accuracies) if accuracies else chance(own[0].data) if collapsed else None
    std = statistics.stdev(accuracies) if len(accuracies) > 1 else None
    weights = _weights(done, own[0].density, size)
    first = own[0]
    return Point(first.panel, first.line, first.density, weights, mean, std, len(accuracies), len(own), collapsed)


def _weights(done: Sequence[Training], density: float | None, size: int | None) -> int | None:
    """How many there are, else (nothing was trained) how many there would have been."""
    got = [one.weights_got for one in done if one.weights_got is not None]
    if got:
        return round(statistics.fmean(got))
    return budget(size, density) if size is not None and density is not None else None


def chance(data: str) -> float | None:
    """Return the accuracy of guessing, or None if the data set is not in `dctps.data.DATASETS`."""
    return 1 / DATASETS[data].classes if data in DATASETS else None
