"""When weights move, and what a training tells its rewiring."""

import dataclasses
import operator


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Weights move in every iteration that `every` divides, from `start` on and before `stop`, counted from 1.

    >>> paper = Schedule(stop=52_800, every=100)  # three quarters of 70,400 iterations
    >>> sum(map(paper.due, range(1, 70_401)))
    527
    """

    stop: int
    every: int = 100
    start: int = 0

    def __post_init__(self) -> None:
        for name in ("stop", "every", "start"):
            object.__setattr__(self, name, operator.index(getattr(self, name)))
        if self.every < 1 or self.start < 0:
            raise ValueError(f"every must be at least 1 and start at least 0, not {self.every} and {self.start}")
        first = max(1, -(-self.start // self.every)) * self.every
        if first >= self.stop:
            raise ValueError(
                f"with every={self.every} and start={self.start} the first rewiring would be in iteration {first}, not "
                f"before stop={self.stop}; rewire more often or longer"
            )

    def due(self, iteration: int) -> bool:
        """Whether weights move in this iteration."""
        return iteration % self.every == 0 and self.start <= iteration < self.stop


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """What the trainer tells a rewiring about the training it is part of."""

    stop: int  # the iteration from which weights stay where they are
    every: int  # iterations from one rewiring to the next
    seed: int
    drop_fraction: float  # the fraction of its weights that a layer moves at first
    steps_per_epoch: int
    has_offset: bool  # whether layers have an offset D, under which the values of S start at zero
