"""What the forward code of a module does with its layers, as torch.fx shows it; the code is traced and never run.

The module that calls a layer is traced, with every layer inside as one step. Modules whose code depends on their input
cannot be traced; for these there is no answer.
"""

import copy
from collections.abc import Iterator

import torch.fx
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

NORMALISATIONS = _NormBase, nn.GroupNorm, nn.LayerNorm  # layers that rescale their input, whatever its size


class Tracer(torch.fx.Tracer):
    """A tracer that enters no layer of the module that it traces, and computes with no buffer."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def twin(owner: nn.Module, training: bool) -> nn.Module:
    """Return a copy of a module without its layers: what the forward code sets is set there."""
    copied = copy.copy(owner)
    for kind in ("_modules", "_buffers", "_parameters"):
        copied.__dict__[kind] = dict(owner.__dict__[kind])
    copied.training = training
    return copied


def only_user(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the node that uses a node, if it is one only and uses it once."""
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].all_input_nodes.count(node) == 1 else None


def normalised_layers(model: nn.Module) -> set[nn.Module]:
    """Return the layers whose output goes into a normalisation and nowhere else, in every call that can be traced."""
    behind: dict[nn.Module, list[bool]] = {}
    for owner in model.modules():
        for layer, is_normalised in _calls(owner):
            behind.setdefault(layer, []).append(is_normalised)
    return {layer for layer, found in behind.items() if all(found)}


def _calls(owner: nn.Module) -> Iterator[tuple[nn.Module, bool]]:
    """Yield the calls of layers in the forward code of a module, and whether a normalisation takes the output."""
    if not any(isinstance(child, NORMALISATIONS) for child in owner.children()):
        yield from ((child, False) for child in owner.children())
        return
    layers = dict(owner.named_modules())
    try:
        graph = Tracer().trace(twin(owner, training=True))
    except Exception:  # forward code that depends on its input
        yield from ((child, False) for child in owner.children())
        return
    for node in graph.nodes:
        if node.op == "call_module":
            user = only_user(node)
            is_layer = user is not None and user.op == "call_module"
            yield layers[str(node.target)], is_layer and isinstance(layers[str(user.target)], NORMALISATIONS)  # type: ignore[union-attr]
