"""What the program of a network depends on, beside the numbers in its tensors: modules, attributes, hooks and tensors.

All of it is compared before each run, so it is compared in few operations of Python.
"""

import collections
import copy
import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from dctps.nn.dps_layer import DpsLayer
from dctps.nn.paths import NORMS, is_layer

_OWN_HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
_EVERYWHERE = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)
_HELD = dict, collections.OrderedDict, list, set  # attributes of these types are compared by what is in them
_settings: dict[str, Callable[[Any], Any]] = {
    "layer": operator.attrgetter("training", "forward", "geometry", "offset", "backend", "observer"),
    "norm": operator.attrgetter("training", "forward", "eps", "running_mean", "running_var"),
    "other": operator.attrgetter("training", "forward"),
}


class Watch:
    """The modules of a network as they are now."""

    def __init__(self, net: nn.Module) -> None:
        modules = list(net.modules())
        layers = [m for m in modules if is_layer(m)]
        self._hooks = [getattr(m, name) for m in modules for name in _OWN_HOOKS]
        self._hooks += [getattr(module_hooks, name) for name in _EVERYWHERE]
        self._owners = [(vars(m), _frozen(vars(m))) for m in modules if not is_layer(m)]
        self._layers = [(_settings[_kind(m)], m) for m in layers]
        self._known = [get(m) for get, m in self._layers]
        self._places = [place for m in layers if _kind(m) != "other" for place in _places(m)]
        self._tensors = [held[name] for held, name in self._places]
        self._kept = [tensor for tensor in self._tensors if isinstance(tensor, Tensor)]
        self._pointers = [tensor.data_ptr() for tensor in self._kept]

    def has_hooks(self) -> bool:
        """Return whether somebody looks at the layers, or at the modules around them."""
        return any(self._hooks)

    def holds(self) -> bool:
        """Return whether modules, attributes and tensors are still the same; numbers in tensors may have changed."""
        try:
            found = [held[name] for held, name in self._places]
            if not all(map(operator.is_, found, self._tensors)):
                return False
            if [tensor.data_ptr() for tensor in self._kept] != self._pointers:
                return False
            return self._known == [get(m) for get, m in self._layers] and all(now == then for now, then in self._owners)
        except (AttributeError, KeyError, RuntimeError, ValueError):  # a name is gone, or a comparison says nothing
            return False


def _kind(module: nn.Module) -> str:
    return "layer" if isinstance(module, DpsLayer) else "norm" if type(module) in NORMS else "other"


def _places(module: nn.Module) -> list[tuple[dict[str, Any], str]]:
    """Return where a layer holds its tensors."""
    own: list[tuple[dict[str, Any], str]] = [(module._parameters, name) for name in module._parameters]
    own += [(module._buffers, name) for name in module._buffers if name != "num_batches_tracked"]
    return [*own, (vars(module), "_positions")] if isinstance(module, DpsLayer) else own


def _frozen(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: copy.copy(value) if type(value) in _HELD else value for name, value in attributes.items()}
