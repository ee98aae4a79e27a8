"""A network as the graph of torch's exporter, with the weights of the sparse layers as inputs of the graph.

The weights are inputs, so the exporter can neither store them nor compute with them. They get their recipes later.
"""

import contextlib
import dataclasses
import io
import logging
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from dctps.base.extras import needed
from dctps.export.batches import Batches, Example, Inputs, inputs_of, served
from dctps.export.functions import OPSET
from dctps.export.network import check_example, outputs, plain_copy, reason, sparse_weights, takes
from dctps.export.weights import Weight
from dctps.nn.wrappers import unwrapped


@dataclasses.dataclass(frozen=True)
class Captured:
    """A network as a graph of ONNX, and as plain layers of torch to compare it with."""

    model: Any  # onnx.ModelProto; its first inputs are those of the network, then come the layers' weights and `shared`
    network: nn.Module  # plain, in eval mode, on the CPU
    given: Inputs  # the example
    traced: Inputs  # the example for which the graph was made: one sample is doubled
    batches: Batches  # for which the graph holds, but for one sample, which torch never traces
    weights: dict[str, Weight]  # the sparse weights by their names in `network`, in the order of the inputs
    shared: list[str]  # other parameters and buffers that are inputs, by name

    @property
    def input_names(self) -> list[str]:
        """The names of the network's inputs in the file."""
        if self.given.names is not None:
            return list(self.given.names)
        count = len(self.given.tensors)
        return [f"input_{i}" for i in range(count)] if count > 1 else ["input"]

    @property
    def sizes(self) -> list[int]:
        """The numbers of samples for which the file is compared with torch."""
        samples = self.traced.samples
        return [n for n in sorted({1, samples, samples + 1, 2 * samples}) if n in self.batches]

    def run(self, inputs: Inputs) -> list[Tensor]:
        """Return the outputs of torch's network."""
        return outputs(self.network, inputs)


def capture(model: nn.Module, example: Example, shared: Iterable[str] = ()) -> Captured:
    """Return the graph of a network; raise ValueError if the example does not fit or the network cannot be traced.

    The network has passed `check_exportable`.
    shared: further parameters and buffers of the plain network that become inputs.
    """
    for package in ("onnx", "onnxscript"):
        needed(package, "an ONNX file")
    inner = unwrapped(model)
    weights, shared = sparse_weights(inner), list(shared)
    network = plain_copy(inner, bool(weights))
    given = inputs_of(example)
    check_example(network, given)
    program, traced, batches = _traced(network, given, [*weights, *shared])
    return Captured(_proto(program), network, given, traced, batches, weights, shared)


class _WithWeights(nn.Module):
    """A network some of whose parameters and buffers are arguments."""

    def __init__(self, network: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.network, self.names = network, names

    def forward(self, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], weights: list[Tensor]) -> Any:
        replaced = dict(zip(self.names, weights, strict=True))
        return torch.func.functional_call(self.network, replaced, args, kwargs)


# --- the trace ------------------------------------------------------------------------------------------------------


def _traced(network: nn.Module, given: Inputs, names: list[str]) -> tuple[Any, Inputs, Batches]:
    """Return the program of a network, the example that it was made for, and the batches for which it holds.

    torch.export would insist on one sample, so one is doubled where the network takes two.
    """
    traced = given.with_samples(2) if given.samples == 1 else given
    if traced is None or not takes(network, traced):
        traced = given
    others = sorted({traced.samples + 1, 2 * traced.samples})
    refused = tuple(n for n in others if not takes(network, traced.with_samples(n)))
    fixed = len(refused) == len(others)
    program = _program(network, traced, names, fixed)
    batches = served(program, traced)
    if batches.largest == traced.samples == batches.smallest:
        if given is not traced:
            traced, program = given, _program(network, given, names, fixed=True)
        return program, traced, Batches(given.samples, given.samples)
    if any(n in batches for n in refused):
        batches = dataclasses.replace(
            batches, smallest=given.samples, refused=tuple(n for n in refused if n in batches)
        )
    elif batches.smallest == 1 and not takes(network, traced.with_samples(1)):
        batches = dataclasses.replace(batches, smallest=2)
    return program, traced, batches


def _program(network: nn.Module, inputs: Inputs, names: list[str], fixed: bool) -> Any:
    """Return the program of torch.export.

    names: the parameters and buffers that become inputs.
    fixed: whether it is for batches of this size alone.
    """
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    weights = [tensors[name].detach() for name in names]
    any_batch = {0: torch.export.Dim.AUTO}
    axes = [any_batch if grows and not fixed else None for grows in inputs.grows]
    named = {} if inputs.names is None else dict(zip(inputs.names, axes, strict=True))
    shapes = (tuple(axes) if inputs.names is None else (), named, [None] * len(weights))
    wrapped = _WithWeights(network, names).eval()
    try:
        with _quietly(), torch.no_grad():
            example = inputs.args, inputs.kwargs, weights
            return torch.export.export(wrapped, example, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # torch.export raises errors of many kinds
        raise ValueError(
            f"this network cannot be exported, because torch.export cannot trace it: {reason(error)}; its forward "
            "code must not decide by the values of tensors (use torch.where or torch.cond), and must return tensors"
        ) from error


def _proto(program: Any) -> Any:
    """Return the program as a model of ONNX; raise ValueError if torch knows no ONNX for an operator in it."""
    try:
        with _quietly():
            return torch.onnx.export(program, dynamo=True, opset_version=OPSET, verbose=False).model_proto  # type: ignore[union-attr]
    except Exception as error:  # torch.onnx raises errors of many kinds, which say in the last cause what is wrong
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ValueError(
            f"this network cannot be exported, because torch has no ONNX for it: {reason(cause)}"
        ) from error


_LOGGERS = ["torch.onnx", "torch.export", "torch._export", "torch.fx", "onnxscript", "onnx_ir"]


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep the exporter from warning of its own code and of packages that are not installed."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():  # torch.fx prints unfinished graphs
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
