"""Making a `Program`: a pass that computes as usual shows the shapes, then steps and places follow.

`record` computes the forward code, node by node, and notes what each result looks like and which route each layer
takes. `make` then knows which layers the kernels can compute in chains.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx.node import map_arg
from torch.nn.modules.batchnorm import _BatchNorm

from dctps.nn.layers import DpsConv
from dctps.nn.lazy import computed
from dctps.nn.paths import SAME, Node, Path, Trace, call
from dctps.nn.program import CallPart, ChainPart, Program, Room
from dctps.ops.eager import PLAIN
from dctps.ops.native.chain import Behind, Placed, can_chain, chain, layer_step, pool_step
from dctps.ops.route import Route


class Seen(NamedTuple):
    """What the result of a node looks like."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


class Record(NamedTuple):
    """What a pass has shown."""

    seen: dict[Node, Seen]  # nodes whose result is a plain tensor with elements, on the CPU
    routes: dict[Node, Route]  # of the sparse convolutions that chains can compute


def record(trace: Trace, x: Tensor) -> tuple[Record, Tensor]:
    """Compute the forward code on x; return what was seen, and the output."""
    made, result = Record({}, {}), x
    found: dict[Node, Any] = {}
    inner = {node for path in trace.paths.values() for node in path.nodes} - set(trace.paths)
    for node in trace.graph.nodes:
        if node.op == "output":
            result = computed(found[node.args[0]])
            continue
        if node.op == "placeholder":
            value = x
        else:
            args, kwargs = map_arg((node.args, node.kwargs), found.__getitem__)
            function = call(node, trace.layers)
            if isinstance(function, DpsConv) and _is_plain(source := computed(args[0])):
                args = (source, *args[1:])
                if can_chain(route := function.route(source)):
                    made.routes[node] = route
            value = function(*args, **kwargs)
        found[node] = value if node in inner else computed(value)  # what waits inside of a path is computed at its end
        if _is_plain(found[node]):
            made.seen[node] = Seen(tuple(found[node].shape), found[node].stride(), found[node].dtype)
        for used in node.all_input_nodes:
            if list(used.users)[-1] is node:
                del found[used]
    return made, result


def _is_plain(value: Any) -> bool:
    return type(value) is Tensor and value.is_cpu and value.numel() > 0 and value.dim() <= 5


class _Step(NamedTuple):
    """A node that the kernels compute: a path, or the window and the step of a max-pool."""

    node: Node
    reads: list[Node]
    path: Path | None
    pool: tuple[int, int] | None


