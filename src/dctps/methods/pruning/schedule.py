"""Schedules: how many weights are kept after each step of pruning."""

import math
from collections.abc import Callable

from dctps.base.registry import lookup
from dctps.core.allocation import budget, check_at_least_one, check_density

# Each maps the final density and t / T to the density after step t of T.
SCHEDULES: dict[str, Callable[[float, float], float]] = {
    "exponential": lambda density, part: density**part,
    "linear": lambda density, part: 1 - part * (1 - density),
}


def schedule_counts(size: int, density: float, steps: int, schedule: str = "exponential") -> list[int]:
    """Return how many of `size` weights are kept after each step: k_t, and exactly K at the end.

    >>> schedule_counts(1000, 0.001, 3), schedule_counts(1000, 0.1, 3, "linear")
    ([100, 10, 1], [700, 400, 100])
    """
    fraction = lookup(SCHEDULES, schedule, "schedule")
    check_density(density)
    check_at_least_one(size, density)
    asked = budget(size, density)
    return [max(asked, math.floor(size * fraction(density, t / steps))) for t in range(1, steps)] + [asked]
