"""`export_onnx`: a network as an ONNX file in which each sparse layer is the recipe of its weight.

capture.py     the graph of torch's exporter, with the weights as inputs
batchnorm.py   BatchNorm as two vectors, most of them inside the layers before
recipe.py      the recipe of a weight: D by its formula, S by its values and the gaps between their positions
functions.py   the recipes' steps as functions of ONNX, which a runtime computes once, when it loads the file
graph.py       the graph while it is edited, and as a file
check.py       the outputs of ONNX Runtime against torch's
"""

import copy
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from dctps.base.extras import require
from dctps.base.files import write_atomically
from dctps.core.offsets import offset_name
from dctps.export.batchnorm import fold_batchnorm
from dctps.export.capture import Captured, Example, capture
from dctps.export.check import check_difference, compare
from dctps.export.functions import FLOAT, IR_VERSION, OPSET
from dctps.export.graph import Graph
from dctps.export.recipe import Array, Call, NoRecipe, offset_recipe, weight_recipe
from dctps.export.report import ExportReport, WeightRow
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.foreign import check_network

LARGEST = 2**31 - 1  # bytes of a file; that is what its format, protobuf, can hold
BATCH = "batch"


def export_onnx(
    model: nn.Module,
    file: str | os.PathLike[str],
    example_input: Example,
    *,
    dense: bool = False,
    float16: bool = False,
    check: bool = True,
) -> ExportReport:
    """Write a network, in eval mode, as an ONNX file that holds recipes of the weights; the model stays as it is.

    A runtime computes the weights when it loads the file, and then runs at the speed of a dense network. Offsets of
    your own are stored densely, and the report that is returned says so. The file is written atomically, after the
    check.

    example_input: a tensor with a batch axis that the network takes, a sequence of tensors, or a dictionary by names.
    dense: store plain weights in place of recipes.
    float16: store numbers in 16 bits; they are computed with in 32 bits.
    check: compare the outputs of ONNX Runtime with torch's, for random inputs.
    """
    check_network(model, "export_onnx(model, file, example_input)")
    target = _target(file)
    if check:
        require("onnxruntime", "the check of an ONNX file (check=False leaves it out)")
    captured = capture(model, example_input)
    made, rows, dense_bytes, any_batch = _build(captured, dense, float16)
    content = _serialized(made)
    difference, largest = compare(content, captured, any_batch) if check else (None, None)
    if difference is not None and largest is not None and not float16:
        check_difference(difference, largest)
    write_atomically(target, lambda path: path.write_bytes(content))
    sizes = len(content), dense_bytes, OPSET, IR_VERSION
    return ExportReport(target, *sizes, any_batch, rows, difference, largest)


def _target(file: str | os.PathLike[str]) -> Path:
    """Return the path of the file; raise OSError where it cannot be written, before anything is computed."""
    path = Path(file)
    if path.is_dir():
        raise IsADirectoryError(f"{str(path)!r} is a folder; name a file, such as {str(path / 'network.onnx')!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(path.parent)!r} to write {path.name!r} into; make it first")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"the folder {str(path.parent)!r} cannot be written into; choose another one")
    return path


def _build(captured: Captured, dense: bool, float16: bool) -> tuple[Any, list[WeightRow], int, bool]:
    """Return the model of ONNX, how its weights are stored, the bytes of the dense model, and if any batch will do."""
    graph = Graph(captured.model)
    inputs = len(graph.inputs) - len(captured.layers)
    weights = {value.name: layer for value, layer in zip(graph.inputs[inputs:], captured.layers.items(), strict=True)}
    graph.inputs = graph.inputs[:inputs]
    any_batch = _rename(graph, captured.input_names)
    factors = fold_batchnorm(graph, set(weights))
    dense_bytes = _dense_bytes(graph, [layer for _, layer in weights.values()])
    rows = []
    for weight, (name, layer) in weights.items():
        content, why_dense = _weight(layer, factors.get(weight), dense, float16)
        graph.replace(weight, graph.write(content))
        rows.append(WeightRow(name, offset_name(layer.offset), layer.nnz, why_dense))
    if float16:
        _halve(graph)
    return graph.model(), rows, dense_bytes, any_batch


