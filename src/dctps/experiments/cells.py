"""A cell of a grid: what is done with which settings, and where its result is drawn."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dctps.train.runs import Run
from dctps.train.settings import Settings, run_id

TRAIN = "train"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run. Cells with the same settings and task are the same run, wherever they are drawn."""

    settings: Settings
    task: str = TRAIN  # a key of dctps.experiments.tasks.TASKS
    panel: str = ""  # of a figure
    line: str = ""  # in that panel: a method

    @property
    def id(self) -> str:
        """The name of the run's folder."""
        return f"{prefix(self.task)}{run_id(self.settings)}"

    def run(self, runs: Path) -> Run:
        """The folder, which need not exist."""
        return Run(runs / self.id)


def prefix(task: str) -> str:
    """Of a folder's name: a training has none, so that `dctps train` finds it."""
    return "" if task == TRAIN else f"{task}-"


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """Each run once, in order."""
    first: dict[str, Cell] = {}
    for cell in cells:
        first.setdefault(cell.id, cell)
    return list(first.values())


def varied(settings: Settings, **changes: Any) -> Settings:
    return dataclasses.replace(settings, **changes)
