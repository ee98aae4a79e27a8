"""What the files of a fine-tuning hold, as dataclasses that are checked field by field."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from dctps.base.records import Amount, Count, Fraction, Via
from dctps.checkpoint.folder import CARD, CONFIG, FILE
from dctps.train.finetuning.settings import FinetuneSettings
from dctps.train.records import Accuracies, Origin, PruningCost
from dctps.train.runs import RunFolder
from dctps.train.settings import settings_from


@dataclasses.dataclass(frozen=True)
class FinetuneMetrics:
    """A line of metrics.jsonl; the learning rate is that of the last step."""

    epoch: Count
    loss: float
    train: Fraction
    validation: Fraction
    lr: Amount
    seconds: Amount
    examples_per_second: Amount


@dataclasses.dataclass(frozen=True)
class Parameters:
    """How many numbers train sparsely, train as a whole and are frozen."""

    sparse: Count
    whole: Count
    frozen: Count


@dataclasses.dataclass(frozen=True)
class Examples:
    """How many examples there were."""

    training: Count
    validation: Count
    test: Count


@dataclasses.dataclass(frozen=True)
class AdapterBytes:
    """Bytes of the file of the adapter, and of the parameters of the whole network."""

    adapter: Count
    network: Count


def _settings(content: Any) -> FinetuneSettings:
    return settings_from(content, FinetuneSettings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneResult(Origin):
    """What the result.json of a fine-tuning holds."""

    task: str
    settings: Annotated[FinetuneSettings, Via(_settings)]
    accuracy: Accuracies
    parameters: Parameters
    examples: Examples
    classes: tuple[str, ...]
    bytes: AdapterBytes
    pruning: PruningCost | None
    rewirings: Count | None
    seconds: Amount

    def __post_init__(self) -> None:
        if self.accuracy.best_epoch >= self.settings.epochs:
            raise ValueError(f"best_epoch {self.accuracy.best_epoch} of {self.settings.epochs} epochs, counted from 0")


class FinetuneRun(RunFolder):
    """The folder of a fine-tuning: `best` is the adapter of the best epoch, `adapter` a folder for hubs at the end."""

    settings_kind, metrics_kind, result_kind = FinetuneSettings, FinetuneMetrics, FinetuneResult
    prefix = "finetune-"

    @property
    def adapter(self) -> Path:
        """The folder that `dctps.from_pretrained` attaches."""
        return self.folder / "adapter"

    def written(self) -> list[Path]:
        """The files that only a process writes which has locked the folder."""
        return [*super().written(), *(self.adapter / name for name in (FILE, CONFIG, CARD))]
