"""How far outputs are from torch's: each is measured by its own largest value."""

import dataclasses
import functools

import numpy as np
from torch import Tensor

from dctps.export.recipe import Array

LIMIT = 1e-3  # of the largest output; float32 gives about 1e-6, and another network differs in every digit
INFINITE = float("inf")


@dataclasses.dataclass(frozen=True)
class Gap:
    """How far one output of ONNX Runtime is from torch's, over the entries that are finite in torch.

    difference: the largest one; infinite where shapes differ, or entries that are not finite.
    largest: torch's largest absolute value.
    finite: the number of entries that were compared, and of all.
    """

    difference: float = 0.0
    largest: float = 0.0
    finite: int = 0
    entries: int = 0

    def __or__(self, other: "Gap") -> "Gap":
        most = max(self.difference, other.difference), max(self.largest, other.largest)
        return Gap(*most, self.finite + other.finite, self.entries + other.entries)


def gap(found: Array, expected: Tensor) -> Gap:
    """Return how far an output is from torch's; numbers that are not finite must be of the same kind."""
    wanted, size = expected.detach().double().numpy(), expected.numel()
    finite = np.isfinite(wanted)
    largest, count = float(np.abs(wanted[finite]).max(initial=0.0)), int(finite.sum())
    if found.shape != wanted.shape:
        return Gap(INFINITE, largest, count, size)
    numbers = found.astype(np.float64)
    if not np.isfinite(numbers[finite]).all() or not np.array_equal(numbers[~finite], wanted[~finite], equal_nan=True):
        return Gap(INFINITE, largest, count, size)
    return Gap(float(np.abs(numbers[finite] - wanted[finite]).max(initial=0.0)), largest, count, size)


def scale(gap: Gap, gaps: list[Gap]) -> float:
    """Return the largest value of an output; not less than what float32 leaves of the largest one of all outputs."""
    return max(gap.largest, LIMIT * max(other.largest for other in gaps), 1e-6)


def worst_ratio(gaps: list[Gap]) -> float:
    """Return the largest difference of an output as a part of its largest value."""
    return max((gap.difference / scale(gap, gaps) for gap in gaps), default=0.0)


def merged(runs: list[list[Gap]]) -> list[Gap]:
    """Return the gap of each output over several runs."""
    return [functools.reduce(Gap.__or__, gaps) for gaps in zip(*runs, strict=True)]
