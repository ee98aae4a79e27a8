"""The state of a training: what a checkpoint holds so that a run goes on as if it had never stopped."""

import dataclasses
import hashlib
from typing import Any

import torch
from torch import nn

from dctps.data import Dataset
from dctps.methods.rewiring.base import Rewiring
from dctps.ops import autotune
from dctps.train.settings import Settings, run_id


@dataclasses.dataclass
class Progress:
    """How far a run is."""

    epoch: int = 0  # the epoch that is being trained, counted from 0
    step: int = 0  # steps done in this epoch
    loss: float = 0.0  # the sum of the losses of this epoch's images so far
    correct: float = 0.0  # how many of them were classified correctly
    images: float = 0.0  # how many there were
    seconds: float = 0.0  # time of training, over all sittings
    best_validation: float = -1.0
    best_epoch: int = -1
    test_at_best: float = float("nan")
    pruning: dict[str, Any] | None = None  # what choosing the support has cost

    def count(self, loss: float, correct: float, images: float) -> None:
        """Add the sums over the images of one step."""
        self.loss, self.correct, self.images = self.loss + loss, self.correct + correct, self.images + images

    def start_next_epoch(self) -> None:
        """Go to the first step of the next epoch."""
        self.epoch, self.step, self.loss, self.correct, self.images = self.epoch + 1, 0, 0.0, 0.0, 0.0


@dataclasses.dataclass
class TrainingState:
    """All that changes while a run trains, and what must be the same when it goes on."""

    settings: Settings
    data_digest: str
    model: nn.Module
    optimiser: torch.optim.Optimizer
    stepper: torch.optim.Optimizer | Rewiring  # what takes the steps: the optimiser, or the rewiring around it
    progress: Progress

    def content(self) -> dict[str, Any]:
        """What a checkpoint holds: tensors and plain values."""
        content: dict[str, Any] = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}
        content |= {"data": self.data_digest, "tuning": autotune.used_times()}  # other backends would round differently
        if self.stepper is not self.optimiser:
            content["stepper"] = self.stepper.state_dict()
        return {**content, "progress": dataclasses.asdict(self.progress), "id": run_id(self.settings)}

    def restore(self, content: dict[str, Any]) -> None:
        """Go on from a checkpoint; KeyError, TypeError, ValueError or RuntimeError if it is of another run."""
        self._check_same(content)
        self.model.load_state_dict(content["model"])
        self.optimiser.load_state_dict(content["optimiser"])
        if self.stepper is not self.optimiser:
            self.stepper.load_state_dict(content["stepper"])
        self.progress = Progress(**content["progress"])
        autotune.prefer_times(content.get("tuning", {}))

    def _check_same(self, content: dict[str, Any]) -> None:
        if content["id"] != run_id(self.settings):
            raise ValueError("it is of other settings")
        if content["data"] != self.data_digest:
            raise ValueError(f"it was trained on other data than {self.settings.data} now holds")


def fingerprint(dataset: Dataset) -> str:
    """A digest of the training and test data, so that a run does not go on with other data than it began with."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in (dataset.train_images, dataset.train_labels, dataset.test_images, dataset.test_labels):
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()
