"""A network as the graph of torch's exporter, with the weights of the sparse layers as inputs of the graph.

The weights are inputs, so the exporter can neither store them nor compute with them. They get their recipes later.
"""

import contextlib
import copy
import dataclasses
import io
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dctps.base.extras import needed
from dctps.export.functions import OPSET
from dctps.export.weights import Weight
from dctps.nn.batchnorm import SparseBatchNorm
from dctps.nn.built_layer import BuiltLayer, BuiltPart
from dctps.nn.convert import densify
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.fine_tuned import weight_name
from dctps.nn.finetune import before
from dctps.nn.fuse import fused_layers
from dctps.nn.sparse_part import SparsePart
from dctps.nn.wrappers import unwrapped

Example = Tensor | Sequence[Tensor] | Mapping[str, Tensor]


@dataclasses.dataclass(frozen=True)
class Captured:
    """A network as a graph of ONNX, and as plain layers of torch to compare it with."""

    model: Any  # onnx.ModelProto; its first inputs are those of the network, then come the layers' weights and `shared`
    network: nn.Module  # plain, in eval mode, on the CPU
    args: tuple[Tensor, ...]
    kwargs: dict[str, Tensor]
    weights: dict[str, Weight]  # the sparse weights by their names in `network`, in the order of the inputs
    shared: list[str]  # other parameters and buffers that are inputs, by name

    @property
    def input_names(self) -> list[str]:
        """The names of the network's inputs in the file."""
        many = len(self.args) > 1
        return [f"input_{i}" if many else "input" for i in range(len(self.args))] + list(self.kwargs)

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs of torch's network for the tensors of its inputs, in the order of their names."""
        args, kwargs = tensors[: len(self.args)], dict(zip(self.kwargs, tensors[len(self.args) :], strict=True))
        with torch.no_grad():
            return [y for y in pytree.tree_leaves(self.network(*args, **kwargs)) if isinstance(y, Tensor)]


def capture(model: nn.Module, example: Example, shared: Iterable[str] = ()) -> Captured:
    """Return the graph of a network; raise ValueError if the example does not fit or the network cannot be traced.

    shared: further parameters and buffers of the plain network that become inputs.
    """
    for package in ("onnx", "onnxscript"):
        needed(package, "an ONNX file")
    inner = unwrapped(model)
    weights = _sparse(inner)
    _check_types(inner)
    network = copy.deepcopy(inner).cpu()
    if (
        weights
        or before(network) is not None
        or fused_layers(network)
        or any(isinstance(m, SparseBatchNorm) for m in network.modules())
    ):
        network = densify(network)
    network.eval()
    args, kwargs = _inputs(example)
    _check_example(network, args, kwargs)
    program = _program(network, args, kwargs, [*weights, *shared])
    return Captured(_proto(program), network, args, kwargs, weights, list(shared))


def _sparse(model: nn.Module) -> dict[str, Weight]:
    """Return the weights that have recipes, by their names in the plain network."""
    found = {}
    for path, layer in model.named_modules():
        if isinstance(layer, BuiltLayer):
            for weight, names in layer.parts:
                parts = {weight_name(path, name): layer.part(name) for name in names}
                found[f"{path}.{weight}" if path else weight] = Weight(dict(parts))
        elif isinstance(layer, DpsLayer) and not isinstance(layer, SparsePart | BuiltPart):
            found[f"{path}.weight" if path else "weight"] = Weight({path: layer})
    return found


class _WithWeights(nn.Module):
    """A network some of whose parameters and buffers are arguments."""

    def __init__(self, network: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.network, self.names = network, names

    def forward(self, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], weights: list[Tensor]) -> Any:
        replaced = dict(zip(self.names, weights, strict=True))
        return torch.func.functional_call(self.network, replaced, args, kwargs)


def _program(network: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], names: list[str]) -> Any:
    """Return the program of torch.export, for batches of any size where the network allows it.

    names: the parameters and buffers that become inputs.
    """
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    weights = [tensors[name].detach() for name in names]
    any_batch = {0: torch.export.Dim.AUTO}
    shapes = (tuple(any_batch for _ in args), dict.fromkeys(kwargs, any_batch), [None] * len(weights))
    wrapped = _WithWeights(network, names).eval()
    try:
        with _quietly(), torch.no_grad():
            return torch.export.export(wrapped, (args, kwargs, weights), dynamic_shapes=shapes, strict=False)
    except Exception as error:  # torch.export raises errors of many kinds
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ValueError(
            f"this network cannot be exported, because torch.export cannot trace it: {reason}; its forward code must "
            "not decide by the values of tensors (use torch.where or torch.cond), and must return tensors"
        ) from error


def _proto(program: Any) -> Any:
    """Return the program as a model of ONNX; raise ValueError if torch knows no ONNX for an operator in it."""
    try:
        with _quietly():
            return torch.onnx.export(program, dynamo=True, opset_version=OPSET, verbose=False).model_proto  # type: ignore[union-attr]
    except Exception as error:  # torch.onnx raises errors of many kinds, which say in the cause what is wrong
        reason = (str(error.__cause__ or error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"this network cannot be exported, because torch has no ONNX for it: {reason}") from error


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


# --- the arguments ---------------------------------------------------------------------------------------------------


def _check_types(model: nn.Module) -> None:
    """Raise ValueError unless all real numbers of the network are float32."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name.endswith("fingerprint"):
            continue
        if tensor.is_meta:
            raise ValueError(f"{name!r} is on the meta device and has no values; load a file into the network first")
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            raise ValueError(f"{name!r} is of {tensor.dtype}, and a network of float32 is exported; call .float()")


def _inputs(example: Example) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return the example as positional and named tensors; one sample is doubled: torch.export would insist on one."""
    if not isinstance(example, Mapping | Sequence):
        example = (example,)
    tensors = list(example.values()) if isinstance(example, Mapping) else list(example)
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or tensor.dim() == 0 or len(tensor) == 0 or tensor.is_meta:
            raise ValueError(
                "an example input is a tensor with a batch axis and at least one sample, a sequence of such tensors or "
                f"a dictionary of them by the names of the arguments; this is {_shown(tensor)}"
            )
    if not tensors:
        raise ValueError("an example input has at least one tensor")
    pairs = [torch.cat([t, t]) if len(t) == 1 else t for t in (t.detach().cpu() for t in tensors)]
    return ((), dict(zip(example, pairs, strict=True))) if isinstance(example, Mapping) else (tuple(pairs), {})


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}" + (" on the meta device" if value.is_meta else "")
    return f"an object of type {type(value).__name__}"


def _check_example(network: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
    """Raise ValueError unless the network takes the example."""
    try:
        with torch.no_grad():
            output = network(*args, **kwargs)
    except Exception as error:
        shapes = ", ".join(str(tuple(t.shape)) for t in (*args, *kwargs.values()))
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"the network does not take the example input of shape {shapes}: {reason}") from error
    strange = [y for y in pytree.tree_leaves(output) if not isinstance(y, Tensor | None)]
    if strange:
        raise ValueError(f"a network that is exported returns tensors, and this one returns {_shown(strange[0])}")
