"""Wall-clock times of several contenders, taken in turn."""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

K = TypeVar("K")
SETTLE = 0.02  # seconds after which idle threads, which spin for some milliseconds, sleep


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
    runs: Mapping[K, Callable[[], object]],
    steps: int,
    warmup: int,
    tick: Callable[[], object] = lambda: None,
    pause: float = 0.0,
) -> dict[K, Times]:
    """`warmup` rounds that do not count, then `steps` that do; in each round every contender runs once, in turn.

    `tick` is called after each round. `pause` is the time in seconds before each run.
    """
    return in_turn({name: functools.partial(_timed, run) for name, run in runs.items()}, steps, warmup, tick, pause)


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def in_turn(
    runs: Mapping[K, Callable[[], float]],
    steps: int,
    warmup: int,
    tick: Callable[[], object] = lambda: None,
    pause: float = 0.0,
) -> dict[K, Times]:
    """The same for runs that return their milliseconds themselves, as those in another process do."""
    times: dict[K, list[float]] = {name: [] for name in runs}
    for _ in range(warmup + steps):
        for name, run in runs.items():
            time.sleep(pause)
            times[name].append(run())
        tick()
    return {name: Times(tuple(own[warmup:])) for name, own in times.items()}


def check_counts(**counts: int) -> None:
    """ValueError unless every one of them is at least 1."""
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, not {count}")
