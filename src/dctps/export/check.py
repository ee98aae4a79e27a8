"""The outputs of an exported network in ONNX Runtime, compared with torch's."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import torch

from dctps.base.extras import needed
from dctps.export.batches import Batches, Inputs
from dctps.export.capture import Captured
from dctps.export.gaps import INFINITE, LIMIT, Gap, gap, merged, scale, worst_ratio

HALF_LIMIT = 0.1  # the same for numbers in 16 bits, where only the batch of one sample is judged


def session(content: bytes, threads: int = 0, others: Mapping[str, bytes] | None = None) -> Any:
    """Return a session of ONNX Runtime for the bytes of a file; 0 threads mean as many as torch has.

    others: the bytes of the files to which it refers, by their paths from its folder.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when the package is imported
    runtime = needed("onnxruntime", "the check of an ONNX file")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.log_severity_level = 4  # errors are raised
    if others:
        sizes = [len(other) for other in others.values()]
        options.add_external_initializers_from_files_in_memory(list(others), list(others.values()), sizes)
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The output that differs most, and the batches for which the file is right."""

    difference: float  # the largest one of this output
    largest: float  # torch's largest absolute value of this output
    ratio: float  # the difference as a part of it
    batches: Batches


def compare(
    content: bytes, captured: Captured, others: Mapping[str, bytes] | None = None, limit: float = LIMIT
) -> Comparison:
    """Compare the outputs for the example, and for random inputs in batches of several sizes.

    torch traces no batch of one sample; if that alone differs by more than `limit`, the file is for two or more.
    others: the bytes of the files to which the file refers.
    """
    _check_repeatable(captured)
    runtime, traced = session(content, others=others), captured.traced
    given = _gaps(runtime, captured, captured.given)
    runs = [(n, _for_samples(runtime, captured, n) or [Gap(INFINITE)] * len(given)) for n in captured.sizes]
    runs.append((captured.given.samples, given))
    wrong = sorted({n for n, gaps in runs if not worst_ratio(gaps) <= limit})
    batches = captured.batches
    if wrong and traced.samples not in wrong:  # the file as such is right
        _check_samples(wrong, captured)
        batches = dataclasses.replace(batches, smallest=2)
    gaps = merged([gaps for n, gaps in runs if n in batches])
    _check_finite(gaps)
    worst = max(gaps, key=lambda gap: gap.difference / scale(gap, gaps), default=Gap())
    return Comparison(worst.difference, worst.largest, worst_ratio(gaps), batches)


def _for_samples(runtime: Any, captured: Captured, samples: int) -> list[Gap] | None:
    """Return the gaps for random inputs; None where the file cannot be run for another batch than the traced one."""
    inputs = captured.traced.with_samples(samples)
    assert inputs is not None  # only such sizes are compared
    try:
        return _gaps(runtime, captured, inputs.random())
    except ValueError:
        if samples == captured.traced.samples:
            raise
        return None


def _check_samples(wrong: list[int], captured: Captured) -> None:
    """Raise ValueError unless one sample is the only batch for which the file is wrong, and is not the example."""
    if wrong == [1] and captured.given.samples > 1:
        return
    advice = "; an example of two samples gives a file for two or more" if wrong == [1] else ""
    raise ValueError(
        f"the file is right for batches of {captured.traced.samples} and wrong for {', '.join(map(str, wrong))}: the "
        "network computes something else for another number of samples, which torch.export does not see; nothing "
        f"was written; its forward code must do the same for all{advice}"
    )


def _check_repeatable(captured: Captured) -> None:
    """Raise ValueError if torch's network differs from itself, so that no file can agree with it."""
    once, again = (captured.run(captured.given) for _ in range(2))
    gaps = [gap(y.double().numpy(), x) for x, y in zip(once, again, strict=True)]
    if not worst_ratio(gaps) <= LIMIT:
        raise ValueError(
            "the network in eval mode returns other outputs each time for the same input, so no file can be compared "
            "with it; let it draw no random numbers there (F.dropout takes training=self.training) and count no calls, "
            "or leave the check out (check=False)"
        )


def _gaps(runtime: Any, captured: Captured, inputs: Inputs) -> list[Gap]:
    """Return the gap of each output; raise ValueError where ONNX Runtime cannot compute them."""
    known = {i.name for i in runtime.get_inputs()}  # the exporter leaves out inputs that nobody uses
    pairs = zip(captured.input_names, inputs.tensors, strict=True)
    expected = captured.run(inputs)
    try:
        found = runtime.run(None, {n: t.numpy() for n, t in pairs if n in known})
    except Exception as error:  # ONNX Runtime has errors of its own
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"ONNX Runtime does not run the file for inputs of shape {inputs}: {reason}") from error
    return [gap(y, x) for y, x in zip(found, expected, strict=True)]


def _check_finite(gaps: list[Gap]) -> None:
    """Raise ValueError if an output has no number that says whether the file is right."""
    for i, found in enumerate(gaps):
        if found.entries and not found.finite:
            raise ValueError(
                f"output {i + 1} of {len(gaps)} has no finite number in torch, neither for the example nor for random "
                "inputs, so nothing was compared; give an example for which it has; check=False leaves the check out"
            )


def check_difference(found: Comparison, has_recipes: bool) -> None:
    """Raise ValueError if a file of float32 numbers computes something else than torch.

    has_recipes: whether plain weights would be another file.
    """
    if found.ratio <= LIMIT:
        return
    how = f"by {found.difference:.3g}, where the largest is {found.largest:.3g}"
    if found.difference == INFINITE:
        how = "in their shapes, or in which of them are finite"
    advice = "; dense=True writes plain weights" if has_recipes else ""
    raise ValueError(f"ONNX Runtime's outputs differ from torch's {how}; nothing was written{advice}")
