"""The task `counts`: how many weights each layer of the network gets, without a training."""

import dataclasses

from dctps.base.records import Count
from dctps.experiments.tasks.task import Columns, Content, SheetRow, Task
from dctps.train.records import Outcome, PruningCost
from dctps.train.runs import Run

COUNTS = "counts"


@dataclasses.dataclass(frozen=True)
class LayerCount:
    """A prunable layer of a result: its trainable weights and its size."""

    name: str
    nnz: Count
    size: Count


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountsResult(Outcome):
    """What the result.json of this task holds."""

    task: str
    layers: tuple[LayerCount, ...]
    others: Count
    pruning: PruningCost | None


@dataclasses.dataclass(frozen=True)
class LayerRow(SheetRow):
    """A prunable layer: its number (from 1), name, trainable weights and size; `others` belong to the network."""

    index: int | None = None
    name: str = ""
    nnz: int | None = None
    size: int | None = None
    others: int | None = None  # parameters that are no weights: biases, BatchNorm, alphas


def _columns(content: Content, run: Run) -> list[Columns]:
    others = content["others"]
    return [{"index": index, **layer, "others": others} for index, layer in enumerate(content["layers"], 1)]


WEIGHT_COUNTS = Task(
    name=COUNTS,
    perform="dctps.experiments.performers:count_weights",
    result=CountsResult,
    sheets={LayerRow: _columns},
)
