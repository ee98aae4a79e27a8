"""The task `jacobian`: singular values of d outputs / d inputs before the first step, for some test images."""

import dataclasses
from typing import Any

from dctps.experiments.numbers import number
from dctps.experiments.tasks.task import Columns, Content, SheetRow, Task
from dctps.train.runs import Run

JACOBIAN = "jacobian"


@dataclasses.dataclass(frozen=True)
class SingularValueRow(SheetRow):
    """The singular value of the Jacobian with this number (from 1, largest first), over some images."""

    index: int | None = None
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    examples: int | None = None


def _columns(content: Content, run: Run) -> list[Columns]:
    spectra = content["singular_values"]  # one list per image
    return [
        {"index": index, "mean": sum(v) / len(v), "low": min(v), "high": max(v), "examples": len(v)}
        for index, v in enumerate(zip(*spectra, strict=True), 1)
    ]


def _damage(content: Content) -> str | None:
    return None if _is_matrix(content["singular_values"]) else "its singular values are damaged"


def _is_matrix(values: Any) -> bool:
    """Whether these are lists of one length, of numbers that are not negative."""
    if not isinstance(values, list) or not values or not all(isinstance(row, list) and row for row in values):
        return False
    numbers = [value for row in values for value in row]
    return len({len(row) for row in values}) == 1 and all(number({"": v}, "") is not None and v >= 0 for v in numbers)


JACOBIAN_SPECTRUM = Task(
    name=JACOBIAN,
    perform="dctps.experiments.performers:take_jacobian",
    keys=frozenset({"task", "singular_values", "pruning"}),
    sheets={SingularValueRow: _columns},
    damage=_damage,
)
