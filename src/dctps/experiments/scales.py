"""The scale of an experiment: as in the paper, reduced for about an hour on a laptop, or a smoke test of a minute.

What a scale leaves out or makes smaller is written on the figure.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from dctps.base.user_code import names_function
from dctps.train.settings import Settings


@dataclasses.dataclass(frozen=True)
class Scale:
    """Which cells of an experiment are run, and what is changed in them; None changes nothing."""

    name: str = "paper"
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # settings that replace the paper's
    per_model: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)  # changes for one network
    kept_densities: tuple[float, ...] | None = None
    seed_count: int | None = None
    kept_pairs: tuple[tuple[str, str], ...] | None = None  # pairs of a network and a data set
    projection: str | None = None  # replaces the dense matrix of Hyperplane Projection

    def densities(self, given: Sequence[float]) -> tuple[float, ...]:
        """The densities that are run; `given` are those of the paper."""
        return tuple(given) if self.kept_densities is None else self.kept_densities

    def seeds(self, given: Sequence[int]) -> tuple[int, ...]:
        """The seeds that are run; `given` are those of the paper."""
        return tuple(given)[: self.seed_count]

    def pairs(self, given: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        """The pairs of a network and a data set that are run; where all data sets become one, each network once."""
        if self.kept_pairs is not None:
            return self.kept_pairs
        first: dict[str, tuple[str, str]] = {}
        for model, data in given:
            first.setdefault(model if self.data else f"{model} {data}", (model, data))
        return tuple(first.values())

    @property
    def data(self) -> str | None:
        """The data set that replaces those of the paper; None if none does."""
        return self.changes.get("data")

    def apply(self, settings: Settings) -> Settings:
        """The settings of a run at this scale; `settings` are those of the paper."""
        changes = {**self.changes, **self.per_model.get(settings.model, {})}
        if settings.projection is not None and self.projection is not None:
            changes["projection"] = self.projection
        if settings.rewire is None:
            changes.pop("rewire_every", None)
        if settings.method is None or names_function(settings.method):
            changes.pop("method_steps", None)
        changes |= {"method_batches": None} if settings.method and self.name != "paper" else {}
        return dataclasses.replace(settings, **changes)


PAPER = Scale()
FEW = (0.05, 0.01, 0.005, 0.002, 0.001)


def narrow(width: int) -> dict[str, dict[str, Any]]:
    """The changes that give a width to all networks which have one."""
    return {name: {"width": width} for name in ("resnet18", "resnet50", "vgg19")}


LAPTOP = Scale(
    "laptop",
    {"epochs": 5, "images": 5000, "data": "cifar10", "batch_size": 64, "rewire_every": 20, "method_steps": 20},
    {**narrow(8), "lenet": {"epochs": 15, "images": 20_000}, "fixup_resnet110": {"model": "fixup_resnet20"}},
    kept_densities=(0.05, 0.01, 0.001),
    seed_count=1,
    kept_pairs=(("lenet", "cifar10"),),
    projection="sparse",
)
SMOKE = Scale(
    "smoke",
    {"epochs": 1, "images": 200, "data": "digits32", "batch_size": 50, "rewire_every": 2, "method_steps": 4},
    {**narrow(8), "fixup_resnet110": {"model": "fixup_resnet20"}},
    kept_densities=(0.05, 0.005),
    seed_count=1,
    kept_pairs=(("lenet", "cifar10"),),
    projection="sparse",
)
