"""The forward code of a whole network as steps, found by torch.fx: what the kernels can compute one after the other.

A `Path` is a sparse convolution with the BatchNorm, the addition and the activation behind it. All its nodes are
computed where the last of them stands. So no node between them may change a tensor in place.
"""

import copy
import operator
from typing import Any, NamedTuple

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from dctps.nn.dps_layer import DpsLayer
from dctps.nn.followers import activation_of, adds, function_of, only_user
from dctps.nn.fused_norm import ACTIVATIONS as FUNCTIONS
from dctps.nn.fused_norm import ADDITIONS, ADDITIONS_IN_PLACE, FUSED, FusedBatchNorm
from dctps.nn.layers import DpsConv

Node = torch.fx.Node
NORMS = (*FUSED, *FUSED.values())  # classes of BatchNorm layers
SAME = nn.Identity, nn.Dropout, nn.Dropout2d, nn.Dropout3d  # modules whose output, in evaluation, is their input
POOLS = nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d
OTHERS = nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ReLU, nn.ReLU6, nn.Flatten
_CALLED = F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, torch.flatten, torch.mean, torch.cat
_METHODS = "mean", "flatten", "view", "reshape"
KNOWN = {*FUNCTIONS, *ADDITIONS, *ADDITIONS_IN_PLACE, operator.add, operator.iadd, *_CALLED}
KNOWN |= {getattr(Tensor, name) for name in _METHODS}


class Path(NamedTuple):
    """A sparse convolution and what follows it."""

    nodes: list[Node]
    layer: DpsConv
    norm: nn.Module | None
    residual: Node | None
    activation: str  # "none", "relu" or "relu6"


class Trace(NamedTuple):
    """The forward code of a network."""

    graph: torch.fx.Graph
    layers: dict[str, nn.Module]  # by the names that nodes call them
    owners: list[nn.Module]  # the modules whose forward code was traced
    paths: dict[Node, Path]  # by the last node


class _Proxy(torch.fx.Proxy):
    """A stand-in for a tensor that shows `y += z` as what it is; torch.fx shows `y = y + z`, a new tensor."""


def _in_place(function: Any) -> Any:
    return lambda self, other: self.tracer.create_proxy("call_function", function, (self, other), {})


_OPERATORS = "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"
for _name in _OPERATORS:
    setattr(_Proxy, f"__i{_name}__", _in_place(getattr(operator, f"__i{_name}__")))


class _Tracer(torch.fx.Tracer):
    """A tracer that enters all modules but the layers of torch and ours."""

    proxy_buffer_attributes = True

    def proxy(self, node: Node) -> torch.fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_layer(m)


def is_layer(module: nn.Module) -> bool:
    """Return whether a module is one step of a trace."""
    ours = isinstance(module, DpsLayer | FusedBatchNorm)
    return ours or (type(module).__module__.startswith("torch.nn") and not isinstance(module, nn.Sequential))


def trace(net: nn.Module) -> Trace | str:
    """Return the forward code of a network in evaluation, or why it cannot be known beforehand."""
    layers = [m for m in net.modules() if is_layer(m)]
    owners = [m for m in net.modules() if not is_layer(m)]
    if any("forward" in vars(m) for m in layers):
        return "the forward method of a layer was replaced"
    own = [t for m in owners for kind in (m._parameters, m._buffers) for t in kind.values()]
    try:
        shell = copy.deepcopy(
            net, {id(kept): kept for kept in (*layers, *own)}
        )  # the forward code sets attributes here
        graph = _Tracer().trace(shell)
    except Exception as error:
        return f"torch.fx cannot trace it: {error}"
    named = dict(shell.named_modules())
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    if len(inputs) != 1:
        return f"it takes {len(inputs)} inputs"
    strange = [node for node in graph.nodes if not _is_known(node, named)]
    if strange:
        return f"{strange[0].format_node()} is not among the operations that are known"
    return Trace(graph, named, owners, _paths(graph, named))


def _is_known(node: Node, layers: dict[str, nn.Module]) -> bool:
    """Return whether it is known what a node does: it computes a new tensor or a view, or changes its first input."""
    if node.op == "call_module":
        layer = layers[str(node.target)]
        return isinstance(layer, DpsLayer) or type(layer) in (*NORMS, *SAME, *POOLS, *OTHERS)
    if node.op == "output":
        return isinstance(node.args[0], Node)
    return node.op == "placeholder" or (node.op != "get_attr" and function_of(node) in KNOWN)


def changes_input(node: Node, layers: dict[str, nn.Module]) -> bool:
    """Return whether a known node changes its input in place."""
    if node.op == "call_module":
        return bool(getattr(layers[str(node.target)], "inplace", False))
    in_place = {*ADDITIONS_IN_PLACE, operator.iadd, F.relu_, torch.relu_, Tensor.relu_}
    return function_of(node) in in_place or bool(node.kwargs.get("inplace"))


def _paths(graph: torch.fx.Graph, layers: dict[str, nn.Module]) -> dict[Node, Path]:
    taken: set[Node] = set()
    found = {}
    for node in graph.nodes:
        if node.op == "call_module" and isinstance(layers[str(node.target)], DpsConv):
            path = _path(node, layers, taken)
            if path is not None:
                taken |= set(path.nodes)
                found[path.nodes[-1]] = path
    return found


def _path(node: Node, layers: dict[str, nn.Module], taken: set[Node]) -> Path | None:
    """Return the path that begins with a convolution, without the nodes that belong to another one."""
    layer = layers[str(node.target)]
    assert isinstance(layer, DpsConv)
    nodes: list[Node] = [node]
    norm, residual, activation = None, None, "none"
    user = _free_user(node, taken)
    if user is not None and user.op == "call_module" and type(layers[str(user.target)]) in NORMS:
        norm = layers[str(user.target)]
        nodes.append(user)
        user = _free_user(user, taken)
    if user is not None and adds(user, nodes[-1]):
        residual = next(arg for arg in user.all_input_nodes if arg is not nodes[-1])
        nodes.append(user)
        user = _free_user(user, taken)
    if user is not None and (kind := activation_of(user, layers)) is not None:
        activation = kind
        nodes.append(user)
    path = Path(nodes, layer, norm, residual, activation)
    return path if len(node.args) == 1 and not node.kwargs and _is_quiet(nodes, layers) else None


def _free_user(node: Node, taken: set[Node]) -> Node | None:
    user = only_user(node)
    return None if user in taken else user


def _is_quiet(nodes: list[Node], layers: dict[str, nn.Module]) -> bool:
    """Return whether no other node between the first and the last one changes a tensor that they may read.

    What another path changes in place is its own output.
    """
    between, node = [], nodes[0].next
    while node is not nodes[-1] and len(nodes) > 1:
        between.append(node)
        node = node.next
    return not any(changes_input(other, layers) and other not in nodes for other in between)


def call(node: Node, layers: dict[str, nn.Module]) -> Any:
    """Return the function that a node calls."""
    if node.op == "call_module":
        return layers[str(node.target)]
    return function_of(node)
