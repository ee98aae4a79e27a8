"""A graph of ONNX that is being edited: its nodes, its constants as arrays, and the calls of recipes in it."""

import graphlib
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from dctps.base.extras import needed
from dctps.export.functions import DOMAIN, DOMAIN_VERSION, FLOAT, IR_VERSION, OPSET, functions_of
from dctps.export.recipe import Array, Call, Stored

NOT_NEEDED = {  # attributes of operators that say what holds without them
    "auto_pad": b"NOTSET",
    "group": 1,
    "alpha": 1.0,
    "beta": 1.0,
    "transA": 0,
    "ceil_mode": 0,
    "count_include_pad": 0,
    "storage_order": 0,
    "training_mode": 0,
    "allowzero": 0,
}


class Graph:
    """The nodes, constants, inputs and outputs of a graph; `stored` has the constants that lie in another file."""

    def __init__(self, model: Any) -> None:
        onnx = self.onnx
        self.nodes: list[Any] = list(model.graph.node)
        self.arrays: dict[str, Array] = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
        self.stored: dict[str, Stored] = {}
        self.metadata: dict[str, str] = {}
        self.inputs, self.outputs = list(model.graph.input), list(model.graph.output)
        self.functions: set[str] = set()
        self.foreign = list(model.functions), [o for o in model.opset_import if o.domain]  # what torch's exporter made
        self._written: dict[Any, str] = {}  # what was written already, by content: its name

    @property
    def onnx(self) -> Any:
        """The package of that name, which is optional."""
        return needed("onnx", "an ONNX file")

    def users(self) -> Counter[str]:
        """Return how many inputs of nodes, and outputs of the graph, each value is."""
        return Counter([name for node in self.nodes for name in taken(node)] + [value.name for value in self.outputs])

    # --- writing

    def write(self, content: "Call | Array | Stored") -> str:
        """Write a call with its inputs, or a constant, where it is not there yet; return its name."""
        if isinstance(content, Stored):
            name = self._written.setdefault(content, f"dctps/{len(self._written)}")
            self.stored[name] = content
            return name
        if not isinstance(content, Call):
            return self._write_array(content)
        inputs = [self.write(part) for part in content.inputs]
        attributes = {key: tuple(v) if isinstance(v, list) else v for key, v in content.attributes.items()}
        key = (content.function, tuple(inputs), tuple(attributes.items()))
        if key not in self._written:
            self._written[key] = name = f"dctps/{len(self._written)}"
            local = content.function[0] != "!"
            function, domain = (content.function, DOMAIN) if local else (content.function[1:], "")
            if local:
                self.functions.add(function)
            node = self.onnx.helper.make_node(function, inputs, [name], domain=domain, **content.attributes)
            self.nodes.append(node)
        return self._written[key]

    def _write_array(self, array: Array) -> str:
        key = ("array", str(array.dtype), array.shape, hashlib.blake2b(np.ascontiguousarray(array).data).digest())
        if key not in self._written:
            self._written[key] = f"dctps/{len(self._written)}"
            self.arrays[self._written[key]] = array
        return self._written[key]

    def replace(self, old: str, new: str) -> None:
        """Let all nodes, those of branches included, take another value in place of `old`."""
        for node in everywhere(self.nodes):
            for i, name in enumerate(node.input):
                if name == old:
                    node.input[i] = new

    def rename(self, old: str, new: str) -> None:
        """Give a value, which some node makes or the graph takes, another name."""
        self.replace(old, new)
        for graph in branches(self.nodes):
            for value in (*graph.input, *graph.output, *graph.initializer):
                value.name = new if value.name == old else value.name
        for node in everywhere(self.nodes):
            node.output[:] = [new if name == old else name for name in node.output]
        for value in (*self.inputs, *self.outputs):
            value.name = new if value.name == old else value.name
        if old in self.arrays:
            self.arrays[new] = self.arrays.pop(old)

    def names(self) -> set[str]:
        """Return the names of all values, those inside of branches included."""
        own = {v.name for v in (*self.inputs, *self.outputs)} | set(self.arrays) | set(self.stored)
        made = {name for node in everywhere(self.nodes) for name in (*node.input, *node.output)}
        return own | made | {v.name for g in branches(self.nodes) for v in (*g.input, *g.output, *g.initializer)}

    def free(self, names: Iterable[str]) -> None:
        """Give the values that have one of these names others."""
        wanted = set(names)
        for name in wanted & self.names():
            self.rename(name, unlike(name, wanted | self.names()))

    # --- the file

    def model(self) -> Any:
        """Return the whole as a model with short names, without what a reader does not need."""
        helper = self.onnx.helper
        self._drop_unused()
        self.nodes = sorted_nodes(self.nodes, {v.name for v in self.inputs} | set(self.arrays) | set(self.stored))
        for node in self.nodes:
            _strip(node)
        self._shorten()
        tensors = [self.onnx.numpy_helper.from_array(array, name) for name, array in self.arrays.items()]
        tensors += [self._elsewhere(name, stored) for name, stored in self.stored.items()]
        graph = helper.make_graph(self.nodes, "network", self.inputs, self.outputs, tensors)
        functions, opsets = self.foreign
        opsets = [helper.make_opsetid("", OPSET), *opsets]
        if self.functions:
            opsets.append(helper.make_opsetid(DOMAIN, DOMAIN_VERSION))
        made = helper.make_model(graph, opset_imports=opsets, functions=[*functions, *functions_of(self.functions)])
        made.ir_version, made.producer_name = IR_VERSION, "dctps"
        helper.set_model_props(made, self.metadata)
        return made

    def _elsewhere(self, name: str, stored: Stored) -> Any:
        """Return the tensor of ONNX that says in which file its numbers are."""
        tensor = self.onnx.TensorProto(name=name, data_type=FLOAT, dims=stored.shape)
        tensor.data_location = self.onnx.TensorProto.EXTERNAL
        for key, value in (("location", stored.file), ("offset", stored.offset), ("length", stored.length)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor

    def _drop_unused(self) -> None:
        """Remove nodes and constants whose results nobody uses."""
        while True:
            users = self.users()
            kept = [node for node in self.nodes if any(users[name] for name in node.output)]
            if len(kept) == len(self.nodes):
                break
            self.nodes = kept
        self.arrays = {name: array for name, array in self.arrays.items() if users[name]}
        self.stored = {name: stored for name, stored in self.stored.items() if users[name]}

    def _shorten(self) -> None:
        """Give all inner values short names, but not those that branches of an If or Loop take."""
        fixed = {v.name for v in (*self.inputs, *self.outputs)}
        fixed |= {name for node in self.nodes for name in taken(node)[len(node.input) :]}
        inside = [inner for graph in branches(self.nodes) for inner in graph.node]
        fixed |= {name for node in inside for name in node.output}
        names: dict[str, str] = {"": ""}
        for name in (*self.arrays, *self.stored, *(name for node in self.nodes for name in node.output)):
            if name not in fixed and name not in names:
                names[name] = _short(len(names), fixed)
        for node in self.nodes:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]
        self.arrays = {names.get(name, name): array for name, array in self.arrays.items()}
        self.stored = {names.get(name, name): stored for name, stored in self.stored.items()}