def _weight(layer: DpsLayer, factor: Array | None, dense: bool, float16: bool) -> tuple[Call | Array, str | None]:
    """Return the recipe or the numbers of a layer's weight, and why it is not the recipe.

    factor: what its rows are multiplied by, if it is not 1.
    """
    shape = layer.geometry.weight_shape
    per_row = np.ones(1) if factor is None else factor
    try:
        if dense:
            raise NoRecipe("dense weights were asked for")
        offset = None if layer.offset is None else offset_recipe(layer.offset)
    except NoRecipe as error:
        weight = layer.dense_weight().detach().cpu().double().numpy()
        return (weight * per_row.reshape(-1, *[1] * (len(shape) - 1))).astype(np.float32), str(error)
    positions = layer.support.positions.cpu().numpy().astype(np.int64)
    rows = positions // math.prod(shape[1:]) if factor is not None else 0
    alpha = 0.0 if layer.alpha is None else layer.alpha.item()
    kind = np.float16 if float16 else np.float32
    values = (layer.values.detach().cpu().double().numpy() * per_row[rows]).astype(np.float32)
    return weight_recipe(shape, offset, _narrow(alpha * per_row, kind), positions, _narrow(values, kind)), None


def _narrow(array: Array, kind: type[np.floating[Any]]) -> Array:
    """Return the array in a narrower type, or in float32 where its numbers are too large for that."""
    with np.errstate(over="ignore"):
        narrow = array.astype(kind)
    return narrow if np.isfinite(narrow).all() else array.astype(np.float32)


# --- the whole file -------------------------------------------------------------------------------------------------


def _rename(graph: Graph, inputs: list[str]) -> bool:
    """Give inputs and outputs plain names, and the first axis of all; return whether it may have any size."""
    outputs = ["output"] if len(graph.outputs) == 1 else [f"output_{i}" for i in range(len(graph.outputs))]
    for values, names in ((graph.inputs, inputs), (graph.outputs, outputs)):
        for value, name in zip(values, names, strict=True):
            graph.rename(value.name, name)
            value.name = name
    axes = [value.type.tensor_type.shape.dim[0] for value in graph.inputs]
    symbols = {axis.dim_param for axis in axes}
    for value in (*graph.inputs, *graph.outputs):
        value.ClearField("doc_string")
        value.ClearField("metadata_props")
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param and len(symbols) == 1 and axis.dim_param in symbols:
                axis.dim_param = BATCH
    return all(axis.dim_param for axis in axes)


def _dense_bytes(graph: Graph, layers: list[DpsLayer]) -> int:
    """Return the bytes of the same file with dense weights of float32."""
    weights = sum(4 * math.prod(layer.geometry.weight_shape) + 20 for layer in layers)  # 20: name, type and shape
    return weights + int(copy.deepcopy(graph).model().ByteSize())


def _halve(graph: Graph) -> None:
    """Store the numbers that other nodes take in 16 bits, where that is shorter; a Cast widens them again."""
    for name, array in list(graph.arrays.items()):
        if array.dtype == np.float32 and array.nbytes > 100:  # a Cast takes about 40 bytes
            narrow = _narrow(array, np.float16)
            if narrow.dtype == np.float16:
                graph.replace(name, graph.write(Call("!Cast", (narrow,), {"to": FLOAT})))


def _serialized(made: Any) -> bytes:
    """Return the bytes of a model that ONNX's own checks have passed."""
    from onnx import checker

    if made.ByteSize() > LARGEST:
        raise ValueError(f"an ONNX file holds at most 2 GB, and this one would have {made.ByteSize():,} bytes")
    checker.check_model(made, full_check=True)  # infers all shapes, too
    content: bytes = made.SerializeToString()
    return content
