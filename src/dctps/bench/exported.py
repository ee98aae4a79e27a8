"""The dense network by other compilers: torch.compile, ONNX Runtime, and OpenVINO; the last two compute inferences.

ONNX Runtime and OpenVINO get the network as one ONNX file for the batch that is measured, in float32 and with as many
threads as torch has. Their packages are optional.
"""

import copy
import logging
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dctps.base.extras import is_installed, missing, needed

EXPORTERS = "onnx", "onnxscript"  # what torch.onnx.export needs


def compiled(dense: nn.Module) -> nn.Module:
    """A copy of a network that torch.compile compiles at its first call."""
    return torch.compile(copy.deepcopy(dense))  # type: ignore[return-value]


def why_not(package: str, inference: bool) -> str:
    """Why the package cannot be measured; empty where it can."""
    if not inference:
        return f"{package} is left out: it does not train; it takes part with --inference"
    absent = [module for module in (package, *EXPORTERS) if not is_installed(module)]
    return missing(absent[0], f"{package} is left out: it") if absent else ""


def write_onnx(dense: nn.Module, input_shape: tuple[int, ...], path: Path) -> None:
    """Write a network in eval mode as an ONNX file for inputs of this shape."""
    network = copy.deepcopy(dense).eval()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of operators of packages that are not installed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own code
        torch.onnx.export(network, (torch.zeros(input_shape),), path, dynamo=True, verbose=False)


class OnnxRuntime(nn.Module):
    """A network as ONNX Runtime computes it on this CPU."""

    def __init__(self, dense: nn.Module, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when the package is imported
        package = needed("onnxruntime", "this contender")
        options = package.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "network.onnx")
            write_onnx(dense, input_shape, path)
            self.session: Any = package.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.input_name = self.session.get_inputs()[0].name

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self.session.run(None, {self.input_name: x.numpy()})[0])


class OpenVino(nn.Module):
    """A network as OpenVINO computes it on this CPU, in float32: of itself it would take bfloat16 where it can."""

    def __init__(self, dense: nn.Module, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        core = needed("openvino", "this contender").Core()
        options = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
        options |= {"PERFORMANCE_HINT": "LATENCY"}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "network.onnx")
            write_onnx(dense, input_shape, path)
            compiled_model = core.compile_model(core.read_model(path), "CPU", options)
        self.request: Any = compiled_model.create_infer_request()

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self.request.infer([x.numpy()], share_inputs=True)[0])
