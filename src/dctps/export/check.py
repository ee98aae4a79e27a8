"""The outputs of an exported network in ONNX Runtime, compared with torch's."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dctps.base.extras import needed
from dctps.export.capture import Captured

LIMIT = 1e-3  # of the largest output; float32 gives about 1e-6, and another network differs in every digit


def session(content: bytes, threads: int = 0, others: Mapping[str, bytes] | None = None) -> Any:
    """Return a session of ONNX Runtime for the bytes of a file; 0 threads mean as many as torch has.

    others: the bytes of the files to which it refers, by their paths from its folder.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when the package is imported
    runtime = needed("onnxruntime", "the check of an ONNX file")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.log_severity_level = 3  # errors
    if others:
        sizes = [len(other) for other in others.values()]
        options.add_external_initializers_from_files_in_memory(list(others), list(others.values()), sizes)
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def compare(
    content: bytes, captured: Captured, any_batch: bool, others: Mapping[str, bytes] | None = None
) -> tuple[float, float]:
    """Return the largest difference between the outputs of both, and torch's largest output, for random inputs.

    any_batch: compare two sizes of batches.
    others: the bytes of the files to which the file refers.
    """
    runtime = session(content, others=others)
    example = [*captured.args, *captured.kwargs.values()]
    batches = [_random(example), _random([torch.cat([t, t[:1]]) for t in example])] if any_batch else [_random(example)]
    difference, largest = 0.0, 0.0
    for tensors in batches:
        expected = _expected(captured, tensors)
        known = {i.name for i in runtime.get_inputs()}  # the exporter leaves out inputs that nobody uses
        feeds = {n: t.numpy() for n, t in zip(captured.input_names, tensors, strict=True) if n in known}
        for found, wanted in zip(runtime.run(None, feeds), expected, strict=True):
            difference = max(difference, _distance(found, wanted.numpy()))
            largest = max(largest, float(wanted.abs().max()) if wanted.numel() else 0.0)
    return difference, largest


def _expected(captured: Captured, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return torch's outputs; raise ValueError where the network takes the example, but no other number of samples."""
    try:
        return captured.run(tensors)
    except Exception as error:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"the network takes the example, but not {shapes}, one sample more: {reason}; the first axis of an example "
            "is that of the batch"
        ) from error


def check_difference(difference: float, largest: float) -> None:
    """Raise ValueError if a file of float32 numbers computes something else than torch."""
    if not difference <= LIMIT * max(largest, 1e-6):
        raise ValueError(
            f"ONNX Runtime's outputs differ from torch's by {difference:.3g}, where the largest is {largest:.3g}; "
            "nothing was written; dense=True writes plain weights"
        )


def _random(example: Sequence[Tensor]) -> list[Tensor]:
    """Return random numbers like the example; whole numbers, such as words, are those of the example in turn."""
    generator = torch.Generator(device="cpu").manual_seed(0)
    return [torch.randn(t.shape, generator=generator) if t.dtype == torch.float32 else t.roll(1, 0) for t in example]


def _distance(found: Any, expected: Any) -> float:
    if found.shape != expected.shape:
        return float("inf")
    if not expected.size:
        return 0.0
    equal = (
        (found == expected) | (np.isnan(found) & np.isnan(expected)) if found.dtype.kind == "f" else found == expected
    )
    return float(np.where(equal, 0.0, np.abs(found.astype(np.float64) - expected.astype(np.float64))).max())
