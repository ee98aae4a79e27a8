"""The names of a graph's inputs and outputs, and of the first axis of each, which is that of the batch."""

from typing import Any

from dctps.export.graph import Graph, unlike

BATCH = "batch"


def name_ends(graph: Graph, inputs: list[str]) -> None:
    """Give inputs and outputs plain names, and their first axes one name where they have the same size.

    inputs: the names of the first inputs; the others are weights.
    """
    count = len(graph.outputs)
    outputs = ["output"] if count == 1 else [f"output_{i}" for i in range(count)]
    outputs = [unlike(name, set(inputs)) for name in outputs]
    graph.free([*inputs, *outputs])
    ends = [*graph.inputs[: len(inputs)], *graph.outputs]
    for value, name in zip(ends, [*inputs, *outputs], strict=True):
        graph.rename(value.name, name)
        value.ClearField("doc_string")
        value.ClearField("metadata_props")
    _name_axes(graph.inputs[: len(inputs)], ends)


def _name_axes(inputs: list[Any], ends: list[Any]) -> None:
    symbols = {value.type.tensor_type.shape.dim[0].dim_param for value in inputs} - {""}
    for axis in (axis for value in ends for axis in value.type.tensor_type.shape.dim):
        if axis.dim_param and symbols == {axis.dim_param}:
            axis.dim_param = BATCH
