"""The exact choice of the largest of many scores, where a seeded, uniform draw decides ties at the threshold."""

import numpy as np
import numpy.typing as npt

from dctps.core.support import Int64, sample

Scores = npt.NDArray[np.floating]


def largest(scores: Scores, count: int, seed: int) -> Int64:
    """Return the sorted positions of the `count` largest of `scores` (n,).

    The threshold is the count-th largest score. All scores above it are chosen, and a uniform draw from `seed` chooses
    the missing ones among the scores equal to it. A partition finds the threshold in O(n), which takes less than 0.1 s
    for the 23 million weights of a ResNet50.

    >>> largest(np.array([3.0, 1.0, 4.0, 1.0, 5.0]), 3, seed=0).tolist()
    [0, 2, 4]
    """
    if not 0 <= count <= len(scores):
        raise ValueError(
            f"cannot take the {count} largest of {len(scores)} scores; count is a number from 0 to {len(scores)}"
        )
    if count in (0, len(scores)):
        return np.arange(count)
    threshold = np.partition(scores, len(scores) - count)[len(scores) - count]
    chosen = scores > threshold
    ties = np.flatnonzero(scores == threshold)
    chosen[ties[sample(len(ties), count - int(np.count_nonzero(chosen)), seed)]] = True
    return np.flatnonzero(chosen)
