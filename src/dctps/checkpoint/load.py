"""Putting the contents of a file into a network: plain, sparse, or built under torch.device("meta")."""

import dataclasses
import os
import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dctps.checkpoint.contents import CheckpointError, Contents, read
from dctps.checkpoint.manifest import LayerEntry, NormEntry
from dctps.core.offsets import offset_name
from dctps.nn.batchnorm import NORMS, SparseBatchNorm
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.prunable import LAYERS, state_keys
from dctps.nn.replace import make_sparse_layer, make_sparse_norm, replace_layers
from dctps.nn.running_statistics import STATISTICS, tracked_norms
from dctps.nn.wrappers import unwrapped
from dctps.ops.functional import AUTO, check_backend


def load(
    path: str | os.PathLike[str],
    model: nn.Module,
    *,
    backend: str = AUTO,
    device: torch.device | str | None = None,
) -> nn.Module:
    """Load a file into a network of the same architecture, in place; returns it (for a bare layer: the new layer).

    Plain layers become sparse ones; layers that are sparse already keep their Parameter objects. The model's own dtype
    and device stay (meta tensors are made on `device`, by default the CPU). If anything does not fit, CheckpointError
    says what, and the model is as it was. A file without running statistics resets those of the model and warns.
    """
    check_backend(backend)
    contents, outer, model = read(path), model, unwrapped(model)
    target = torch.device(device or "cpu")
    try:
        contents = _with_statistics(contents, model)
        modules = {entry.name: _module(model, entry) for entry in contents.entries}
        norms = {entry.name: _norm(model, entry) for entry in contents.norms}
        _check_distinct({**modules, **norms})
        _check_rest(model, contents)
        new = _new_layers(modules, norms, contents, backend, target)
        rest = _rest_writers(model, new, contents, target)
    except ValueError as error:
        raise CheckpointError(f"{path} does not fit this network: {error}") from error
    with torch.no_grad():
        for entry in contents.entries:
            _fill(new.get(id(modules[entry.name]), modules[entry.name]), entry, contents)
        for norm in contents.norms:
            _fill_norm(new.get(id(norms[norm.name]), norms[norm.name]), norm, contents)
        for write in rest:
            write()
    result = replace_layers(model, new)
    if not contents.statistics:
        advice = "call dctps.recalibrate(model, batches) before evaluating it"
        warnings.warn(f"{path} holds no running statistics of BatchNorm layers; {advice}", stacklevel=2)
    return result if outer is model else outer


# --- what fits ------------------------------------------------------------------------------------------------------


def _with_statistics(contents: Contents, model: nn.Module) -> Contents:
    """Where a file holds no running statistics: the contents with those that torch starts from."""
    if contents.statistics:
        return contents
    start = dict(zip(STATISTICS, (torch.zeros, torch.ones, torch.zeros), strict=True))
    state, fresh = model.state_dict(), dict[str, Tensor]()
    for key in state_keys(model, tracked_norms(model), STATISTICS):
        fresh[key] = start[key.rpartition(".")[2]](state[key].shape, dtype=state[key].dtype, device="cpu")
    if fresh.keys() & contents.rest.keys():
        raise ValueError(f"it holds the running statistics {min(fresh.keys() & contents.rest.keys())!r} and denies it")
    return dataclasses.replace(contents, rest=contents.rest | fresh)


def _module(model: nn.Module, entry: LayerEntry) -> nn.Module:
    """The layer that an entry speaks of; ValueError where there is none like it."""
    try:
        module = model.get_submodule(entry.name)
    except AttributeError:
        raise ValueError(f"it has no layer {entry.name!r}") from None
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


def _norm(model: nn.Module, entry: NormEntry) -> _BatchNorm:
    """The BatchNorm layer that an entry speaks of; ValueError where there is none like it."""
    try:
        norm = model.get_submodule(entry.name)
    except AttributeError:
        raise ValueError(f"it has no layer {entry.name!r}") from None
    whole = type(norm) in NORMS and all(norm._parameters.get(key) is not None for key in ("weight", "bias"))
    if not isinstance(norm, _BatchNorm) or not (whole or isinstance(norm, SparseBatchNorm)):
        raise ValueError(f"its {entry.name!r} is a {type(norm).__name__}, not a BatchNorm layer with scale and shift")
    mine = (norm.num_features,), norm.nnz if isinstance(norm, SparseBatchNorm) else entry.nnz
    if mine != (entry.shape, entry.nnz):
        raise ValueError(
            f"its BatchNorm layer {entry.name!r} has (channels, pairs) {mine}, the file {entry.shape, entry.nnz}"
        )
    return norm


def _check_distinct(modules: dict[str, nn.Module]) -> None:
    """Two layers of the file may not fall on one module that the network uses twice."""
    seen: dict[int, str] = {}
    for name, module in modules.items():
        first = seen.setdefault(id(module), name)
        if first != name:
            raise ValueError(f"its layers {first!r} and {name!r} are one and the same, in the file they are two")


def _check_sparse(layer: DpsLayer, entry: LayerEntry) -> None:
    if layer.values.is_meta:
        raise ValueError(f"its sparse layer {entry.name!r} is on the meta device; load into the plain network instead")
    mine = layer.geometry.weight_shape, layer.nnz, offset_name(layer.offset)
    theirs = entry.shape, entry.nnz, entry.offset
    if mine != theirs:
        raise ValueError(
            f"its sparse layer {entry.name!r} has (shape, nnz, offset) {mine}, the file {theirs}; "
            "load into the plain network instead"
        )


