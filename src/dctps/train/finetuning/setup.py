"""The network of a fine-tuning before its first step, with its support chosen."""

import dataclasses
import fnmatch
import glob
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from dctps.core.support import Support
from dctps.methods.pruning.prune import prune
from dctps.nn.convert import fine_tuned_layers, sparsify
from dctps.nn.finetune import supports_in
from dctps.nn.prunable import prunable
from dctps.nn.report import Request, attach_request
from dctps.nn.trained import matched_parameters
from dctps.train.finetuning.settings import FinetuneSettings
from dctps.train.images import AnyBatches, EndlessBatches

Cost = dict[str, Any]  # what choosing the support has cost: passes and seconds


def prepare(
    model: nn.Module,
    settings: FinetuneSettings,
    training: AnyBatches,
    saved: dict[str, Any] | None,
    new: Sequence[str] = (),
) -> Cost | None:
    """Make a network W0 + S, in place; return what choosing the support has cost, if it was chosen by a score.

    new: the names of the parameters that are not pretrained. They train as a whole, so they are in the adapter: its
        reader would draw others.
    saved: the state of the same network, in a run that goes on; the support is taken from there and not scored again.
    """
    train = tuple(dict.fromkeys([*settings.train, *map(glob.escape, new)]))
    _check_exclude(model, settings, new)
    options: dict[str, Any] = {"offset": "pretrained", "train": train, "exclude": settings.exclude}
    if settings.support == "random":
        sparsify(model, settings.density, allocation=settings.allocation, seed=settings.seed, **options)
        return None
    cost = None
    if saved is None:
        supports, cost = _score(model, settings, train, training)
    else:
        supports = supports_in(saved, model)
    sparsify(model, supports=supports, **options)
    asked = sum(support.nnz for support in supports.values())
    attach_request(model, Request(settings.density, asked, settings.support))
    return cost


def _check_exclude(model: nn.Module, settings: FinetuneSettings, new: Sequence[str]) -> None:
    """Raise ValueError if a new parameter is in a layer that is to stay as it is, and is not named in `train`."""
    own = set(new) - set(matched_parameters(model, settings.train))
    kept = [name for name in new if name in own and any(_inside(name, rule) for rule in settings.exclude)]
    if kept:
        raise ValueError(
            f"--exclude keeps {', '.join(kept)} as they are, but they are not pretrained: the folder of the network "
            "does not have them, so they were drawn at random and must train; name other layers, or save the network "
            "with all its parameters first"
        )


def _inside(name: str, rule: str) -> bool:
    """Return whether a parameter lies in a module whose name matches a rule."""
    parts = name.split(".")
    return any(fnmatch.fnmatchcase(".".join(parts[:end]), rule) for end in range(1, len(parts)))


def _score(
    model: nn.Module, settings: FinetuneSettings, train: tuple[str, ...], training: AnyBatches
) -> tuple[dict[str, Support], Cost]:
    """Score the weights that would get an S; those of other layers than linear ones and convolutions get none."""
    tuned = fine_tuned_layers(model, settings.exclude, train)
    supports = prune(
        model,
        settings.support,
        settings.density,
        batches=_ScoringBatches(training),
        batches_per_step=settings.support_batches,
        seed=settings.seed,
        exclude=[name for name in prunable(model, frozen_too=True) if name not in tuned],
    )
    return dict(supports), dataclasses.asdict(supports.cost)


@dataclasses.dataclass(frozen=True)
class _ScoringBatches:
    """Batches as `prune` takes them: a batch with names has its labels among them."""

    training: AnyBatches

    def __iter__(self) -> Iterator[Any]:
        for x, y in EndlessBatches(self.training):
            yield (x, y) if isinstance(x, Tensor) else {**x, "labels": y}
