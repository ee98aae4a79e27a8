"""Means over seeds: the points of a figure's lines, and what is missing from them.

The deviation is that of a sample, with n - 1, as seeds are a few out of many; one seed has no deviation. A run whose
method collapsed has no network of its density. Where all seeds collapsed, the accuracy is that of guessing; where some
did, the mean is over the others (paper: appendix A.1, footnote, and appendix D.1).
"""

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from dctps.core.allocation import budget
from dctps.data import DATASETS
from dctps.experiments.status import COLLAPSED, DONE
from dctps.experiments.tasks.training import TrainingRow

Key = TypeVar("Key", bound=Any)


# --- numbers --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SeedMean:
    """The mean of one number over seeds."""

    mean: float | None  # None: no seed has the number
    deviation: float | None  # of the sample; None with fewer than two seeds
    n: int


def over_seeds(numbers: Iterable[float | None]) -> SeedMean:
    """Return mean and deviation of the numbers of all seeds; None stands for a seed that has no number.

    >>> over_seeds([1, 3, None])
    SeedMean(mean=2.0, deviation=1.4142135623730951, n=2)
    """
    known = [number for number in numbers if number is not None]
    mean = statistics.fmean(known) if known else None
    return SeedMean(mean, statistics.stdev(known) if len(known) > 1 else None, len(known))


def means_by_key(pairs: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """Return the mean of the numbers that have the same key, for each key in ascending order.

    >>> means_by_key([(2, 5.0), (1, 1.0), (1, 3.0)])
    {1: 2.0, 2: 5.0}
    """
    groups: dict[Key, list[float]] = {}
    for key, number in pairs:
        groups.setdefault(key, []).append(number)
    return {key: statistics.fmean(groups[key]) for key in sorted(groups)}


def mean_curves(numbers: Iterable[tuple[float, int, float]]) -> dict[float, list[float]]:
    """Return the mean curve of each density, from the highest down, from densities, indices and numbers of all seeds.

    >>> mean_curves([(0.1, 1, 4.0), (0.1, 2, 7.0), (0.1, 1, 6.0), (0.5, 1, 9.0)])
    {0.5: [9.0], 0.1: [5.0, 7.0]}
    """
    curves: dict[float, list[float]] = {}
    means = means_by_key(((-density, index), number) for density, index, number in numbers)
    for (negative, _), mean in means.items():
        curves.setdefault(-negative, []).append(mean)
    return curves


def chance(data: str) -> float | None:
    """Return the accuracy of guessing, or None if the data set is not in `dctps.data.DATASETS`."""
    return 1 / DATASETS[data].classes if data in DATASETS else None


# --- points of a figure ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Point:
    """A method at a density, over its seeds. Accuracies are fractions."""

    panel: str
    line: str
    density: float | None  # None: the dense network
    weights: int | None  # mean number of trainable weights; None: not known
    bytes: int | None  # mean size of the network's file; None: no network was trained
    mean: float | None  # None: no seed has an accuracy
    std: float | None  # of the sample; None with fewer than two seeds
    n: int  # seeds with a result
    asked: int  # seeds in the grid
    collapsed: int  # seeds at which the method failed to prune

    @property
    def missing(self) -> int:
        """Seeds of which nothing is known, as they were not run, failed, or have a broken file."""
        return self.asked - self.n - self.collapsed

    @property
    def is_chance(self) -> bool:
        """Whether the mean is that of guessing, as the method collapsed at all seeds."""
        return self.n == 0 and self.collapsed > 0


def points(rows: Iterable[TrainingRow], validation: bool = False) -> list[Point]:
    """Return a point for each panel, line and density, in order of appearance.

    validation: take the best validation accuracy instead of the test accuracy at that epoch.
    """
    groups: dict[tuple[str, str, float | None], list[TrainingRow]] = {}
    sizes: dict[str, int] = {}
    for row in rows:
        groups.setdefault((row.panel, row.line, row.density), []).append(row)
        if row.weights_size is not None:
            sizes.setdefault(row.panel, row.weights_size)
    return [_point(group, validation, sizes.get(panel)) for (panel, _, _), group in groups.items()]


def _point(rows: Sequence[TrainingRow], validation: bool, size: int | None) -> Point:
    """Return the point of the runs that differ in their seeds alone; `size` is the network's number of weights."""
    first, done = rows[0], [row for row in rows if row.status == DONE]
    accuracy = over_seeds(row.best_validation if validation else row.test_at_best for row in done)
    collapsed = sum(row.status == COLLAPSED for row in rows)
    mean = chance(first.data) if accuracy.mean is None and collapsed else accuracy.mean
    return Point(
        panel=first.panel,
        line=first.line,
        density=first.density,
        weights=_weights(done, first.density, size),
        bytes=None if (mean_bytes := over_seeds(row.file_bytes for row in done).mean) is None else round(mean_bytes),
        mean=mean,
        std=accuracy.deviation,
        n=accuracy.n,
        asked=len(rows),
        collapsed=collapsed,
    )


def _weights(done: Sequence[TrainingRow], density: float | None, size: int | None) -> int | None:
    """Return the mean number of weights or, where no network was trained, the number that was asked for."""
    trained = over_seeds(row.weights_got for row in done).mean
    if trained is not None:
        return round(trained)
    return budget(size, density) if size is not None and density is not None else None
