"""The task `jacobian`: singular values of d outputs / d inputs before the first step, for some test images."""

import dataclasses

from dctps.base.records import Amount
from dctps.experiments.tasks.task import Columns, Content, SheetRow, Task
from dctps.train.records import Outcome, PruningCost
from dctps.train.runs import Run

JACOBIAN = "jacobian"


@dataclasses.dataclass(frozen=True, kw_only=True)
class JacobianResult(Outcome):
    """What the result.json of this task holds."""

    task: str
    singular_values: tuple[tuple[Amount, ...], ...]  # of each image, largest first
    pruning: PruningCost | None

    def __post_init__(self) -> None:
        lengths = {len(values) for values in self.singular_values}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError("singular_values are lists of one length, one for each image")


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


JACOBIAN_SPECTRUM = Task(
    name=JACOBIAN,
    perform="dctps.experiments.performers:take_jacobian",
    result=JacobianResult,
    sheets={SingularValueRow: _columns},
)
