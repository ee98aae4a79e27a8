"""What the forward code of a module does with its layers, as torch.fx shows it; the code is traced and never run.

The module that calls a layer is traced, with every layer inside as one step. Modules whose code depends on their input
cannot be traced; for these there is no answer.
"""

import copy
from collections.abc import Iterator

import torch.fx
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from dctps.nn.followers import only_user

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


def rescaled_layers(model: nn.Module) -> set[nn.Module]:
    """Return the layers whose scale the network sets elsewhere, in every call that can be traced.

    These are the layers whose output goes into a normalisation and nowhere else. If there is any, the layer that gives
    the output of the whole network is one, too: the scales of the normalisations before it set the size of its output.
    """
    found: dict[nn.Module, list[str]] = {}
    for owner in model.modules():
        for layer, user in _uses(owner) if owner._modules else ():
            found.setdefault(layer, []).append(user if user != "output" or owner is model else "")
    normalised = {layer for layer, users in found.items() if set(users) == {"norm"}}
    last = {layer for layer, users in found.items() if users == ["output"]}
    return normalised | last if normalised else set()


def _uses(owner: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield the layers that the forward code of a module calls, and what takes the output: "norm", "output" or ""."""
    layers = dict(owner.named_modules())
    try:
        graph = Tracer().trace(twin(owner, training=True))
    except Exception:  # forward code that depends on its input
        yield from ((child, "") for child in owner.children())
        return
    for node in graph.nodes:
        if node.op == "call_module":
            yield layers[str(node.target)], _kind(only_user(node), layers)


def _kind(user: torch.fx.Node | None, layers: dict[str, nn.Module]) -> str:
    """Return what a node is that uses the output of a layer."""
    if user is None or user.op not in ("call_module", "output"):
        return ""
    if user.op == "output":
        return "output" if len(user.all_input_nodes) == 1 else ""
    return "norm" if isinstance(layers[str(user.target)], NORMALISATIONS) else ""
