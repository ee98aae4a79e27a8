"""`export_onnx`: a network as an ONNX file in which each sparse layer is the recipe of its weight.

batches.py     the tensors of the example, and the batches that a file takes
network.py     which networks can be exported, and their plain copies
capture.py     the graph of torch's exporter, with the weights as inputs
batchnorm.py   BatchNorm as two vectors, most of them inside the layers before
recipe.py      the recipe of a weight: D by its formula, S by its values and the gaps between their positions
weights.py     which weights have recipes, and the numbers of the others
base_file.py   W0 of fine-tuned networks, in a file that the ONNX files of several tasks share
functions.py   the recipes' steps as functions of ONNX, which a runtime computes once, when it loads the file
graph.py       the graph while it is edited, and as a file
names.py       the names of inputs, outputs and the axis of the batch
check.py       the outputs of ONNX Runtime against torch's, by their gaps (gaps.py)
surroundings.py  what an export does not depend on
"""

import copy
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from dctps.base.extras import require
from dctps.export.base_file import FINGERPRINT, Base, base_of
from dctps.export.batches import Example
from dctps.export.batchnorm import fold_batchnorm
from dctps.export.capture import Captured, capture
from dctps.export.check import HALF_LIMIT, Comparison, check_difference, compare
from dctps.export.functions import FLOAT, IR_VERSION, OPSET
from dctps.export.gaps import LIMIT
from dctps.export.graph import Graph
from dctps.export.names import name_ends
from dctps.export.network import check_exportable
from dctps.export.recipe import Call
from dctps.export.report import ExportReport, WeightRow
from dctps.export.surroundings import usual_settings, write
from dctps.export.weights import Weight, content, narrow
from dctps.nn.foreign import check_network

LARGEST = 2**31 - 1  # bytes of a file; that is what its format, protobuf, can hold


def export_onnx(
    model: nn.Module,
    file: str | os.PathLike[str],
    example_input: Example,
    *,
    dense: bool = False,
    float16: bool = False,
    check: bool = True,
    base: str | os.PathLike[str] | None = None,
) -> ExportReport:
    """Write a network, in eval mode, as an ONNX file that holds recipes of the weights; the model stays as it is.

    A runtime computes the weights when it loads the file, and then runs at the speed of a dense network. Offsets of
    your own are stored densely, and the report that is returned says so. The file is written atomically, after the
    check.

    example_input: a tensor with a batch axis that the network takes, a sequence of tensors, or a dictionary by names.
    dense: store plain weights in place of recipes.
    float16: store numbers in 16 bits; they are computed with in 32 bits.
    check: compare the outputs of ONNX Runtime with torch's, for the example and for random inputs.
    base: for fine-tuned networks, a file beside `file` or below that holds W0 and whatever else training has left
        alone. It is written where it is not there yet, and ONNX files of other tasks share it, so that each takes
        kilobytes. Without it W0 + S is stored.
    """
    check_network(model, "export_onnx(model, file, example_input)")
    target = _target(file)
    if check:
        require("onnxruntime", "the check of an ONNX file (check=False leaves it out)")
    if base is not None and dense:
        raise ValueError("dense=True stores W0 + S, and base= stores them apart; give one of them")
    check_exportable(model)
    with usual_settings():
        return _export(model, target, example_input, dense=dense, float16=float16, check=check, base=base)


def _export(
    model: nn.Module,
    target: Path,
    example: Example,
    *,
    dense: bool,
    float16: bool,
    check: bool,
    base: str | os.PathLike[str] | None,
) -> ExportReport:
    shared = None if base is None else base_of(model, base, target)
    captured = capture(model, example, () if shared is None else shared.places)
    made, rows, dense_bytes = _build(captured, shared, dense, float16)
    written = _serialized(made)
    found = _compared(written, captured, shared, rows, float16) if check else None
    if shared is not None and shared.is_new:
        write(shared.file, shared.content)
    write(target, written)
    sizes = len(written), dense_bytes, OPSET, IR_VERSION
    if found is None:
        return ExportReport(target, *sizes, captured.batches, rows, None, None, *_files(shared))
    return ExportReport(target, *sizes, found.batches, rows, found.difference, found.largest, *_files(shared))


