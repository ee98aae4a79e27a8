"""Events: what an engine says of the cells that it has."""

import dataclasses
from typing import Any

from dctps.experiments.cells import Cell

STARTED, EPOCH, ENDED, BUSY, DIED = "started", "epoch", "ended", "busy", "died"
OVER = (ENDED, BUSY, DIED)  # after these the cell is no longer with the engine


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happened to a cell; `row` has the metrics of an epoch, or the exit code of a worker that died."""

    cell: Cell
    kind: str
    row: dict[str, Any] = dataclasses.field(default_factory=dict)
