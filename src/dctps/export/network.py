"""The network of an export: whether it can be exported, its plain copy, which weights are sparse, and its outputs."""

import copy

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dctps.export.batches import Inputs, shown
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


def check_exportable(model: nn.Module) -> None:
    """Raise ValueError unless a network can be copied and traced, and all its real numbers are float32."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise ValueError(
            "this network has code of torch.jit, which torch.export cannot trace; export the network of Python that it "
            "was made from"
        )
    inner = unwrapped(model)
    for path, module in inner.named_modules():
        if kept := [key for key, value in vars(module).items() if _is_computed(value)]:
            raise ValueError(
                f"{path or 'the network'} keeps a tensor that was computed with gradients ({kept[0]!r}), which cannot "
                "be copied; delete this attribute, or detach the tensor before it is kept"
            )
    _check_types(inner)


def _is_computed(value: object) -> bool:
    return any(isinstance(leaf, Tensor) and not leaf.is_leaf for leaf in pytree.tree_leaves(value))


def _check_types(model: nn.Module) -> None:
    """Raise ValueError unless all real numbers of the network are float32."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name.endswith("fingerprint"):
            continue
        if tensor.is_meta:
            raise ValueError(f"{name!r} is on the meta device and has no values; load a file into the network first")
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            raise ValueError(f"{name!r} is of {tensor.dtype}, and a network of float32 is exported; call .float()")


def plain_copy(model: nn.Module, is_sparse: bool) -> nn.Module:
    """Return a copy of a network with plain layers, in eval mode, on the CPU."""
    network = copy.deepcopy(model).cpu()
    norms = any(isinstance(m, SparseBatchNorm) for m in network.modules())
    if is_sparse or norms or before(network) is not None or fused_layers(network):
        network = densify(network)
    return network.eval()


def sparse_weights(model: nn.Module) -> dict[str, Weight]:
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


def check_example(network: nn.Module, inputs: Inputs) -> None:
    """Raise ValueError unless the network takes the example."""
    try:
        with torch.no_grad():
            output = network(*inputs.args, **inputs.kwargs)
    except Exception as error:
        raise ValueError(f"the network does not take the example input of shape {inputs}: {reason(error)}") from error
    strange = [y for y in pytree.tree_leaves(output) if not isinstance(y, Tensor | None)]
    if strange:
        raise ValueError(f"a network that is exported returns tensors, and this one returns {shown(strange[0])}")


def takes(network: nn.Module, inputs: Inputs | None) -> bool:
    """Return whether the network takes these inputs."""
    try:
        return inputs is not None and outputs(network, inputs) is not None
    except Exception:  # code of the user raises errors of any kind
        return False


def outputs(network: nn.Module, inputs: Inputs) -> list[Tensor]:
    """Return the tensors that the network returns."""
    with torch.no_grad():
        leaves = pytree.tree_leaves(network(*inputs.args, **inputs.kwargs))
    return [y.detach() for y in leaves if isinstance(y, Tensor)]


def reason(error: BaseException) -> str:
    """Return the first line of an error that says something."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
