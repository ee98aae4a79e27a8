"""What a task is: how it is performed, what its result holds, and which rows of a table follow from the result."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from dctps.base.provenance import provenance
from dctps.base.user_code import find_function
from dctps.train.records import Outcome
from dctps.train.runs import Run
from dctps.train.settings import Runtime, Settings, to_json

Content = dict[str, Any]  # what a result.json holds
Columns = dict[str, Any]  # the columns of one row of a sheet that its task adds
OnEpoch = Callable[[dict[str, Any]], object]


@dataclasses.dataclass(frozen=True)
class SheetRow:
    """The columns of every row: where it is drawn, what was run and what became of it. An empty cell is None."""

    experiment: str
    scale: str
    panel: str
    line: str
    task: str
    model: str
    data: str
    width: int | None
    images: int | None
    epochs: int
    density: float | None
    seed: int
    status: str
    reason: str
    commit: str
    id: str


def no_objection(content: Content, run: Run) -> str | None:
    """The check of a task whose results can always be used."""
    return None


@dataclasses.dataclass(frozen=True)
class Task:
    """What is done with the settings of a run, and how its results are read."""

    name: str
    perform: str  # package.module:function, which leaves a result.json in the run folder; see `performer`
    result: type[Outcome]  # the dataclass of its result.json, with all fields and their ranges
    sheets: Mapping[type[SheetRow], Callable[[Content, Run], list[Columns]]]  # from a result to rows, class by class
    objection: Callable[[Content, Run], str | None] = no_objection  # why a result is of no use; None: it can be used

    def performer(self) -> Callable[[Settings, Runtime, Run, OnEpoch], None]:
        """Import the function that performs the task; readers of results do not need it."""
        perform: Callable[[Settings, Runtime, Run, OnEpoch], None] = find_function(self.perform)
        return perform

    @property
    def row(self) -> type[SheetRow]:
        """The class of the rows that are drawn unless another is asked for."""
        return next(iter(self.sheets))


def save_result(run: Run, settings: Settings, task: str, content: Content) -> None:
    """Write the result.json of a task, with what is in every result."""
    run.save_result({"id": run.id, "task": task, "settings": to_json(settings), **content, **provenance()})
