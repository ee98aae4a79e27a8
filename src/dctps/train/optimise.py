"""Optimisers by name, parameters in groups by their role, learning rates by epoch."""

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from dctps.methods.rewiring import REWIRINGS
from dctps.methods.rewiring.base import Rewiring
from dctps.methods.rewiring.schedule import TrainingPlan
from dctps.methods.subspace.subspace import Subspace
from dctps.nn.dps_layer import DpsLayer
from dctps.train.settings import Settings

SLOW = 0.1  # the fraction of the learning rate at which Fixup's biases and scales train


def parameter_groups(model: nn.Module, settings: Settings) -> list[dict[str, Any]]:
    """The parameters in groups by role, each with the `factor` of the learning rate at which it trains.

    A layer says which parameters are its alpha and its values, and a model says which are slow (`slow_parameters`).
    """
    layers = [m for m in model.modules() if isinstance(m, DpsLayer)]
    alphas = [m.alpha for m in layers if isinstance(m.alpha, nn.Parameter)]
    values = [] if settings.values_lr is None else [m.values for m in layers if m.values.requires_grad]
    ask = getattr(model.network if isinstance(model, Subspace) else model, "slow_parameters", None)
    slow: list[nn.Parameter] = ask() if callable(ask) else []
    special = {id(p) for p in [*alphas, *values, *slow]}
    rest = [p for p in model.parameters() if id(p) not in special and p.requires_grad]
    alpha_factor, values_factor = (
        (rate or settings.lr) / settings.lr for rate in (settings.alpha_lr, settings.values_lr)
    )
    roles = [("weights", rest, 1.0), ("alpha", alphas, alpha_factor), ("values", values, values_factor)]
    roles += [("slow", slow, SLOW)]
    return [{"role": role, "params": params, "factor": factor} for role, params, factor in roles if params]


def build_optimiser(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """The optimiser that the settings ask for."""
    return OPTIMISERS[settings.optimizer](parameter_groups(model, settings), settings)


class RewiringSettings(Protocol):
    """What the settings of every kind of training say about rewiring."""

    @property
    def rewire(self) -> str | None: ...
    @property
    def rewire_every(self) -> int: ...
    @property
    def rewire_until(self) -> float: ...
    @property
    def drop_fraction(self) -> float: ...
    @property
    def epochs(self) -> int: ...
    @property
    def seed(self) -> int: ...


def build_stepper(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    settings: RewiringSettings,
    steps_per_epoch: int,
    *,
    has_offset: bool,
) -> torch.optim.Optimizer | Rewiring:
    """What takes the steps: the optimiser, or the rewiring around it; has_offset: whether layers have an offset D."""
    if settings.rewire is None:
        return optimiser
    plan = TrainingPlan(
        stop=math.floor(settings.rewire_until * settings.epochs * steps_per_epoch),
        every=settings.rewire_every,
        seed=settings.seed,
        drop_fraction=settings.drop_fraction,
        steps_per_epoch=steps_per_epoch,
        has_offset=has_offset,
    )
    return REWIRINGS[settings.rewire].for_training(model, optimiser, plan)


def together(groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Options that let one call update all the small tensors of a sparse network, fused where torch can."""
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    return {"fused": True} if devices <= {"cpu", "cuda"} else {"foreach": True}


OPTIMISERS: dict[str, Callable[[list[dict[str, Any]], Settings], torch.optim.Optimizer]] = {
    "adam": lambda groups, s: torch.optim.Adam(groups, lr=s.lr, weight_decay=s.weight_decay, **together(groups)),
    "adamw": lambda groups, s: torch.optim.AdamW(groups, lr=s.lr, weight_decay=s.weight_decay, **together(groups)),
    "sgd": lambda groups, s: torch.optim.SGD(
        groups, lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay, **together(groups)
    ),
}


def learning_rate(settings: Settings, epoch: int) -> float:
    """The learning rate in (0-based) `epoch`."""
    if settings.schedule == "constant":
        return settings.lr
    if settings.schedule == "cosine":
        return settings.lr * (1 + math.cos(math.pi * epoch / settings.epochs)) / 2
    passed = sum(epoch + settings.legacy_lr_order >= milestone for milestone in settings.milestones)
    return settings.lr * settings.gamma**passed


def set_learning_rate(optimiser: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of all groups, each multiplied by its factor."""
    for group in optimiser.param_groups:
        group["lr"] = lr * group["factor"]
