"""`sparsify(offset="pretrained")`: fine-tuning W = W0 + S, where W0 is the weight that a layer has already.

Layers stay the objects that they are (`fine_tuned.py`). W0 and every other parameter are frozen, except those that
`train` names. S starts at zero, so the outputs of the network stay what they were.
"""

import dataclasses
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dctps.core.support import Support
from dctps.nn import identity
from dctps.nn.fine_tuned import (
    PART,
    FineTuned,
    Parts,
    attach_parts,
    detach_parts,
    is_repeated,
    tuned_weights,
    weight_name,
)
from dctps.nn.layer_kinds import part_of_weight
from dctps.nn.replace import errors_name_layer
from dctps.nn.sparse_part import PartOfLinear, SparsePart
from dctps.nn.supported import EXTRA
from dctps.nn.tunable import Tunable, Use, not_tunable, tunable


@dataclasses.dataclass
class Before:
    """What a network was before it was fine-tuned; the network keeps it as an attribute, which is not in its state.

    required_grad: whether each parameter required a gradient, by name.
    originals: the parameters that train beside the sparse parts, and all buffers of the state, as they were.
    """

    required_grad: dict[str, bool]
    trained: list[str]
    originals: dict[str, Tensor]


_BEFORE = "_dctps_before"


def before(model: nn.Module) -> Before | None:
    """Return what a network was before it was fine-tuned, or None if it is not."""
    found: Before | None = getattr(model, _BEFORE, None)
    return found


def tuning_targets(model: nn.Module, train: Iterable[str]) -> dict[str, Tunable]:
    """Return the weights to fine-tune, by name: all that can be, except those that train as a whole."""
    whole = {id(model.get_parameter(name)) for name in train}
    found = {name: weight for name, weight in tunable(model).items() if id(weight.base) not in whole}
    if not found:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in not_tunable(model))
        raise ValueError(f"there is no weight to fine-tune in this network{reasons}")
    return found


class MadePart(NamedTuple):
    """S for one weight, and whether all layers that use the weight can compute with W0 and S apart."""

    part: SparsePart
    apart: bool


def make_parts(
    weights: Mapping[str, Tunable], supports: Mapping[str, Support], *, backend: str, scaled: Container[str]
) -> dict[str, MadePart]:
    """Return S = 0 for each support, by the name of the weight; the network is not changed.

    scaled: the names of the weights whose W0 gets a scale alpha that trains.
    """
    return {
        name: _make_part(name, weights[name], support, backend, name in scaled) for name, support in supports.items()
    }


def _make_part(name: str, weight: Tunable, support: Support, backend: str, scaled: bool) -> MadePart:
    options = {"backend": backend, "device": weight.base.device, "dtype": weight.base.dtype}
    with errors_name_layer(name):
        made = [use.kind.part(use.layer, use.key, support, options) for use in weight.uses]
        part = next((p for p in made if isinstance(p, PartOfLinear)), made[0])  # it has rows and an adjoint, too
        apart = all(p.geometry == part.geometry for p in made)
        if not apart:
            part = part_of_weight(weight.uses[0].layer, weight.uses[0].key, support, options)
    if len(weight.uses) > 1:
        part.is_shared, part.shows_gradient = True, False
    if scaled:
        part.scale_base()
    return MadePart(part, apart)


def attach(model: nn.Module, weights: Mapping[str, Tunable], parts: Mapping[str, MadePart], train: list[str]) -> None:
    """Put the sparse parts into the network, freeze all parameters but those of `train`, and note what was before."""
    required_grad = {name: p.requires_grad for name, p in model.named_parameters()}
    originals = {name: model.get_parameter(name) for name in train} | dict(saved_buffers(model))
    kept = {name: tensor.detach().clone() for name, tensor in originals.items()}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in train)
    for use, parts_of_layer, apart in _by_layer(weights, parts):
        attach_parts(use.layer, parts_of_layer, use.kind, apart)
    setattr(model, _BEFORE, Before(required_grad, train, kept))


def _by_layer(weights: Mapping[str, Tunable], parts: Mapping[str, MadePart]) -> Iterator[tuple[Use, Parts, bool]]:
    """Yield a use of each layer, all parts of that layer, and whether it can take W0 and S apart."""
    layers: dict[int, list[tuple[Use, bool, MadePart]]] = {}
    for name, made in parts.items():
        for number, use in enumerate(weights[name].uses):
            layers.setdefault(id(use.layer), []).append((use, number == 0, made))
    for found in layers.values():
        own = {use.key: made.part for use, is_first, made in found if is_first}
        shared = {use.key: made.part for use, is_first, made in found if not is_first}
        yield found[0][0], Parts(own, shared), all(made.apart for _, _, made in found)


