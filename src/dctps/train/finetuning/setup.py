"""The network of a fine-tuning before its first step, with its support chosen."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from dctps.core.support import Support
from dctps.methods.pruning.prune import prune
from dctps.nn.convert import fine_tuned_layers, sparsify
from dctps.nn.finetune import supports_in
from dctps.nn.prunable import prunable
from dctps.nn.report import Request, attach_request
from dctps.train.finetuning.settings import FinetuneSettings
from dctps.train.images import AnyBatches, EndlessBatches

Cost = dict[str, Any]  # what choosing the support has cost: passes and seconds


def prepare(
    model: nn.Module, settings: FinetuneSettings, training: AnyBatches, saved: dict[str, Any] | None
) -> Cost | None:
    """Make a network W0 + S, in place; return what choosing the support has cost, if it was chosen by a score.

    saved: the state of the same network, in a run that goes on; the support is taken from there and not scored again.
    """
    options: dict[str, Any] = {"offset": "pretrained", "train": settings.train, "exclude": settings.exclude}
    if settings.support == "random":
        sparsify(model, settings.density, allocation=settings.allocation, seed=settings.seed, **options)
        return None
    cost = None
    if saved is None:
        supports, cost = _score(model, settings, training)
    else:
        supports = supports_in(saved, model)
    sparsify(model, supports=supports, **options)
    asked = sum(support.nnz for support in supports.values())
    attach_request(model, Request(settings.density, asked, settings.support))
    return cost


def _score(model: nn.Module, settings: FinetuneSettings, training: AnyBatches) -> tuple[dict[str, Support], Cost]:
    """Score the weights that would get an S; those of other layers than linear ones and convolutions get none."""
    tuned = fine_tuned_layers(model, settings.exclude, settings.train)
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
