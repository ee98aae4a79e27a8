"""Layers whose weights are W0 + S: the layers themselves, with their own parameters, in a class that knows S.

A fine-tuned layer is the object that it was before. Its class becomes a subclass of its former class, and it has a
child `sparse_part` that maps the name of each weight to its S. W0 is the parameter that the layer had, frozen and under
its old name in the state. To read the weight (`layer.weight`) is to build W0 + S. So every forward method that reads it
computes with W0 + S, and the kinds of `layer_kinds.py` compute with W0 and S apart.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

from dctps.nn.built_weight import refuse_changes
from dctps.nn.layer_kinds import LayerKind, kind_of
from dctps.nn.sparse_part import SparsePart

_ADVICE = "it is W0 + S, where W0 is frozen; change layer.sparse_part['weight'].values, or dctps.densify the network"


PART = "sparse_part"  # the name of the child of a fine-tuned layer that holds S


class FineTuned(nn.Module):
    """The base of all fine-tuned layers; their other base is the class that the layer had before."""

    sparse_part: nn.ModuleDict
    plain_class: type[nn.Module]
    presents: "Presented"

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class is made when it is needed, so a pickle names the one that the layer had before.
        apart = self.presents.forward is not None
        return _unpickled, (self.plain_class, self.presents.names, apart), self.__getstate__()  # type: ignore[no-untyped-call]


class Presented(NamedTuple):
    """What a fine-tuned class has beside its plain class.

    names: the weights that are W0 + S.
    forward: the forward method that takes W0 and S apart, or None where that of the plain class reads W0 + S.
    guarded: whether W0 + S refuses changes.
    """

    names: tuple[str, ...]
    forward: Callable[..., Any] | None
    guarded: bool


def _unpickled(plain_class: type[nn.Module], names: tuple[str, ...], apart: bool) -> nn.Module:
    layer = plain_class.__new__(plain_class)
    layer.__dict__["_parameters"] = {}  # the attributes come later
    kind = kind_of(layer) or LayerKind()
    layer.__class__ = _fine_tuned_class(plain_class, Presented(names, kind.forward if apart else None, kind.guarded))
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
    part, base = layer._modules["sparse_part"]._modules[name], layer._parameters[name]  # type: ignore[union-attr]
    assert isinstance(part, SparsePart)
    assert base is not None
    weight = part.added_to(base)
    return refuse_changes(weight, _ADVICE) if guarded else weight


def attach_parts(layer: nn.Module, parts: dict[str, SparsePart], kind: LayerKind, apart: bool) -> None:
    """Make a plain layer of this kind a fine-tuned one, in place; its weights of these names get the parts.

    apart: whether it may take W0 and S apart, if its kind knows how; else it reads W0 + S.
    """
    layer.sparse_part = nn.ModuleDict(parts).train(layer.training)
    presents = Presented(tuple(parts), kind.forward if apart else None, kind.guarded)
    layer.__class__ = _fine_tuned_class(type(layer), presents)


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
