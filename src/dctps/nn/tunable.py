"""The weights of a network that can be fine-tuned as W0 + S, and the reasons why the others cannot."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor, nn

from dctps.base.words import listed
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.fine_tuned import FineTuned, weight_name
from dctps.nn.layer_kinds import LayerKind, kind_of
from dctps.nn.overlaps import overlaps
from dctps.nn.prunable import LeftDense


class Use(NamedTuple):
    """A layer that uses a weight under the name `key`."""

    layer: nn.Module
    key: str
    kind: LayerKind


class Tunable(NamedTuple):
    """A weight W0 that can be fine-tuned, and all layers that use it: one, or several where it is tied."""

    base: nn.Parameter
    uses: list[Use]


def tunable(model: nn.Module, *, frozen_too: bool = False) -> dict[str, Tunable]:
    """Return the weights of a plain network that can be fine-tuned, by name (`fine_tuned.weight_name`).

    frozen_too: whether frozen weights of a network that trains are among them.
    """
    names, found = dict[int, str](), dict[str, Tunable]()
    allowed = (None, _FROZEN) if frozen_too else (None,)
    rows = list(_weights(model))  # a computed weight is known by the id of an object that lives in its row
    refused = {id(base) for _, _, base, reason in rows if reason not in allowed}
    for name, use, base, _ in rows:
        if id(base) not in refused:
            first = names.setdefault(id(base), name)
            found.setdefault(first, Tunable(base, [])).uses.append(use)
    return found


def not_tunable(model: nn.Module) -> list[LeftDense]:
    """Return the weights, and the layers with weights, that cannot be fine-tuned, each with the reason."""
    rows = list(_weights(model))
    reasons = {id(base): reason for _, _, base, reason in rows if reason is not None}
    listed = [LeftDense(name, reasons[id(base)]) for name, _, base, _ in rows if id(base) in reasons]
    return listed + list(_other_layers(model))


def left_whole(model: nn.Module) -> list[LeftDense]:
    """Return the weights of a fine-tuned network that have no sparse part, each with the reason."""
    listed = []
    for name, _, base, reason in _weights(model):
        if base.requires_grad and reason != _COMPUTED:
            listed.append(LeftDense(name, "it trains as a whole"))
        else:
            listed.append(
                LeftDense(name, "frozen: excluded, or without a support" if reason in (None, _FROZEN) else reason)
            )
    return listed + list(_other_layers(model))


def _weights(model: nn.Module) -> Iterator[tuple[str, Use, nn.Parameter, str | None]]:
    """Yield the name, the use and W0 of every weight of a known name, and why it cannot be fine-tuned."""
    some_train, unknown = any(p.requires_grad for p in model.parameters()), _unknown_uses(model)
    fused = {id(child) for m in model.modules() if isinstance(m, nn.TransformerEncoderLayer) for child in m.children()}
    for path, layer in model.named_modules():
        kind = None if isinstance(layer, FineTuned | DpsLayer) else kind_of(layer)
        if kind is not None and id(layer) in fused:  # torch's fast path takes plain tensors alone
            kind = dataclasses.replace(kind, guarded=False)
        for key in kind.weights if kind is not None else ():
            base = layer._parameters.get(key)
            if base is None and key != "weight":
                continue
            if base is None:
                yield path, Use(layer, key, kind), nn.Parameter(), _COMPUTED  # type: ignore[arg-type]
            else:
                why_shared = unknown.get(id(base))
                reason = kind.why_not(layer) or _why_not(base) or why_shared  # type: ignore[union-attr]
                if reason is None and some_train and not base.requires_grad:
                    reason = _FROZEN
                yield weight_name(path, key), Use(layer, key, kind), base, reason  # type: ignore[arg-type]


_FROZEN = "frozen (requires_grad is False) in a network that trains"
_COMPUTED = "its weight is computed from other parameters (weight norm, spectral norm or a pruning hook)"


def _why_not(base: nn.Parameter) -> str | None:
    """Return why a weight cannot be W0, or None if it can."""
    if nn.parameter.is_lazy(base):
        return "its shape is not known yet; run the network once on an example first"
    if base.is_meta:
        return "it is on the meta device, so there is no weight to fine-tune; load the network first"
    if type(base.data) is not Tensor:
        return f"its weight is a {type(base.data).__name__} (quantised, sharded or otherwise wrapped)"
    if not base.is_floating_point():
        return f"its weight is {base.dtype}; only real floating point weights are fine-tuned"
    if base.numel() == 0 or base.dim() < 2:
        return f"its weight has the shape {tuple(base.shape)}; a matrix with entries is needed"
    return None


def _unknown_uses(model: nn.Module) -> dict[int, str]:
    """Return why parameters cannot be fine-tuned of which a use is not known, by the id of the parameter.

    S would be missing where the same numbers are read under another name: a name that is no weight by `LAYER_KINDS`, or
    another parameter or buffer in the same memory, as a transposed view.
    """
    found, held = dict[int, str](), dict[int, tuple[str, Tensor]]()
    for path, layer in model.named_modules():
        kind = None if isinstance(layer, DpsLayer) else kind_of(layer)
        known = layer.presents.names if isinstance(layer, FineTuned) else kind.weights if kind is not None else ()
        for key, tensor in (layer._parameters | layer._buffers).items():
            if tensor is None:
                continue
            name = f"{path}.{key}" if path else key
            held.setdefault(id(tensor), (name, tensor))
            if key not in known:
                found[id(tensor)] = f"it is also {name!r}, which S would not reach; {_ADVICE}"
    for (name, tensor), (other, another) in overlaps(list(held.values())):
        found.setdefault(id(tensor), f"its memory is also that of {other!r}, which S would not reach")
        found.setdefault(id(another), f"its memory is also that of {name!r}, which S would not reach")
    return found


_ADVICE = "say which parameters are weights by dctps.LAYER_KINDS"


def _other_layers(model: nn.Module) -> Iterator[LeftDense]:
    """Yield the layers that have matrices which are no weights by `LAYER_KINDS`, or these matrices."""
    for path, layer in model.named_modules():
        kind = None if isinstance(layer, DpsLayer) else kind_of(layer)
        known = layer.presents.names if isinstance(layer, FineTuned) else kind.weights if kind is not None else ()
        matrices = [key for key, p in layer._parameters.items() if p is not None and p.dim() >= 2 and key not in known]
        if not matrices or isinstance(layer, DpsLayer):
            continue
        if present := [key for key in known if layer._parameters.get(key) is not None]:
            for key in matrices:
                yield LeftDense(
                    weight_name(path, key), f"a matrix beside {listed(present)}, which gets no S; {_ADVICE}"
                )
        elif kind is None:
            what = f"{type(layer).__name__} has no parameter `weight`, but {', '.join(matrices)}"
            yield LeftDense(path, f"{what}; {_ADVICE}")
        elif reason := kind.why_not(layer):
            yield LeftDense(path, reason)