def _compared(
    written: bytes, captured: Captured, base: Base | None, rows: list[WeightRow], float16: bool
) -> Comparison:
    """Return how the file compares with torch; raise ValueError if it computes something else."""
    others = None if base is None else {base.location: base.content}
    found = compare(written, captured, others, HALF_LIMIT if float16 else LIMIT)
    if not float16:
        check_difference(found, any(row.why_dense is None for row in rows))
    return found


def _files(base: Base | None) -> tuple[Path | None, int]:
    return (None, 0) if base is None else (base.file, len(base.content))


def _target(file: str | os.PathLike[str]) -> Path:
    """Return the path of the file; raise OSError where it cannot be written, before anything is computed."""
    if not isinstance(file, str | os.PathLike):
        call = "export_onnx(model, file, example_input)"
        raise TypeError(f"{call} takes the path of a file second, not an object of type {type(file).__name__}")
    path = Path(file)
    if path.is_dir():
        raise IsADirectoryError(f"{str(path)!r} is a folder; name a file, such as {str(path / 'network.onnx')!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(path.parent)!r} to write {path.name!r} into; make it first")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"the folder {str(path.parent)!r} cannot be written into; choose another one")
    return path


def _build(captured: Captured, base: Base | None, dense: bool, float16: bool) -> tuple[Any, list[WeightRow], int]:
    """Return the model of ONNX, how its weights are stored, and the bytes of the dense model."""
    graph = Graph(captured.model)
    names = [*captured.weights, *captured.shared]
    name_ends(graph, captured.input_names)
    inputs = len(graph.inputs) - len(names)
    values = {value.name: name for value, name in zip(graph.inputs[inputs:], names, strict=True)}
    graph.inputs = graph.inputs[:inputs]
    weights, places = captured.weights | _tuned(base), {} if base is None else base.places
    graph.metadata = {} if base is None else {FINGERPRINT: base.fingerprint}
    factors = fold_batchnorm(graph, {value for value, name in values.items() if name in weights})
    sizes = [weights[n].size if n in weights else math.prod(places[n].shape) for n in names]
    dense_bytes, rows = _dense_bytes(graph, sizes), list[WeightRow]()
    for value, name in values.items():
        if name in weights:
            stored, own = content(weights[name], factors.get(value), dense, float16)
            graph.replace(value, graph.write(stored))
            rows += own
        else:
            graph.replace(value, graph.write(places[name]))
    if float16:
        _halve(graph)
    return graph.model(), rows, dense_bytes


def _tuned(base: Base | None) -> dict[str, Weight]:
    """Return the fine-tuned weights by their names in the plain network."""
    if base is None:
        return {}
    return {key: Weight({name: part}, base.places[key]) for key, (name, part) in base.parts.items()}


# --- the whole file -------------------------------------------------------------------------------------------------


def _dense_bytes(graph: Graph, sizes: list[int]) -> int:
    """Return the bytes of the same file with dense weights of these sizes in float32."""
    weights = sum(4 * size + 20 for size in sizes)  # 20: name, type and shape
    return weights + int(copy.deepcopy(graph).model().ByteSize())


def _halve(graph: Graph) -> None:
    """Store the numbers that other nodes take in 16 bits, where that is shorter; a Cast widens them again."""
    for name, array in list(graph.arrays.items()):
        if array.dtype == np.float32 and array.nbytes > 100:  # a Cast takes about 40 bytes
            half = narrow(array, np.float16)
            if half.dtype == np.float16:
                graph.replace(name, graph.write(Call("!Cast", (half,), {"to": FLOAT})))


def _serialized(made: Any) -> bytes:
    """Return the bytes of a model that ONNX's own checks have passed."""
    from onnx import checker

    if made.ByteSize() > LARGEST:
        raise ValueError(f"an ONNX file holds at most 2 GB, and this one would have {made.ByteSize():,} bytes")
    checker.check_model(_alone(made), full_check=True)  # infers all shapes, too
    content: bytes = made.SerializeToString()
    return content


def _alone(made: Any) -> Any:
    """Return a model that takes as inputs what it has in another file, because the checker would look for the file."""
    from onnx import TensorProto, helper

    elsewhere = [t for t in made.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    if not elsewhere:
        return made
    alone = copy.deepcopy(made)
    alone.graph.input.extend(helper.make_tensor_value_info(t.name, FLOAT, list(t.dims)) for t in elsewhere)
    kept = [t for t in made.graph.initializer if t.data_location != TensorProto.EXTERNAL]
    alone.graph.ClearField("initializer")
    alone.graph.initializer.extend(kept)
    return alone