class Maker:
    """Makes a program from what a pass has shown."""

    def __init__(self, trace: Trace, shown: Record, dtype: torch.dtype, threads: int) -> None:
        self.trace, self.shown, self.dtype, self.threads = trace, shown, dtype, threads
        self.room = Room(dtype.itemsize)
        self.numbers: dict[Node, int] = {}  # of the tensors of chains
        self.same: dict[Node, Node] = {}  # nodes whose result is that of another one
        self.items: list[_Step | CallPart] = []
        self.native: list[Path] = []  # the paths that chains compute
        self.layouts: dict[Node, tuple[int, ...]] = {}  # strides of tensors of chains that differ from those shown

    def make(self) -> Program | None:
        """Return the program, or None where there is nothing for a chain."""
        nodes = list(self.trace.graph.nodes)
        source = next(node for node in nodes if node.op == "placeholder")
        result = next(node for node in nodes if node.op == "output").args[0]
        skipped = self._find_steps(nodes)
        for node in nodes:
            if node.op not in ("placeholder", "output") and node not in skipped:
                self._add(node)
        assert isinstance(result, Node)
        parts = self._parts(self._source(result)) if self.native else []
        self.items.clear()
        return (
            Program(parts, self.room.offsets, self.room.size, self.dtype, source, self._source(result))
            if parts
            else None
        )

    def _source(self, node: Node) -> Node:
        return self.same.get(node, node)

    def _find_steps(self, nodes: list[Node]) -> set[Node]:
        """Find the paths that chains compute; returns their nodes but the last ones."""
        self.native = [path for path in self.trace.paths.values() if self._fits(path)]
        return {node for path in self.native for node in path.nodes[:-1]}

    def _fits(self, path: Path) -> bool:
        seen, first, last = self.shown.seen, path.nodes[0], path.nodes[-1]
        x, y = seen.get(first.args[0]), seen.get(last)  # type: ignore[arg-type]
        if first not in self.shown.routes or x is None or y is None or not x.dtype == y.dtype == self.dtype:
            return False
        if path.residual is not None and seen.get(path.residual) != y:
            return False
        return tensors_of(path.layer, self.dtype) is not None and _norm_fits(path.norm, self.dtype)

    def _add(self, node: Node) -> None:
        """Add a node as a step of a chain, or as a call of torch's."""
        layer = self.trace.layers.get(str(node.target)) if node.op == "call_module" else None
        path = next((path for path in self.native if path.nodes[-1] is node), None)
        if type(layer) in SAME:
            self.same[node] = self._source(node.args[0])  # type: ignore[arg-type]
        elif path is not None:
            added = [] if path.residual is None else [path.residual]
            reads = [self._source(one) for one in (path.nodes[0].args[0], *added)]  # type: ignore[arg-type]
            self.items.append(_Step(node, reads, path, None))
        elif self._pools(node, layer):
            self.items.append(_Step(node, [self._source(node.args[0])], None, pool_size(layer)))  # type: ignore[arg-type]
        else:
            args, kwargs = map_arg((node.args, node.kwargs), self._source)
            self.items.append(CallPart(call(node, self.trace.layers), args, kwargs, node))

    def _pools(self, node: Node, layer: nn.Module | None) -> bool:
        seen, size = self.shown.seen, pool_size(layer)
        if size is None or node not in seen or len(node.args) != 1 or node.args[0] not in seen:
            return False
        x, y = seen[node.args[0]], seen[node]  # type: ignore[index]
        return len(x.shape) == 4 and x.dtype == y.dtype == self.dtype

    # --- places and chains

    def _parts(self, result: Node) -> list[ChainPart | CallPart]:
        readers: dict[Node, list[int]] = {}  # the items that read a result
        for i, item in enumerate(self.items):
            for node in item.reads if isinstance(item, _Step) else _nodes_in(item):
                readers.setdefault(node, []).append(i)
        outside = {n for n, own in readers.items() if any(isinstance(self.items[i], CallPart) for i in own)} | {result}
        self._choose_layouts(outside)
        parts: list[ChainPart | CallPart] = []
        group: list[tuple[Any, _Step]] = []
        for i, item in enumerate(self.items):
            if isinstance(item, CallPart):
                parts += self._chain_part(group, outside)
                parts.append(item)
                group = []
                continue
            group.append((self._step(item, outside), item))
            for node in item.reads:
                if readers[node][-1] == i and node not in outside:
                    self.room.release(self.numbers[node])
        return parts + self._chain_part(group, outside)

    def _choose_layouts(self, outside: set[Node]) -> None:
        """Let the maps that only chains read have neighbouring channels, whose small images the kernels interleave.

        A residual has the strides of the output to which it is added, so both change or neither does.
        """
        steps = [item for item in self.items if isinstance(item, _Step)]
        free = {item.node for item in steps if len(self.shown.seen[item.node].shape) == 4} - outside
        pairs = [{item.node, item.reads[1]} for item in steps if len(item.reads) > 1]
        while bound := [pair for pair in pairs if len(pair & free) == 1]:
            free = free.difference(*bound)
        self.layouts = {node: _channels_last(self.shown.seen[node].shape) for node in free}

    def _chain_part(self, group: list[tuple[Any, _Step]], outside: set[Node]) -> list[ChainPart | CallPart]:
        if not group:
            return []
        own = {item.node for _, item in group}
        reads = dict.fromkeys(
            n for _, item in group for n in item.reads if n not in own and self._is_outside(n, outside)
        )
        writes = [item.node for _, item in group if item.node in outside]
        placed = [[(node, self._placed(node, outside)) for node in nodes] for nodes in (reads, writes)]
        return [ChainPart(chain(self.dtype, [step for step, _ in group]), *placed)]

    def _is_outside(self, node: Node, outside: set[Node]) -> bool:
        """Return whether a result is a tensor of its own: one that calls of torch's make or read, and the input."""
        made_inside = any(isinstance(item, _Step) and item.node is node for item in self.items)
        return node in outside or not made_inside

    def _placed(self, node: Node, outside: set[Node]) -> Placed:
        seen = self.shown.seen[node]
        if node not in self.numbers:
            self.numbers[node] = self.room.add(0 if self._is_outside(node, outside) else math.prod(seen.shape))
        return Placed(self.numbers[node], seen.shape, self.layouts.get(node, seen.strides))

    def _step(self, item: _Step, outside: set[Node]) -> Any:
        reads, y = [self._placed(node, outside) for node in item.reads], self._placed(item.node, outside)
        if item.pool is not None:
            return pool_step(self.dtype, reads[0], y, *item.pool)
        path = item.path
        assert path is not None
        norm, tensors, marks = path.norm, tensors_of(path.layer, self.dtype), path.layer._buffers["fingerprint"]
        assert tensors is not None
        assert marks is not None
        known = () if norm is None else tuple(norm_tensors(norm))
        eps = norm.eps if isinstance(norm, _BatchNorm) else 0.0
        behind = Behind(known, eps, reads[1].number if len(reads) > 1 else -1, path.activation)
        return layer_step(self.shown.routes[path.nodes[0]], reads[0], y, tensors, marks, behind, self.threads)


