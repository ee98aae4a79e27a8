"""Layers whose weights are W0 + S: the layers themselves, with their own parameters, in a class that knows S.

A fine-tuned layer is the object that it was before. Its class becomes a subclass of its former class, and it has a
child `sparse_part` that maps the name of each weight to its S. W0 is the parameter that the layer had, frozen and under
its old name in the state. To read the weight (`layer.weight`) is to build W0 + S. So every forward method that reads it
computes with W0 + S, and the kinds of `layer_kinds.py` compute with W0 and S apart.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from dctps.nn.built_weight import BuiltWeight, refuse_changes
from dctps.nn.layer_kinds import LayerKind, kind_of
from dctps.nn.sparse_part import SparsePart

_ADVICE = "it is W0 + S, where W0 is frozen; change layer.sparse_part['weight'].values, or dctps.densify the network"
_LOADING = "_dctps_loading"  # the attribute of a layer that loads a state

PART = "sparse_part"  # the name of the child of a fine-tuned layer that holds S


class Parts(nn.ModuleDict):
    """S of each weight of a layer, by the name of the weight.

    Of a weight that several layers use, the first layer has S as a child, and the others refer to it. So a state has
    each tensor under one name, and code that ties weights or writes files finds no tensors that it does not know.
    """

    def __init__(self, own: Mapping[str, SparsePart], shared: Mapping[str, SparsePart]) -> None:
        super().__init__(own)
        self.shared = dict(shared)

    def __getitem__(self, name: str) -> nn.Module:
        return self.shared[name] if name in self.shared else super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._modules, *self.shared])

    def __len__(self) -> int:
        return len(self._modules) + len(self.shared)

    def __contains__(self, name: object) -> bool:
        return name in self._modules or name in self.shared

    def keys(self) -> Any:
        """Return the names of the weights."""
        return dict.fromkeys(self).keys()

    def items(self) -> Any:
        """Return the names of the weights, each with its S."""
        return {name: self[name] for name in self}.items()

    def values(self) -> Any:
        """Return S of each weight."""
        return {name: self[name] for name in self}.values()

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        # States of earlier versions have a shared S once for each layer.
        known = {key: value for key, value in state_dict.items() if not self._is_repeated(key, prefix)}
        super()._load_from_state_dict(known, prefix, *rest)

    def _is_repeated(self, key: str, prefix: str) -> bool:
        return any(key.startswith(f"{prefix}{name}.") for name in self.shared)


class FineTuned(nn.Module):
    """The base of all fine-tuned layers; their other base is the class that the layer had before."""

    sparse_part: Parts
    plain_class: type[nn.Module]
    presents: "Presented"

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Register a parameter; a new one in the place of W0 is refused, because the weight would still be W0 + S."""
        if name in self.presents.names and not self.__dict__.get(_LOADING):
            if param is self._parameters[name] or getattr(param, "part", None) is self.sparse_part[name]:
                return  # it is what the layer has: a weight that is tied again
            raise RuntimeError(f"{name!r} of this {self.plain_class.__name__} cannot be replaced: {_ADVICE}")
        super().register_parameter(name, param)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self.__dict__[_LOADING] = True  # load_state_dict(assign=True) replaces W0 by the W0 of the state
        try:
            super()._load_from_state_dict(*arguments)
        finally:
            del self.__dict__[_LOADING]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class is made when it is needed, so a pickle names the one that the layer had before.
        apart = self.presents.forward is not None
        named = self.plain_class, self.presents.names, apart, self.presents.guarded
        return _unpickled, named, self.__getstate__()  # type: ignore[no-untyped-call]


class Presented(NamedTuple):
    """What a fine-tuned class has beside its plain class.

    names: the weights that are W0 + S.
    forward: the forward method that takes W0 and S apart, or None where that of the plain class reads W0 + S.
    guarded: whether W0 + S refuses changes.
    """

    names: tuple[str, ...]
    forward: Callable[..., Any] | None
    guarded: bool


def _unpickled(
    plain_class: type[nn.Module], names: tuple[str, ...], apart: bool, guarded: bool | None = None
) -> nn.Module:
    layer = plain_class.__new__(plain_class)
    layer.__dict__["_parameters"] = {}  # the attributes come later
    kind = kind_of(layer) or LayerKind()
    guarded = kind.guarded if guarded is None else guarded  # files of earlier versions do not say it
    layer.__class__ = _fine_tuned_class(plain_class, Presented(names, kind.forward if apart else None, guarded))
    return layer


