"""Layers that read weights W = alpha D + S which are built in each forward pass: attention, transposed convolutions ...

Such a layer is the object that it was. Its class becomes a subclass of its former class, without the weight among its
parameters, and its child `sparse_part` maps names to the parts that build it. To read the weight (`layer.weight`) is to
build it, so every forward method that reads it computes with alpha D + S, and autograd takes the gradients of values
and alpha from that of the weight.

A weight may consist of several matrices that are stacked, as the three projections of attention. Each has a part.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dctps.core.geometry import Geometry
from dctps.core.offsets import OffsetLike
from dctps.core.support import Support
from dctps.nn.built_weight import refuse_changes
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.fine_tuned import weight_name
from dctps.ops.functional import AUTO

Parts = tuple[tuple[str, tuple[str, ...]], ...]  # the name of each weight, with the names of its parts
PART = ".sparse_part."  # stands in the path of a part between its layer and its name


class BuiltPart(DpsLayer):
    """alpha D + S as the weight of a layer, or a block of its rows, that the layer reads and does not call."""

    shows_gradient = False

    def __init__(
        self,
        shape: tuple[int, ...],
        *,
        support: Support,
        offset: OffsetLike,
        alpha: float = 1.0,
        train_alpha: bool = True,
        seed: int = 0,
        backend: str = AUTO,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._build(
            Geometry.of_shape(shape),
            bias=False,
            density=None,
            nnz=None,
            support=support,
            offset=offset,
            alpha=alpha,
            train_alpha=train_alpha,
            seed=seed,
            backend=backend,
            device=device,
            dtype=dtype,
        )

    def built(self) -> Tensor:
        """Return alpha D + S; raise RuntimeError if the values belong to other positions."""
        self._check_positions()
        return self.dense_weight()

    def _arguments(self) -> str:
        return " x ".join(map(str, self.geometry.weight_shape))


class BuiltLayer(nn.Module):
    """The base of all layers that read built weights; their other base is the class that the layer had before."""

    sparse_part: nn.ModuleDict
    plain_class: type[nn.Module]
    parts: Parts
    guarded: bool

    def part(self, name: str) -> BuiltPart:
        """Return the part of this name."""
        part = self.sparse_part[name]
        assert isinstance(part, BuiltPart)
        return part

    def __setattr__(self, name: str, value: Any) -> None:
        if name in dict(self.parts):
            raise AttributeError(f"{name} of {self.plain_class.__name__} cannot be replaced, because {_ADVICE}")
        super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class is made when it is needed, so a pickle names the one that the layer had before.
        return _unpickled, (self.plain_class, self.parts, self.guarded), self.__getstate__()  # type: ignore[no-untyped-call]


def _unpickled(plain_class: type[nn.Module], parts: Parts, guarded: bool) -> nn.Module:
    built = _built_class(plain_class, parts, guarded)
    return built.__new__(built)


_classes: dict[tuple[type[nn.Module], Parts, bool], type[nn.Module]] = {}


def _built_class(plain_class: type[nn.Module], parts: Parts, guarded: bool) -> type[nn.Module]:
    """Return the subclass of a class that presents built weights; it is made once."""
    if (key := (plain_class, parts, guarded)) in _classes:
        return _classes[key]
    members: dict[str, Any] = {
        name: property(functools.partial(_presented, names=names, guarded=guarded)) for name, names in parts
    }
    members |= {"plain_class": plain_class, "parts": parts, "guarded": guarded, "__module__": __name__}
    _classes[key] = type(f"Built{plain_class.__name__}", (BuiltLayer, plain_class), members)
    return _classes[key]


_ADVICE = "it is alpha D + S; change layer.sparse_part['weight'].values, or dctps.densify the network"


def _presented(layer: BuiltLayer, *, names: tuple[str, ...], guarded: bool) -> Tensor:
    """Return a weight, built anew at each access."""
    weight = _stacked(layer, names)
    return refuse_changes(weight, _ADVICE) if guarded else weight


def _stacked(layer: BuiltLayer, names: tuple[str, ...]) -> Tensor:
    built = [layer.part(name).built() for name in names]
    return built[0] if len(built) == 1 else torch.cat(built)


def attach_built(layer: nn.Module, weights: Mapping[str, Mapping[str, BuiltPart]], guarded: bool) -> None:
    """Let a plain layer read these weights, given by name as their parts by name, in place of its own, in place."""
    parts = {name: part for own in weights.values() for name, part in own.items()}
    for name in weights:
        layer._parameters[name] = None  # it keeps its place among the parameters
    layer.sparse_part = nn.ModuleDict(parts).train(layer.training)
    names = tuple((name, tuple(own)) for name, own in weights.items())
    layer.__class__ = _built_class(type(layer), names, guarded)


def built_parameters(layer: BuiltLayer) -> dict[str, nn.Parameter]:
    """Return the weights alpha D + S of a layer as parameters of the plain layer, by name."""
    return {name: _as_parameter(layer, names) for name, names in layer.parts}


def detach_built(layer: BuiltLayer, weights: Mapping[str, nn.Parameter]) -> None:
    """Make a layer the plain one that it was, with these weights."""
    layer.__class__ = layer.plain_class  # type: ignore[assignment]
    del layer.sparse_part
    layer._parameters.update(weights)


@torch.no_grad()
def _as_parameter(layer: BuiltLayer, names: tuple[str, ...]) -> nn.Parameter:
    trains = any(layer.part(name).values.requires_grad for name in names)
    return nn.Parameter(_stacked(layer, names), requires_grad=trains)


def built_parts(model: nn.Module) -> Iterator[tuple[str, BuiltPart]]:
    """Yield the parts of a network with their names (`fine_tuned.weight_name`)."""
    for path, layer in model.named_modules():
        for key in layer.sparse_part if isinstance(layer, BuiltLayer) else ():
            yield weight_name(path, key), layer.part(key)
