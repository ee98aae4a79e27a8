"""The state of a training: what a checkpoint holds so that a run goes on as if it had never stopped."""

import dataclasses
import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from dctps.data import Dataset
from dctps.methods.rewiring.base import Rewiring
from dctps.nn.finetune import load_trained_state, trained_state
from dctps.ops import stored_times
from dctps.train.records import Checkpoint, Progress
from dctps.train.settings import AnySettings, run_id

FREE_OPTIONS = {"lr", "fused", "foreach"}  # of an optimiser: every epoch sets the first, the device decides the others


@dataclasses.dataclass
class TrainingState:
    """All that changes while a run trains, and what must be the same when it goes on."""

    settings: AnySettings
    data_digest: str
    model: nn.Module
    optimiser: torch.optim.Optimizer
    stepper: torch.optim.Optimizer | Rewiring  # what takes the steps: the optimiser, or the rewiring around it
    progress: Progress
    base: str | None = None  # the fingerprint of the parameters that are frozen, and no part of the checkpoint

    def content(self) -> dict[str, Any]:
        """What a checkpoint holds: tensors and plain values."""
        content: dict[str, Any] = {"model": trained_state(self.model), "optimiser": self.optimiser.state_dict()}
        content |= {"data": self.data_digest} | ({} if self.base is None else {"base": self.base})
        content |= {"tuning": stored_times.used_times()}  # other backends would round differently
        if self.stepper is not self.optimiser:
            content["stepper"] = self.stepper.state_dict()
        return {**content, "progress": dataclasses.asdict(self.progress), "id": run_id(self.settings)}

    def restore(self, saved: Checkpoint, steps_per_epoch: int) -> None:
        """Go on from a checkpoint; ValueError or another error if it is of another run, or damaged."""
        self._check_same(saved)
        self._check_progress(saved.progress, steps_per_epoch)
        load_trained_state(self.model, saved.model)
        self._restore_optimiser(saved.optimiser)
        if self.stepper is not self.optimiser:
            if saved.stepper is None:
                raise ValueError("the state of its rewiring is missing")
            self.stepper.load_state_dict(saved.stepper)
        self.progress = saved.progress
        stored_times.prefer_times(saved.tuning)

    def _check_same(self, saved: Checkpoint) -> None:
        if saved.id != run_id(self.settings):
            raise ValueError("it is of other settings")
        if saved.data != self.data_digest:
            raise ValueError(f"it was trained on other data than {self.settings.data} now holds")
        if saved.base != self.base:
            raise ValueError(f"it was trained from other weights than {self.settings.model} now has")

    def _check_progress(self, progress: Progress, steps: int) -> None:
        """ValueError unless the settings lead through this place of the training."""
        p, s = progress, self.settings
        at_end = p.epoch == s.epochs and p.step == 0
        if not at_end and not (p.epoch < s.epochs and p.step < steps):
            raise ValueError(
                f"epoch {p.epoch}, step {p.step} is not in a training of {s.epochs} epochs of {steps} steps"
            )
        if p.images > p.step * s.batch_size:
            raise ValueError(f"{p.images:g} images in {p.step} steps of {s.batch_size}")

    def _restore_optimiser(self, saved: dict[str, Any]) -> None:
        """Take the state of the parameters; ValueError if their shapes or the options of the optimiser differ."""
        groups, parameters = self.optimiser.state_dict()["param_groups"], list[Tensor]()
        for mine, theirs in zip(groups, saved["param_groups"], strict=True):
            if differ := [name for name in set(mine) & set(theirs) - FREE_OPTIONS if mine[name] != theirs[name]]:
                raise ValueError(f"its optimiser has another {min(differ)} than the settings ask for")
        for group in self.optimiser.param_groups:
            parameters += group["params"]
        for index, state in saved["state"].items():
            for name, value in state.items():
                _check_tensor(f"the optimiser's {name} of parameter {index}", value, parameters[index].shape)
        states = {index: _of_shape(state, parameters[index].shape) for index, state in saved["state"].items()}
        self.optimiser.load_state_dict({"state": states, "param_groups": groups})


def _of_shape(state: dict[str, Any], shape: torch.Size) -> dict[str, Any]:
    """The state of a parameter of this shape; alphas, and their moments, had no axis in earlier versions."""
    if shape != (1,):
        return state
    return {k: v.reshape(1) if isinstance(v, Tensor) and k != "step" else v for k, v in state.items()}


def _check_tensor(name: str, value: Any, shape: torch.Size) -> None:
    """ValueError unless this is None, or a finite tensor with one number or of this shape."""
    if value is not None and (not isinstance(value, Tensor) or value.shape not in (shape, ())):
        raise ValueError(f"{name} is not a tensor of shape {tuple(shape)}")
    if value is not None and not bool(value.isfinite().all()):
        raise ValueError(f"{name} is not finite")


def fingerprint(dataset: Dataset) -> str:
    """A digest of the training and test data, so that a run does not go on with other data than it began with."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in (dataset.train_images, dataset.train_labels, dataset.test_images, dataset.test_labels):
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()
