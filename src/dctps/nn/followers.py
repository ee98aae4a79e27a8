"""What the forward code of a network does with the output of a layer, as a trace of torch.fx shows it."""

import operator
from typing import Any

import torch.fx
from torch import nn

from dctps.nn.fused_norm import ACTIVATIONS, ADDITIONS, ADDITIONS_IN_PLACE


def follower(node: torch.fx.Node, layers: dict[str, nn.Module]) -> tuple[str, list[torch.fx.Node]]:
    """Return what is done with the output of a node, and by which nodes: an activation, an addition, both, or "" for
    anything else.
    """
    user = only_user(node)
    if user is None:
        return "", []
    if (activation := activation_of(user, layers)) is not None:
        return activation, [user]
    if not adds(user, node):
        return "", []
    after = only_user(user)
    activation = None if after is None else activation_of(after, layers)
    return ("add", [user]) if after is None or activation is None else (f"add and {activation}", [user, after])


def only_user(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the node that uses a node, if it is one only and uses it once."""
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].all_input_nodes.count(node) == 1 else None


def activation_of(node: torch.fx.Node, layers: dict[str, nn.Module]) -> str | None:
    if node.op == "call_module":
        kinds: dict[type, str] = {nn.ReLU: "relu", nn.ReLU6: "relu6"}
        return kinds.get(type(layers[str(node.target)]))
    if set(node.kwargs) - {"inplace"} or len(node.args) != 1:
        return None
    return ACTIVATIONS.get(function_of(node))


def adds(node: torch.fx.Node, term: torch.fx.Node) -> bool:
    """Return whether a node adds something of a tensor's kind to `term`."""
    if len(node.args) != 2 or node.kwargs or not all(isinstance(arg, torch.fx.Node) for arg in node.args):
        return False
    in_place = node.target is operator.iadd or function_of(node) in ADDITIONS_IN_PLACE
    if in_place:
        return node.args[0] is term
    return node.target is operator.add or function_of(node) in ADDITIONS


def function_of(node: torch.fx.Node) -> Any:
    """Return the function that a node calls; methods of tensors are functions of torch.Tensor."""
    return getattr(torch.Tensor, str(node.target), None) if node.op == "call_method" else node.target
