"""BatchNorm in evaluation, which multiplies each channel by a number and adds another: two vectors instead of four.

    s = gamma / sqrt(var + eps),   t = beta - mean s

Behind a convolution or a linear layer both go into the layer: its weight is multiplied by s row by row, which its
recipe does, and its bias becomes s b + t. Elsewhere the layer stays, with s and t.
"""

from typing import Any

import numpy as np

from dctps.export.graph import Graph
from dctps.export.recipe import Array, Call

DEFAULT_EPSILON = 1e-5


def fold_batchnorm(graph: Graph, weights: set[str]) -> dict[str, Array]:
    """Fold all BatchNorm layers of a graph; return the factors of the rows of those weights that have recipes.

    weights: the names of these weights.
    """
    factors: dict[str, Array] = {}
    for norm in [node for node in graph.nodes if node.op_type == "BatchNormalization"]:
        vectors = _vectors(graph, norm)
        if vectors is None:
            continue
        layer = _layer_before(graph, norm, weights)
        if layer is None:
            _keep(graph, norm, *vectors)
            continue
        s, t = vectors
        weight = layer.input[1]
        if weight in weights:
            factors[weight] = s
        else:
            kernel = graph.arrays[weight]
            layer.input[1] = graph.write(_float32(kernel * s.reshape(-1, *[1] * (kernel.ndim - 1))))
        bias = graph.arrays[layer.input[2]].astype(np.float64) if len(layer.input) > 2 and layer.input[2] else 0.0
        layer.input[2:] = [graph.write(_float32(s * bias + t))]
        layer.output[0] = norm.output[0]
        graph.nodes.remove(norm)
    return factors


def _vectors(graph: Graph, norm: Any) -> tuple[Array, Array] | None:
    """Return s and t in float64; None where the statistics are no constants."""
    if not all(name in graph.arrays for name in norm.input[1:5]):
        return None
    gamma, beta, mean, var = (graph.arrays[name].astype(np.float64) for name in norm.input[1:5])
    epsilon = next((a.f for a in norm.attribute if a.name == "epsilon"), DEFAULT_EPSILON)
    s = gamma / np.sqrt(var + epsilon)
    return s, beta - mean * s


def _layer_before(graph: Graph, norm: Any, weights: set[str]) -> Any | None:
    """Return the convolution or linear layer whose output goes into this BatchNorm layer and nowhere else."""
    users = graph.users()
    layer = next((node for node in graph.nodes if norm.input[0] in node.output), None)
    if layer is None or users[norm.input[0]] != 1 or layer.op_type not in ("Conv", "Gemm"):
        return None
    attributes = {a.name: a for a in layer.attribute}
    if layer.op_type == "Gemm" and ("transB" not in attributes or attributes["transB"].i != 1):
        return None
    if any(attributes[name].f != 1.0 for name in ("alpha", "beta") if name in attributes):
        return None
    known = layer.input[1] in weights or layer.input[1] in graph.arrays
    bias_known = len(layer.input) < 3 or not layer.input[2] or layer.input[2] in graph.arrays
    alone = users[layer.input[1]] == 1  # a layer that is called twice may have two BatchNorm layers behind it
    return layer if known and bias_known and alone else None


def _keep(graph: Graph, norm: Any, s: Array, t: Array) -> None:
    """Let a BatchNorm layer compute s x + t: its mean is 0 and its variance 1, which cost no bytes."""
    shape = np.array([len(s)], dtype=np.int64)
    fills = [Call("!Expand", (_float32(number), shape)) for number in (0.0, 1.0)]
    norm.input[1:5] = [graph.write(_float32(s)), graph.write(_float32(t)), *map(graph.write, fills)]
    del norm.attribute[:]
    norm.attribute.append(graph.onnx.helper.make_attribute("epsilon", 0.0))


def _float32(array: Any) -> Array:
    return np.asarray(array, dtype=np.float32)
