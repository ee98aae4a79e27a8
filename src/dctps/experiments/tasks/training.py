"""The task `train`: a training with its accuracies, as a row per run or a row per epoch."""

import dataclasses

from dctps.experiments.cells import TRAIN
from dctps.experiments.numbers import number
from dctps.experiments.tasks.task import Columns, Content, SheetRow, Task
from dctps.train.records import TrainingResult, epoch_number
from dctps.train.runs import Run
from dctps.train.settings import from_json


@dataclasses.dataclass(frozen=True)
class TrainingRow(SheetRow):
    """A training: accuracies as fractions, numbers of trainable weights, bytes of the network's file, seconds.

    best_epoch is counted from 1, as people read it; result.json counts from 0.
    """

    best_validation: float | None = None
    best_epoch: int | None = None
    test_at_best: float | None = None
    final_validation: float | None = None
    final_test: float | None = None
    weights_asked: int | None = None
    weights_got: int | None = None
    weights_size: int | None = None
    file_bytes: int | None = None
    seconds: float | None = None
    pruning_seconds: float | None = None
    pruning_passes: int | None = None  # forward passes of one batch each
    rewire_every: int | None = None  # steps from one rewiring to the next


@dataclasses.dataclass(frozen=True)
class EpochRow(SheetRow):
    """An epoch of a training, counted from 1: accuracies as fractions, the mean loss of its steps."""

    epoch: int | None = None
    loss: float | None = None
    train: float | None = None
    validation: float | None = None


def accuracy(content: Content, images: str) -> float | None:
    """The accuracy of a result on the `images` ("test" or "validation") at the epoch of the best validation accuracy.

    None if it is not a number from 0 to 1.
    """
    value = number(content, "accuracy", {"test": "test_at_best", "validation": "best_validation"}[images])
    return value if value is not None and 0 <= value <= 1 else None


def _training_columns(content: Content, run: Run) -> list[Columns]:
    names = ("best_validation", "best_epoch", "test_at_best", "final_validation", "final_test")
    accuracies = {name: content["accuracy"][name] for name in names}
    accuracies["best_epoch"] = epoch_number(accuracies["best_epoch"])
    weights = {f"weights_{name}": content["weights"].get(name) for name in ("asked", "got", "size")}
    costs = {"file_bytes": content["bytes"]["file"], "seconds": content["seconds"]}
    pruning, settings = content["pruning"] or {}, from_json(content["settings"])
    costs |= {"pruning_seconds": pruning.get("seconds"), "pruning_passes": pruning.get("forward_passes")}
    every = settings.rewire_every if settings.rewire else None
    return [{**accuracies, **weights, **costs, "rewire_every": every}]


def _epoch_columns(content: Content, run: Run) -> list[Columns]:
    names = ("loss", "train", "validation")
    epochs = [
        {"epoch": epoch_number(row.epoch), **{name: getattr(row, name) for name in names}} for row in run.read_metrics()
    ]
    return epochs or [{}]


def _objection(content: Content, run: Run) -> str | None:
    if content["bytes"]["file"] and not run.best.exists():
        return "its network, best.safetensors, is gone; delete the folder to train it again"
    return None


TRAINING = Task(
    name=TRAIN,
    perform="dctps.experiments.performers:train",
    result=TrainingResult,
    sheets={TrainingRow: _training_columns, EpochRow: _epoch_columns},
    objection=_objection,
)