def everywhere(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield the nodes and those in their branches."""
    nodes = list(nodes)
    yield from nodes
    for graph in branches(nodes):
        yield from graph.node


def branches(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield the graphs inside of nodes, such as the branches of an If, and those inside of these."""
    for node in nodes:
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield graph
                yield from branches(graph.node)


def taken(node: Any) -> list[str]:
    """Return the names that a node takes: its inputs first, then those that its branches use."""
    return [name for inner in everywhere([node]) for name in inner.input]


def sorted_nodes(nodes: Iterable[Any], known: set[str]) -> list[Any]:
    """Return the nodes in an order in which each comes after those whose results it takes."""
    nodes = list(nodes)
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    needs = {i: {maker[n] for n in taken(node) if n in maker and n not in known} for i, node in enumerate(nodes)}
    return [nodes[i] for i in graphlib.TopologicalSorter(needs).static_order()]


def _strip(node: Any) -> None:
    """Remove the names, notes and attributes of a node that change nothing."""
    for field in ("name", "doc_string", "metadata_props", "overload"):
        node.ClearField(field)
    kept = [a for a in node.attribute if not _says_nothing(node, a)]
    node.ClearField("attribute")
    node.attribute.extend(kept)


def _says_nothing(node: Any, attribute: Any) -> bool:
    if node.domain == DOMAIN:
        return False
    name, ints = attribute.name, list(attribute.ints)
    if node.op_type == "Conv" and name == "kernel_shape":
        return True  # the weight says it
    if node.op_type in ("Conv", "AveragePool", "MaxPool") and name in ("strides", "dilations", "pads"):
        return set(ints) == ({0} if name == "pads" else {1})
    if node.op_type == "BatchNormalization" and name == "momentum":
        return True
    if name not in NOT_NEEDED or node.op_type not in ("Conv", "Gemm", "AveragePool", "MaxPool", "BatchNormalization"):
        return False
    value = (
        attribute.s
        if isinstance(NOT_NEEDED[name], bytes)
        else attribute.f
        if name in ("alpha", "beta")
        else attribute.i
    )
    return bool(value == NOT_NEEDED[name])


def _short(number: int, taken: set[str]) -> str:
    """Return a short name of digits and letters."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    name, rest = letters[number % 52], number // 52
    while rest:
        name, rest = name + letters[rest % 62], rest // 62
    return unlike(name, taken)


def unlike(name: str, taken: set[str]) -> str:
    """Return a name that is not among these."""
    while name in taken:
        name += "_"
    return name
