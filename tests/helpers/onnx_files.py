"""ONNX files in tests: what ONNX Runtime computes, what it folds when it loads a file, and a recipe on its own."""

import numpy as np
import torch

from dctps.export.graph import Graph


def run(content: bytes, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The outputs of a file for these inputs."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, _options(), providers=["CPUExecutionProvider"])
    feeds = {value.name: x.numpy() for value, x in zip(session.get_inputs(), inputs, strict=True)}
    return [torch.from_numpy(np.asarray(y)) for y in session.run(None, feeds)]


def folded_operators(content: bytes, folder) -> list[str]:
    """The operators that are left of a file after ONNX Runtime has loaded it."""
    import onnx
    import onnxruntime

    options = _options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


def computed(*calls) -> list[torch.Tensor]:
    """The results of recipes alone, by a file that has no inputs."""
    import onnx

    graph = Graph(onnx.ModelProto())
    for name in dict.fromkeys(map(graph.write, calls)):
        graph.outputs.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    made = graph.model()
    names = [value.name for value in made.graph.output]
    results = dict(zip(names, run(made.SerializeToString()), strict=True))
    return [results[graph.write(call)] for call in calls]


def _options():
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return options