def detach(model: nn.Module, restore: bool) -> None:
    """Make a fine-tuned network a plain one, with W0 as its weights.

    restore: whether the parameters that trained as a whole, and the buffers, become what they were.
    """
    was = before(model)
    for layer in list(model.modules()):
        if isinstance(layer, FineTuned):
            detach_parts(layer)
    if was is None:
        return
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(was.required_grad.get(name, parameter.requires_grad))
    if restore:
        write_back(model, was.originals)
    delattr(model, _BEFORE)


@torch.no_grad()
def write_back(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy these tensors into the parameters and buffers of these names."""
    places = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in tensors.items():
        places[name].copy_(tensor)


# --- merging ----------------------------------------------------------------------------------------------------------


class _Merged(NamedTuple):
    """A weight that was merged, what to take back, and what is there now at the positions of S."""

    weight: Tunable
    made: MadePart
    old: Tensor  # W0 at the positions of S; with alpha: W0
    now: Tensor


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
    weights = tunable(model, frozen_too=True)
    merged = {
        name: _Merged(weights[name], made[name], old[name], _entries(w.base, w.part)) for name, w in tuned.items()
    }
    setattr(model, _MERGED, (merged, was))


@torch.no_grad()
def unmerge(model: nn.Module) -> nn.Module:
    """Undo `densify` of a fine-tuned network, in place: W0 gets back its bits, and the sparse parts return.

    It cannot be done when the merged weights have been changed since.
    """
    merged, was = getattr(model, _MERGED, (None, None))
    if merged is None or was is None:
        raise ValueError("this network was not fine-tuned and then densified, so there is nothing to unmerge")
    for name, (weight, made, _, now) in merged.items():
        if not torch.equal(_entries(weight.base, made.part), now):
            raise ValueError(f"the weight of {name!r} has changed since it was merged, so W0 cannot be taken back")
    for weight, made, old, _ in merged.values():
        if made.part.alpha is not None:
            weight.base.copy_(old)
        else:
            weight.base[torch.unravel_index(made.part.positions.long(), weight.base.shape)] = old  # of any strides
    attach(model, {n: m.weight for n, m in merged.items()}, {n: m.made for n, m in merged.items()}, was.trained)
    setattr(model, _BEFORE, was)
    delattr(model, _MERGED)
    return model


def _entries(base: Tensor, part: SparsePart) -> Tensor:
    """Return W0 at the positions of S; where W0 has a scale, all of it."""
    return base.detach().clone() if part.alpha is not None else base.detach().reshape(-1)[part.positions.long()]


# --- the state --------------------------------------------------------------------------------------------------------


def trained_state(model: nn.Module) -> dict[str, Any]:
    """Return the state of a network; that of a fine-tuned one is without the parameters that are frozen."""
    state = model.state_dict()
    frozen = set[str]() if before(model) is None else set(frozen_parameters(model))
    return {name: value for name, value in state.items() if name not in frozen} if frozen else state


def load_trained_state(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load what `trained_state` gave; ValueError or RuntimeError if it is not of a network that trains the same."""
    state = {name: value for name, value in state.items() if not is_repeated(model, name)}
    wanted = trained_state(model).keys()
    if before(model) is not None and wanted != state.keys():
        raise ValueError(f"the states differ in {min(wanted ^ state.keys())!r}: another part of the network trains")
    model.load_state_dict(state, strict=before(model) is None)


def frozen_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are frozen, by all their names."""
    named = model.named_parameters(remove_duplicate=False)
    return {name: parameter for name, parameter in named if not parameter.requires_grad}


def supports_in(state: Mapping[str, Any]) -> dict[str, Support]:
    """Return the supports in the state of a fine-tuned network, by the names of the weights."""
    places = {key: re.fullmatch(rf"(?:(.*)\.)?{PART}\.([^.]+)\.{EXTRA}", key) for key in state}
    found = {weight_name(place[1] or "", place[2]): state[key] for key, place in places.items() if place}
    return {name: identity.decode(content)[0] for name, content in found.items()}


def saved_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors of the buffers that are part of the state."""
    for path, module in model.named_modules():
        for key, buffer in module._buffers.items():
            if buffer is not None and key not in module._non_persistent_buffers_set:
                yield f"{path}.{key}" if path else key, buffer
