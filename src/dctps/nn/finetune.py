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
    fine_tuned_class,
    is_repeated,
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


BEFORE = "_dctps_before"


def before(model: nn.Module) -> Before | None:
    """Return what a network was before it was fine-tuned, or None if it is not."""
    found: Before | None = getattr(model, BEFORE, None)
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
    layers = [(use, own, layer_class(use, own, apart)) for use, own, apart in _by_layer(weights, parts)]
    required_grad = {name: p.requires_grad for name, p in model.named_parameters()}
    originals = {name: model.get_parameter(name) for name in train} | dict(saved_buffers(model))
    kept = {name: tensor.detach().clone() for name, tensor in originals.items()}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in train)
    for use, own, cls in layers:
        attach_parts(use.layer, own, cls)
    setattr(model, BEFORE, Before(required_grad, train, kept))


def layer_class(use: Use, parts: Parts, apart: bool) -> type[nn.Module]:
    """Return the class of a layer with these parts; raise ValueError if there cannot be one."""
    name = type(use.layer).__name__
    if hasattr(use.layer, PART):
        raise ValueError(
            f"a layer of the class {name} has an attribute {PART!r} of its own, where S would be; exclude it"
        )
    try:
        return fine_tuned_class(type(use.layer), tuple(parts), use.kind, apart)
    except TypeError as error:
        raise ValueError(f"the class {name} of a layer has no subclasses ({error}), so exclude that layer") from error


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
    if was is not None and restore:
        check_originals(model, was)
    for layer in list(model.modules()):
        if isinstance(layer, FineTuned):
            detach_parts(layer)
    if was is None:
        return
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(was.required_grad.get(name, parameter.requires_grad))
    if restore:
        write_back(model, was.originals)
    delattr(model, BEFORE)


def check_originals(model: nn.Module, was: Before) -> None:
    """Raise ValueError unless a network has a place for everything that was there before it was fine-tuned."""
    places = _places(model)
    for name, tensor in was.originals.items():
        found = f"of shape {tuple(places[name].shape)}" if name in places else "there no more"
        if name not in places or places[name].shape != tensor.shape:
            raise ValueError(
                f"{name!r} was of shape {tuple(tensor.shape)} before the network was fine-tuned and is {found}, so its "
                "former values cannot come back; put the former module or shape back"
            )


def _places(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers by all their names."""
    parameters = model.named_parameters(remove_duplicate=False)
    return dict(parameters) | dict(model.named_buffers(remove_duplicate=False))


@torch.no_grad()
def write_back(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy these tensors into the parameters and buffers of these names."""
    places = _places(model)
    for name, tensor in tensors.items():
        places[name].copy_(tensor)


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


def supports_in(state: Mapping[str, Any], model: nn.Module) -> dict[str, Support]:
    """Return the supports in the state of a fine-tuned network, by the names that the weights have in `model`.

    model: the network before it was fine-tuned. Of a layer with several names the state has an entry for each.
    """
    places = {key: re.fullmatch(rf"(?:(.*)\.)?{PART}\.([^.]+)\.{EXTRA}", key) for key in state}
    found = {weight_name(place[1] or "", place[2]): state[key] for key, place in places.items() if place}
    return {name: identity.decode(found[name])[0] for name in tunable(model) if name in found}


def saved_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors of the buffers that are part of the state."""
    for path, module in model.named_modules():
        for key, buffer in module._buffers.items():
            if buffer is not None and key not in module._non_persistent_buffers_set:
                yield f"{path}.{key}" if path else key, buffer
