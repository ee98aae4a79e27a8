"""`densify` and `unmerge` of a fine-tuned network: W0 + S in the memory of W0, and W0 back to the last bit."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dctps.core.fingerprint import fingerprint
from dctps.nn.fine_tuned import tuned_weights
from dctps.nn.finetune import BEFORE, MadePart, attach, before, check_originals, detach
from dctps.nn.sparse_part import SparsePart
from dctps.nn.tunable import Tunable, tunable
from dctps.nn.wrappers import unwrapped


class _Merged(NamedTuple):
    """What a weight was before it was merged, and the fingerprint of what it became."""

    made: MadePart
    old: Tensor  # W0 at the positions of S; with alpha: W0
    mark: str


_MERGED = "_dctps_merged"


@torch.no_grad()
def merge(model: nn.Module) -> None:
    """Make a fine-tuned network a plain one whose weights are W0 + S, in the memory of W0; `unmerge` undoes it."""
    tuned, was = tuned_weights(model), before(model)
    made = {name: MadePart(w.part, w.layer.presents.forward is not None) for name, w in tuned.items()}
    old = {name: _entries(w.base, w.part).clone() for name, w in tuned.items()}
    for weight in tuned.values():
        weight.base.copy_(weight.part.added_to(weight.base))
    detach(model, restore=False)
    merged = {name: _Merged(made[name], old[name], fingerprint({name: w.base})) for name, w in tuned.items()}
    setattr(model, _MERGED, (merged, was))


@torch.no_grad()
def unmerge(model: nn.Module) -> nn.Module:
    """Undo `densify` of a fine-tuned network, in place: W0 gets back its bits, and the sparse parts return.

    It cannot be done when the merged weights have been changed since, in any bit or in their type, or when the network
    has been fine-tuned again.
    """
    outer, model = model, unwrapped(model)
    if before(model) is not None:
        raise ValueError(
            "this network is fine-tuned now; detach or densify it before you unmerge what was merged before"
        )
    merged, was = getattr(model, _MERGED, (None, None))
    if merged is None or was is None:
        raise ValueError("this network was not fine-tuned and then densified, so there is nothing to unmerge")
    weights = _unchanged(model, merged)
    check_originals(model, was)
    for name, (made, old, _) in merged.items():
        base, part = weights[name].base, made.part.to(weights[name].base.device)
        if part.alpha is not None:
            base.copy_(old)
        else:
            base[torch.unravel_index(part.positions.long(), base.shape)] = old.to(base.device)  # of any strides
    attach(model, weights, {name: weight.made for name, weight in merged.items()}, was.trained)
    setattr(model, BEFORE, was)
    delattr(model, _MERGED)
    return outer


def _unchanged(model: nn.Module, merged: Mapping[str, _Merged]) -> dict[str, Tunable]:
    """Return the merged weights of a network; raise ValueError if they are not what `merge` left."""
    weights = tunable(model, frozen_too=True)
    for name, (_, _, mark) in merged.items():
        if name not in weights or fingerprint({name: weights[name].base}) != mark:
            raise ValueError(f"the weight of {name!r} has changed since it was merged, so W0 cannot be taken back")
    return weights


def _entries(base: Tensor, part: SparsePart) -> Tensor:
    """Return W0 at the positions of S; where W0 has a scale, all of it."""
    return base.detach().clone() if part.alpha is not None else base.detach().reshape(-1)[part.positions.long()]
