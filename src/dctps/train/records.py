"""What the files of a run hold, as dataclasses. Reading checks every field (`base/records.py`).

Epochs are counted from 0 in all files, as they always were: the row of `metrics.jsonl` with `epoch` n, and a
`best_epoch` of n, are of the network after n + 1 epochs. What people read (lines, pages, tables) counts from 1, by
`epoch_number`.
"""

import dataclasses
import math
import typing
from typing import Annotated, Any, TypeVar

from torch import Tensor

from dctps.base.plain_files import RecordError
from dctps.base.records import LARGEST_INT, Amount, Count, Fraction, Range, Via, parse
from dctps.base.words import shown
from dctps.train.settings import Settings, from_json

Positive = Annotated[int, Range(1, LARGEST_INT)]


def epoch_number(epoch: int) -> int:
    """The number of an epoch as people read it, from 1; epoch: as the files have it, from 0."""
    return epoch + 1


# --- metrics.jsonl --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class EpochMetrics:
    """A line of metrics.jsonl: accuracies as fractions, the mean loss of the epoch's images, the time until its end."""

    epoch: Count
    loss: float
    train: Fraction
    validation: Fraction
    lr: Amount
    seconds: Amount
    images_per_second: Amount


# --- result.json, and what failure.json shares with it ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a result comes from: what result.json and failure.json hold for every kind of run."""

    id: str
    commit: str | None
    versions: dict[str, str]
    cpu: str
    threads: Positive
    finished: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome(Origin):
    """What result.json and failure.json hold for every task."""

    settings: Annotated[Settings, Via(from_json)]


AnyOutcome = TypeVar("AnyOutcome", bound=Origin)


def parse_outcome(kind: type[AnyOutcome], content: Any, run: str) -> AnyOutcome:
    """The content of a result.json or failure.json; RecordError if it is not that of the run with this name."""
    outcome = parse(kind, content)
    if outcome.id != run:
        raise RecordError(f"is {shown(outcome.id)}, not that of this folder: it is the outcome of another run", ".id")
    return outcome


@dataclasses.dataclass(frozen=True)
class PruningCost:
    """What choosing the support has cost; a pass is one batch through the network."""

    seconds: Amount
    forward_passes: Count
    backward_passes: Count


@dataclasses.dataclass(frozen=True)
class Accuracies:
    """Accuracies as fractions: at the epoch of the best validation accuracy, and at the end."""

    best_validation: Fraction
    best_epoch: Count
    test_at_best: Fraction
    final_validation: Fraction
    final_test: Fraction


@dataclasses.dataclass(frozen=True)
class Weights:
    """How many weights train; asked for, and in the dense network, where the network is sparse."""

    got: Count
    asked: Count | None = None
    size: Count | None = None


@dataclasses.dataclass(frozen=True)
class Bytes:
    """Bytes of best.safetensors, and of the gradients that a process sends in each step."""

    file: Count | None
    per_step: Count
    dense_per_step: Count


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingResult(Outcome):
    """What the result.json of a training holds."""

    accuracy: Accuracies
    weights: Weights
    pruning: PruningCost | None
    rewirings: Count | None
    bytes: Bytes
    seconds: Amount
    processes: Positive

    def __post_init__(self) -> None:
        if self.accuracy.best_epoch >= self.settings.epochs:
            raise ValueError(f"best_epoch {self.accuracy.best_epoch} of {self.settings.epochs} epochs, counted from 0")


# --- last.pt --------------------------------------------------------------------------------------------------------


def _cost(value: Any) -> dict[str, Any] | None:
    return None if value is None else dataclasses.asdict(parse(PruningCost, value))


def _test_accuracy(value: Any) -> float:
    nothing_yet = type(value) is float and math.isnan(value)
    return float("nan") if nothing_yet else parse(Fraction, value)


@dataclasses.dataclass
class Progress:
    """How far a run is."""

    epoch: Count = 0  # the epoch that is being trained
    step: Count = 0  # steps done in this epoch
    loss: float = 0.0  # the sum of the losses of this epoch's images so far
    correct: Amount = 0.0  # how many of them were classified correctly
    images: Amount = 0.0  # how many there were
    seconds: Amount = 0.0  # time of training, over all sittings
    best_validation: Annotated[float, Range(-1, 1)] = -1.0  # -1 and NaN: no epoch is over
    best_epoch: Annotated[int, Range(-1, LARGEST_INT)] = -1
    test_at_best: Annotated[float, Via(_test_accuracy)] = float("nan")
    pruning: Annotated[dict[str, Any] | None, Via(_cost)] = None  # what choosing the support has cost

    def __post_init__(self) -> None:
        if self.correct > self.images or self.correct % 1 or self.images % 1:
            raise ValueError(f"{self.correct:g} of {self.images:g} images were classified correctly")
        best = (self.best_epoch, self.best_validation, self.test_at_best)
        none = self.best_epoch == -1
        if self.best_epoch >= max(self.epoch, 0) or none != (self.best_validation < 0) or none != math.isnan(best[2]):
            raise ValueError(f"best epoch, validation and test accuracy {best} before epoch {self.epoch}")

    def count(self, loss: float, correct: float, images: float) -> None:
        """Add the sums over the images of one step."""
        self.loss, self.correct, self.images = self.loss + loss, self.correct + correct, self.images + images

    def start_next_epoch(self) -> None:
        """Go to the first step of the next epoch."""
        self.epoch, self.step, self.loss, self.correct, self.images = self.epoch + 1, 0, 0.0, 0.0, 0.0


def parse_network(value: Any) -> dict[str, Any]:
    """The state of a network itself, as torch keeps further facts in its attributes."""
    tensors = {k: v for k, v in parse(dict[str, Any], value).items() if not k.endswith("_extra_state")}
    parse(dict[str, Tensor], tensors)
    return typing.cast(dict[str, Any], value)


def _rewiring(value: Any) -> dict[str, Any] | None:
    """The state of a rewiring; its method checks the rest."""
    state = None if value is None else parse(dict[str, Any], value)
    counters = ("iteration", "updates", "steps")
    parse(dict[str, Count], {} if state is None else {name: state.get(name) for name in counters})
    return state


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What last.pt holds: tensors and plain values."""

    id: str
    data: str  # the fingerprint of the data set
    model: Annotated[dict[str, Any], Via(parse_network)]
    optimiser: dict[str, Any]
    progress: Progress
    tuning: dict[str, dict[str, Amount]] = dataclasses.field(default_factory=dict)  # of the choice of backends
    stepper: Annotated[dict[str, Any] | None, Via(_rewiring)] = None  # of the rewiring, if there is one
    base: str | None = None  # the fingerprint of the frozen parameters of a fine-tuned network, which are not here