_classes: dict[tuple[type[nn.Module], Presented], type[nn.Module]] = {}


def _fine_tuned_class(plain_class: type[nn.Module], presents: Presented) -> type[nn.Module]:
    """Return the subclass of a class that presents W0 + S; it is made once."""
    if (plain_class, presents) not in _classes:
        read = functools.partial(_presented, guarded=presents.guarded)
        members: dict[str, Any] = {name: property(functools.partial(read, name=name)) for name in presents.names}
        members |= {"plain_class": plain_class, "presents": presents, "__module__": __name__}
        members |= {} if presents.forward is None else {"forward": presents.forward}
        made = type(f"FineTuned{plain_class.__name__}", (FineTuned, plain_class), members)
        _classes[plain_class, presents] = made
    return _classes[plain_class, presents]


def _presented(layer: FineTuned, *, name: str, guarded: bool) -> Tensor:
    """Return W0 + S, built anew at each access."""
    part, base = layer.sparse_part[name], layer._parameters[name]
    assert isinstance(part, SparsePart)
    assert base is not None
    weight = refuse_changes(part.added_to(base), _ADVICE) if guarded else part.added_to(base)
    if part.is_shared and isinstance(weight, BuiltWeight):
        weight.part, weight._is_param = part, True  # so transformers' tie_weights hands it from layer to layer
    return weight


def fine_tuned_class(cls: type[nn.Module], names: tuple[str, ...], kind: LayerKind, apart: bool) -> type[nn.Module]:
    """Return the subclass of a class whose weights of these names are W0 + S; TypeError if the class allows none.

    apart: whether it may take W0 and S apart, if its kind knows how; else it reads W0 + S.
    """
    return _fine_tuned_class(cls, Presented(names, kind.forward if apart else None, kind.guarded))


def attach_parts(layer: nn.Module, parts: Parts, cls: type[nn.Module]) -> None:
    """Make a plain layer a fine-tuned one of this class, in place; its weights of these names get the parts."""
    layer.sparse_part = parts.train(layer.training)
    layer.__class__ = cls


def detach_parts(layer: FineTuned) -> None:
    """Make a fine-tuned layer the plain one that it was."""
    layer.__class__ = layer.plain_class  # type: ignore[assignment]
    del layer.sparse_part


# --- the weights of a network -----------------------------------------------------------------------------------------


class TunedWeight(NamedTuple):
    """A fine-tuned weight: the layer that has it, its name there, W0 and S."""

    layer: FineTuned
    key: str
    base: nn.Parameter
    part: SparsePart


def weight_name(layer: str, key: str) -> str:
    """Return the name of a weight: that of its layer, and the name of the parameter behind it unless it is `weight`."""
    return layer if key == "weight" else f"{layer}.{key}" if layer else key


def tuned_weights(model: nn.Module) -> dict[str, TunedWeight]:
    """Return the fine-tuned weights of a network by name; one that several layers share is there once."""
    return {name: weight for name, weight in all_uses(model) if name is not None}


def all_uses(model: nn.Module) -> Iterator[tuple[str | None, TunedWeight]]:
    """Yield each use of a fine-tuned weight, with its name; the further uses of a shared weight have the name None."""
    seen = set[int]()
    for path, layer in model.named_modules():
        for key, part in layer.sparse_part.items() if isinstance(layer, FineTuned) else ():
            base = layer._parameters[key]
            assert isinstance(part, SparsePart)
            assert base is not None
            yield (None if id(part) in seen else weight_name(path, key)), TunedWeight(layer, key, base, part)
            seen.add(id(part))


def is_repeated(model: nn.Module, key: str) -> bool:
    """Return whether a name in a state is one that earlier versions gave to an S beside its first."""
    path, is_part, rest = f".{key}".rpartition(f".{PART}.")
    try:
        layer = model.get_submodule(path[1:])
    except AttributeError:
        return False
    return bool(is_part) and isinstance(layer, FineTuned) and layer.sparse_part._is_repeated(rest, "")