def _channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    _, channels, height, width = shape
    return height * width * channels, 1, width * channels, channels


def _nodes_in(item: CallPart) -> list[Node]:
    nodes: list[Node] = []
    map_arg((item.args, item.kwargs), nodes.append)
    return nodes


def tensors_of(layer: DpsConv, dtype: torch.dtype) -> Any:
    """Return values, positions, alpha and bias of a layer as steps keep them, or None where they are not plain."""
    own = [*(layer._parameters.get(name) for name in ("values", "alpha", "bias")), layer._buffers.get("alpha")]
    values, alpha, bias = own[0], own[1] if own[1] is not None else own[3], own[2]
    if values is None or layer.observer is not None or (layer.offset is not None and alpha is None):
        return None
    given = [t for t in (values, alpha, bias) if t is not None]
    plain = all(is_vector(t) and t.dtype == dtype for t in given) and is_vector(layer._positions)
    pads = any(layer._both_sides()) and not any(layer.geometry.padding)
    return (values, layer._positions, alpha, bias) if plain and not pads else None


def norm_tensors(norm: nn.Module) -> list[Tensor | None]:
    """Return weight, bias, mean and variance of a BatchNorm layer."""
    own, buffers = norm._parameters, norm._buffers
    return [own.get("weight"), own.get("bias"), buffers.get("running_mean"), buffers.get("running_var")]


def _norm_fits(norm: nn.Module | None, dtype: torch.dtype) -> bool:
    if norm is None:
        return True
    weight, bias, mean, variance = norm_tensors(norm)
    given = [t for t in (weight, bias, mean, variance) if t is not None]
    plain = all(is_vector(t) and t.dtype == dtype for t in given)
    return plain and mean is not None and variance is not None


def is_vector(tensor: Any) -> bool:
    return type(tensor) in PLAIN and tensor.is_cpu and tensor.dim() == 1 and tensor.is_contiguous()


def pool_size(layer: nn.Module | None) -> tuple[int, int] | None:
    """Return the window and the step of a max-pool that a step can compute, else None."""
    if type(layer) is not nn.MaxPool2d:
        return None
    plain = layer.padding in (0, (0, 0)) and layer.dilation in (1, (1, 1))
    numbers = [n if isinstance(n, tuple) else (n, n) for n in (layer.kernel_size, layer.stride)]
    square = all(len(pair) == 2 and pair[0] == pair[1] for pair in numbers)
    usual = plain and square and not layer.ceil_mode and not layer.return_indices
    return (numbers[0][0], numbers[1][0]) if usual else None
