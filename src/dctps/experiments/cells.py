"""A cell of a grid: settings, the task that is performed with them, and where its result is drawn."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dctps.train.runs import Run
from dctps.train.settings import Settings

TRAIN = "train"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run. Cells with the same settings and task are the same run, wherever they are drawn."""

    settings: Settings
    task: str = TRAIN  # a key of dctps.experiments.tasks.TASKS
    panel: str = ""  # the panel of a figure in which the result is drawn
    line: str = ""  # the line in that panel, which is a method

    @property
    def id(self) -> str:
        """The name of the run's folder."""
        return self.run(Path()).id

    @property
    def prefix(self) -> str:
        """What stands before the id of the settings; a training has nothing there, so that `dctps train` finds it."""
        return "" if self.task == TRAIN else f"{self.task}-"

    def run(self, runs: Path) -> Run:
        """The run of this cell; its folder need not exist."""
        return Run.at(self.settings, runs, self.prefix)

    def open_run(self, runs: Path) -> Run:
        """The run of this cell, whose folder is made if it is not there."""
        return Run.open(self.settings, runs, self.prefix)


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """The cells without those that are the same run as one before."""
    first: dict[str, Cell] = {}
    for cell in cells:
        first.setdefault(cell.id, cell)
    return list(first.values())


def varied(settings: Settings, **changes: Any) -> Settings:
    """The settings with some of them changed."""
    return dataclasses.replace(settings, **changes)
