"""The task `counts`: how many weights each layer of the network gets, without a training."""

import dataclasses
from typing import Any

from dctps.experiments.numbers import number
from dctps.experiments.tasks.task import Columns, Content, SheetRow, Task
from dctps.train.runs import Run

COUNTS = "counts"


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


def _damage(content: Content) -> str | None:
    return None if _are_layers(content["layers"]) else "its layers are damaged"


def _are_layers(layers: Any) -> bool:
    return isinstance(layers, list) and all(
        isinstance(layer, dict)
        and isinstance(layer.get("name"), str)
        and number(layer, "nnz") is not None
        and number(layer, "size") is not None
        for layer in layers
    )


WEIGHT_COUNTS = Task(
    name=COUNTS,
    perform="dctps.experiments.performers:count_weights",
    keys=frozenset({"task", "layers", "others", "pruning"}),
    sheets={LayerRow: _columns},
    damage=_damage,
)
