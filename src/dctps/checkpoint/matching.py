"""Finding the layers of a file in a network, and checking that file and network fit together."""

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dctps.checkpoint.contents import Contents
from dctps.checkpoint.manifest import LayerEntry, NormEntry
from dctps.core.offsets import offset_name
from dctps.nn.batchnorm import NORMS, SparseBatchNorm
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.prunable import LAYERS, state_keys
from dctps.nn.running_statistics import STATISTICS, tracked_norms
from dctps.nn.supported import EXTRA


def with_statistics(contents: Contents, model: nn.Module) -> Contents:
    """Return the contents; if the file holds no running statistics, add the values that torch starts from."""
    if contents.statistics:
        return contents
    start = dict(zip(STATISTICS, (torch.zeros, torch.ones, torch.zeros), strict=True))
    state, fresh = model.state_dict(), dict[str, Tensor]()
    for key in state_keys(model, tracked_norms(model), STATISTICS):
        fresh[key] = start[key.rpartition(".")[2]](state[key].shape, dtype=state[key].dtype, device="cpu")
    if fresh.keys() & contents.rest.keys():
        name = min(fresh.keys() & contents.rest.keys())
        raise ValueError(f"it holds the running statistics {name!r}, but its manifest says that it has none")
    return dataclasses.replace(contents, rest=contents.rest | fresh)


def find_layer(model: nn.Module, entry: LayerEntry) -> nn.Module:
    """Return the layer that an entry of the file describes; raise ValueError if the network has no such layer."""
    module = _submodule(model, entry.name)
    if isinstance(module, DpsLayer):
        _check_sparse(module, entry)
        return module
    weight = module._parameters.get("weight") if type(module) in LAYERS else None
    if weight is None:
        raise ValueError(f"its {entry.name!r} is a {type(module).__name__}, not a linear layer or a convolution")
    if tuple(weight.shape) != entry.shape:
        raise ValueError(
            f"its layer {entry.name!r} has a weight of shape {tuple(weight.shape)}, the file {entry.shape}"
        )
    return module


def find_norm(model: nn.Module, entry: NormEntry) -> _BatchNorm:
    """Return the BatchNorm layer that an entry describes; raise ValueError if the network has no such layer."""
    norm = _submodule(model, entry.name)
    whole = type(norm) in NORMS and all(norm._parameters.get(key) is not None for key in ("weight", "bias"))
    if not isinstance(norm, _BatchNorm) or not (whole or isinstance(norm, SparseBatchNorm)):
        raise ValueError(f"its {entry.name!r} is a {type(norm).__name__}, not a BatchNorm layer with scale and shift")
    found = (norm.num_features,), norm.nnz if isinstance(norm, SparseBatchNorm) else entry.nnz
    if found != (entry.shape, entry.nnz):
        raise ValueError(
            f"its BatchNorm layer {entry.name!r} has (channels, nnz) {found}, the file {entry.shape, entry.nnz}"
        )
    return norm


def _submodule(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        raise ValueError(f"it has no layer {name!r}") from None


def _check_sparse(layer: DpsLayer, entry: LayerEntry) -> None:
    """Raise ValueError unless a sparse layer of the network is like the one in the file."""
    if layer.values.is_meta:
        raise ValueError(f"its sparse layer {entry.name!r} is on the meta device; load into the plain network instead")
    found = layer.geometry.weight_shape, layer.nnz, offset_name(layer.offset)
    expected = entry.shape, entry.nnz, entry.offset
    if found != expected:
        raise ValueError(
            f"its sparse layer {entry.name!r} has (shape, nnz, offset) {found}, the file {expected}; "
            "load into the plain network instead"
        )


def check_distinct(modules: dict[str, nn.Module]) -> None:
    """Raise ValueError if two layers of the file are one module that the network uses twice."""
    seen: dict[int, str] = {}
    for name, module in modules.items():
        first = seen.setdefault(id(module), name)
        if first != name:
            raise ValueError(f"its layers {first!r} and {name!r} are one and the same, in the file they are two")


def check_rest(model: nn.Module, contents: Contents) -> None:
    """Raise ValueError unless the state outside the sparse layers has the same names and shapes on both sides."""
    layers, norms = ({entry.name for entry in entries} for entries in (contents.entries, contents.norms))
    sparse = {name for name, layer in model.named_modules() if isinstance(layer, DpsLayer | SparseBatchNorm)}
    if sparse - layers - norms:
        raise ValueError(f"its layer {min(sparse - layers - norms)!r} is sparse, in the file it is not")
    packed = state_keys(model, map(model.get_submodule, layers), ("weight", "values", "alpha", EXTRA))
    packed |= state_keys(model, map(model.get_submodule, norms), ("weight", "bias", "scale", "shift", EXTRA))
    state = {key: value for key, value in model.state_dict().items() if key not in packed}
    if state.keys() != contents.rest.keys():
        missing, extra = sorted(state.keys() - contents.rest.keys()), sorted(contents.rest.keys() - state.keys())
        raise ValueError(f"missing in the file: {missing or 'nothing'}; missing in the network: {extra or 'nothing'}")
    for key, tensor in contents.rest.items():
        if tensor.shape != state[key].shape:
            raise ValueError(f"its {key!r} has shape {tuple(state[key].shape)}, the file {tuple(tensor.shape)}")


def check_tied(contents: Contents, first: str, second: str) -> None:
    """Raise ValueError unless two tensors of the file are equal that are one and the same in the network."""
    if not torch.equal(contents.rest[first], contents.rest[second]):
        raise ValueError(f"its {first!r} and {second!r} are one and the same, in the file they differ")
