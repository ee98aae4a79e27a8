"""A cell is performed once, even if several processes try at the same time, and its outcome is in the run folder.

The outcome is a result, or a failure with its reason. A pruning method that collapses has found no network of the
density asked for, which is a finding and not an error.
"""

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch

from dctps.base.provenance import provenance
from dctps.base.registry import lookup
from dctps.experiments.cells import Cell
from dctps.experiments.status import COLLAPSED, FAILED
from dctps.experiments.tasks import TASKS
from dctps.experiments.tasks.task import OnEpoch
from dctps.methods.pruning.collapse import CollapseError
from dctps.train.runs import Busy, Run, RunError
from dctps.train.settings import Runtime, to_json
from dctps.train.signals import Interrupted


def perform(cell: Cell, runtime: Runtime, on_epoch: OnEpoch = lambda row: None) -> None:
    """Perform the task of a cell, unless it is over. `Busy` if another process has it, `Interrupted` by a signal."""
    with claimed(cell, runtime.runs) as run:
        if run is None:
            return
        with _noting_failure(cell, run):
            if runtime.threads is not None:
                torch.set_num_threads(runtime.threads)
            lookup(TASKS, cell.task, "task").performer()(cell.settings, runtime, run, on_epoch)


@contextlib.contextmanager
def claimed(cell: Cell, runs: Path) -> Iterator[Run | None]:
    """The folder of a cell that is not over, while nobody else may perform it; None if the cell is over.

    `Busy` if another process has it; `RunError` if the folder cannot be made.
    """
    run = cell.run(runs)
    try:
        run.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"{error.strerror}; choose another with --runs"
        raise RunError(f"cannot make the run folder {run.folder}: {reason}") from error
    with run.claimed():
        if not is_over(run):
            with _noting_failure(cell, run):  # the folder may hold the run of other settings
                cell.open_run(runs)
        yield None if is_over(run) else run


def is_over(run: Run) -> bool:
    """Whether there is a result, or a failure to have one."""
    return run.result.exists() or run.failure.exists()


@contextlib.contextmanager
def _noting_failure(cell: Cell, run: Run) -> Iterator[None]:
    try:
        yield
    except (Busy, Interrupted):
        raise
    except CollapseError as error:
        note_failure(cell, run, COLLAPSED, str(error))
    except Exception as error:
        note_failure(cell, run, FAILED, f"{type(error).__name__}: {error}", traceback.format_exc())


def note_failure(cell: Cell, run: Run, status: str, reason: str, details: str = "") -> None:
    """Write down why there is no result."""
    content = {"id": cell.id, "task": cell.task, "settings": to_json(cell.settings), "status": status}
    run.save_failure({**content, "reason": reason, "details": details, **provenance()})
