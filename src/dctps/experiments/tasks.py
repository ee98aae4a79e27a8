"""What can be done with settings: train, count the weights of each layer, take the spectrum of the Jacobian.

`perform` does it once, whoever else tries at the same time, and whatever comes of it is in the run folder: a result,
or a failure with its reason. A method that collapses has failed to prune, which is a finding and not an accident.
"""

import contextlib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dctps.base.machine import flushed_denormals
from dctps.base.provenance import provenance
from dctps.base.registry import lookup
from dctps.data import DATASETS, Dataset
from dctps.experiments.cells import TRAIN, Cell, prefix
from dctps.methods.pruning.prune import METHODS, CollapseError
from dctps.nn.jacobian import singular_values
from dctps.nn.prunable import prunable
from dctps.nn.report import report
from dctps.ops import autotune
from dctps.train.loop import Interrupted, choose_device, fit
from dctps.train.runs import Busy, Run, RunError
from dctps.train.settings import Runtime, Settings, run_id, to_json
from dctps.train.setup import load, prepare

OnEpoch = Callable[[dict[str, Any]], object]
COLLAPSED, FAILED = "collapsed", "failed"
IMAGES = 4  # test images whose Jacobian is taken


def perform(cell: Cell, runtime: Runtime, on_epoch: OnEpoch = lambda row: None) -> None:
    """Do what is to be done, unless it has been. `Busy` if another process is at it, `Interrupted` by a signal."""
    with claimed(cell, runtime.runs) as run:
        if run is None:
            return
        with _noting_failure(cell, run):
            if runtime.threads is not None:
                torch.set_num_threads(runtime.threads)
            lookup(TASKS, cell.task, "task")(cell.settings, runtime, run, on_epoch)


@contextlib.contextmanager
def claimed(cell: Cell, runs: Path) -> Iterator[Run | None]:
    """The folder of a cell that is to be done, while nobody else may do it; None if it is over.

    `Busy` if somebody else has it; `RunError` if there can be no folder.
    """
    run = cell.run(runs)
    try:
        run.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"{error.strerror}; choose another with --runs"
        raise RunError(f"cannot make the run folder {run.folder}: {reason}") from error
    with run.claimed():
        if not is_over(run):
            with _noting_failure(cell, run):  # a folder of other settings
                Run.of(cell.settings, runs, prefix(cell.task))
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
        note(cell, run, COLLAPSED, str(error))
    except Exception as error:
        note(cell, run, FAILED, f"{type(error).__name__}: {error}", traceback.format_exc())


def note(cell: Cell, run: Run, status: str, reason: str, details: str = "") -> None:
    """Write down why there is no result."""
    content = {"id": cell.id, "task": cell.task, "settings": to_json(cell.settings), "status": status}
    run.save_failure({**content, "reason": reason, "details": details, **provenance()})


# --- the tasks ------------------------------------------------------------------------------------------------------


def _train(settings: Settings, runtime: Runtime, run: Run, on_epoch: OnEpoch) -> None:
    fit(settings, runtime, on_epoch)


def _counts(settings: Settings, runtime: Runtime, run: Run, on_epoch: OnEpoch) -> None:
    """How many weights each layer gets; no training."""
    dataset = load(settings, runtime.data_root) if _needs_images(settings) else stand_in(settings)
    with torch.random.fork_rng(), flushed_denormals():
        model, cost = prepare(settings, dataset, choose_device(runtime.device))
    made = {row.name: (row.nnz, row.size) for row in report(model).layers}
    dense = {name: layer.get_parameter("weight").numel() for name, layer in prunable(model).items()}
    run.save_supports(model)
    layers = [{"name": n, "nnz": k, "size": size} for n, (k, size) in made.items()]
    layers += [{"name": n, "nnz": size, "size": size} for n, size in dense.items()]
    others = sum(p.numel() for p in model.parameters()) - sum(row["nnz"] for row in layers)  # type: ignore[misc]
    _save(run, settings, "counts", {"layers": layers, "others": others, "pruning": cost})


def _jacobian(settings: Settings, runtime: Runtime, run: Run, on_epoch: OnEpoch) -> None:
    """Singular values of d outputs / d inputs before the first step, for some test images."""
    with torch.random.fork_rng(), flushed_denormals(), autotune.by_rule():  # a few passes are not worth a measurement
        model, images, cost = at_initialisation(settings, runtime, IMAGES)
        values = singular_values(model, images)
    _save(run, settings, "jacobian", {"singular_values": values.tolist(), "pruning": cost})


def at_initialisation(settings: Settings, runtime: Runtime, images: int) -> tuple[nn.Module, Tensor, Any]:
    """The network before its first step, the first test images as it sees them, and what its supports have cost."""
    dataset = load(settings, runtime.data_root)
    counted = Run(runtime.runs / f"{prefix('counts')}{run_id(settings)}")  # scoring is dear: perhaps it has been done
    model, cost = prepare(settings, dataset, choose_device(runtime.device), saved=counted.load_supports())
    mean, std = (torch.tensor(numbers).view(-1, 1, 1) for numbers in (dataset.mean, dataset.std))
    return model, (dataset.test_images[:images] / 255 - mean) / std, cost


def _save(run: Run, settings: Settings, task: str, content: dict[str, Any]) -> None:
    run.save_result({"id": run.folder.name, "task": task, "settings": to_json(settings), **content, **provenance()})


TASKS: dict[str, Callable[[Settings, Runtime, Run, OnEpoch], None]] = {
    TRAIN: _train,
    "counts": _counts,
    "jacobian": _jacobian,
}


# --- data that is not looked at -------------------------------------------------------------------------------------


def _needs_images(settings: Settings) -> bool:
    looks = settings.method in METHODS and METHODS[settings.method].needs_data
    return looks or settings.method not in (None, *METHODS) or settings.data not in DATASETS


def stand_in(settings: Settings) -> Dataset:
    """Black images in the shape of a data set, for what needs no more than the shape."""
    info = DATASETS[settings.data]
    images, labels = torch.zeros(20, *info.image_shape, dtype=torch.uint8), torch.zeros(20, dtype=torch.int64)
    numbers = (0.5,) * info.channels
    return Dataset(settings.data, images, labels, images, labels, info.classes, numbers, numbers)