def _check_rest(model: nn.Module, contents: Contents) -> None:
    """The state outside the entries has the same names and shapes on both sides."""
    named, norms = ({entry.name for entry in entries} for entries in (contents.entries, contents.norms))
    sparse = {name for name, layer in model.named_modules() if isinstance(layer, DpsLayer | SparseBatchNorm)}
    if sparse - named - norms:
        raise ValueError(f"its layer {min(sparse - named - norms)!r} is sparse, in the file it is not")
    own = state_keys(model, map(model.get_submodule, named), ("weight", "values", "positions", "alpha"))
    own |= state_keys(model, map(model.get_submodule, norms), ("weight", "bias", "scale", "shift", "positions"))
    mine = {key: value for key, value in model.state_dict().items() if key not in own}
    if mine.keys() != contents.rest.keys():
        missing, extra = sorted(mine.keys() - contents.rest.keys()), sorted(contents.rest.keys() - mine.keys())
        raise ValueError(f"missing in the file: {missing or 'nothing'}; missing in the network: {extra or 'nothing'}")
    for key, tensor in contents.rest.items():
        if tensor.shape != mine[key].shape:
            raise ValueError(f"its {key!r} has shape {tuple(mine[key].shape)}, the file {tuple(tensor.shape)}")


# --- writing into the model -----------------------------------------------------------------------------------------


def _new_layers(
    modules: Mapping[str, nn.Module],
    norms: Mapping[str, _BatchNorm],
    contents: Contents,
    backend: str,
    device: torch.device,
) -> dict[int, nn.Module]:
    """Sparse layers for the plain ones that the file speaks of, by the id of these."""
    new: dict[int, nn.Module] = {}
    for entry in contents.entries:
        if not isinstance(module := modules[entry.name], DpsLayer):
            options = {"offset": entry.offset, "train_alpha": entry.train_alpha, "backend": backend}
            new[id(module)] = make_sparse_layer(entry.name, module, contents.supports[entry.name], options, device)
    for name, norm in norms.items():
        if not isinstance(norm, SparseBatchNorm):
            new[id(norm)] = make_sparse_norm(norm, contents.supports[name], device)
    return new


def _fill(layer: nn.Module, entry: LayerEntry, contents: Contents) -> None:
    assert isinstance(layer, DpsLayer)
    layer.values.copy_(contents.values[entry.name])
    layer.positions.copy_(contents.supports[entry.name].positions)
    layer.seed = entry.seed
    if layer.alpha is not None:
        layer.alpha.copy_(contents.alphas[entry.name])
    bias = contents.rest.get(f"{entry.name}.bias" if entry.name else "bias")
    if bias is not None and layer.bias is not None:
        layer.bias.copy_(bias)


def _fill_norm(norm: nn.Module, entry: NormEntry, contents: Contents) -> None:
    assert isinstance(norm, SparseBatchNorm)
    scale, shift = contents.values[entry.name].view(2, -1)
    norm.scale.copy_(scale)
    norm.shift.copy_(shift)
    norm.positions.copy_(contents.supports[entry.name].positions)
    norm.seed = entry.seed


def _rest_writers(
    model: nn.Module, twins: Mapping[int, nn.Module], contents: Contents, device: torch.device
) -> list[Callable[[], object]]:
    """One action per remaining tensor: copy into a real one, or put a new one in the place of a meta one."""
    converted = {id(model.get_submodule(entry.name)) for entry in contents.entries}
    sources: dict[int, str] = {}  # the entry of the file that each tensor of the model takes
    made: dict[int, Tensor] = {}
    writers: list[Callable[[], object]] = []
    placed, homeless = set[str](), []
    for name, module in model.named_modules(remove_duplicate=False):
        twin = twins.get(id(module), module)  # of BatchNorm, with its statistics
        for store in (twin._parameters, twin._buffers):
            for key, old in store.items():
                full = f"{name}.{key}" if name else key
                placed.add(full)
                if old is None or id(module) in converted:
                    continue
                if full not in contents.rest:  # a buffer outside the state, or packed
                    homeless += [full] if old.is_meta else []
                    continue
                _check_tied(contents, sources.setdefault(id(old), full), full)
                new = contents.rest[full]
                if old.is_meta:
                    new = made[id(old)] = made.get(id(old), _real(old, new, device))
                writers.append(_setter(store, key, new) if old.is_meta else _copier(old, new))
    if homeless:
        raise ValueError(f"{', '.join(homeless)} is on the meta device and no part of the state; give it real values")
    if contents.rest.keys() - placed:
        raise ValueError(f"it has no place for {sorted(contents.rest.keys() - placed)}")
    return writers


def _check_tied(contents: Contents, first: str, second: str) -> None:
    if not torch.equal(contents.rest[first], contents.rest[second]):
        raise ValueError(f"its {first!r} and {second!r} are one and the same, in the file they differ")


def _copier(old: Tensor, new: Tensor) -> Callable[[], object]:
    return lambda: old.copy_(new)


def _setter(store: dict[str, Tensor | None], key: str, new: Tensor) -> Callable[[], object]:
    return lambda: store.__setitem__(key, new)


def _real(old: Tensor, new: Tensor, device: torch.device) -> Tensor:
    real = new.to(device, old.dtype, copy=True)
    return nn.Parameter(real, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else real
