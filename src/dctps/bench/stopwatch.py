"""Wall-clock times of several contenders, taken in turn."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

K = TypeVar("K")


@dataclasses.dataclass(frozen=True)
class Times:
    """Milliseconds of the calls that count."""

    all: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.all)

    @property
    def least(self) -> float:
        return min(self.all)


def interleaved(
    runs: Mapping[K, Callable[[], object]], steps: int, warmup: int, tick: Callable[[], object] = lambda: None
) -> dict[K, Times]:
    """`warmup` rounds that do not count, then `steps` that do; in each round every contender runs once, in turn.

    `tick` is called after each round.
    """
    times: dict[K, list[float]] = {name: [] for name in runs}
    for _ in range(warmup + steps):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - start))
        tick()
    return {name: Times(tuple(own[warmup:])) for name, own in times.items()}


def check_counts(**counts: int) -> None:
    """ValueError unless every one of them is at least 1."""
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, not {count}")
