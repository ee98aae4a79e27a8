"""Grids of tiny trainings, an engine without processes, and what a sweep leaves in the folder of runs."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from dctps.experiments.cells import Cell
from dctps.experiments.events import BUSY, ENDED, STARTED, Event
from dctps.experiments.perform import perform
from dctps.experiments.results import read
from dctps.train.runs import Busy, RunFolder
from dctps.train.settings import Runtime, Settings

TINY = Settings(model="small_cnn", data="digits", density=0.02, epochs=1, images=100, batch_size=50)


def cell(**changes) -> Cell:
    """A cell of the tiny training with some settings changed."""
    return Cell(dataclasses.replace(TINY, **changes))


def cells(number: int, **changes) -> list[Cell]:
    """So many cells, each with another seed."""
    return [cell(seed=seed, **changes) for seed in range(number)]


class Inline:
    """An engine that performs its cells in this process, one after the other."""

    def __init__(self) -> None:
        self.rounds: list[list[Cell]] = []
        self.closed = 0

    def run(self, cells: Sequence[Cell], runtime: Runtime) -> Iterator[Event | None]:
        self.rounds.append(list(cells))
        try:
            for one in cells:
                yield Event(one, STARTED)
                try:
                    perform(one, runtime)
                except Busy:
                    yield Event(one, BUSY)
                else:
                    yield Event(one, ENDED)
        finally:
            self.closed += 1


def file_identity(path: Path) -> tuple[int, int]:
    """The inode and the time of a file: another file in its place has others."""
    return path.stat().st_ino, path.stat().st_mtime_ns


def saved_network(run: RunFolder) -> tuple[dict, bytes]:
    """The file of a run's network: the header, whose entries safetensors orders by chance, and all numbers."""
    return safetensors_file(run.best)


def safetensors_file(path: Path) -> tuple[dict, bytes]:
    """The header of a file, whose entries safetensors orders by chance, and all numbers."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:start]), content[start:]


def statuses(folder: Path) -> dict[str, str]:
    """The status of every run in a folder, by its id."""
    found = read(folder)
    assert not found.broken
    return {row.id: row.status for row in found.rows}


def reason(one: Cell, folder: Path) -> str:
    """Why a cell failed."""
    return json.loads(one.run(folder).failure.read_text())["reason"]
