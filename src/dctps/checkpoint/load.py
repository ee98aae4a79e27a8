"""Loading a file into a network: a plain one, a sparse one, or one built under torch.device("meta")."""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dctps.checkpoint.adapter_file import as_adapter
from dctps.checkpoint.adapters import Adapter
from dctps.checkpoint.contents import CheckpointError, Contents, read
from dctps.checkpoint.manifest import LayerEntry, NormEntry
from dctps.checkpoint.matching import check_distinct, check_rest, check_tied, find_layer, find_norm, with_statistics
from dctps.core.support import Support
from dctps.nn.batchnorm import SparseBatchNorm
from dctps.nn.buildable import attach_saved
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.foreign import check_device, check_network, mark_config
from dctps.nn.fuse import mark
from dctps.nn.replace import make_sparse_layer, make_sparse_norm, replace_layers
from dctps.nn.wrappers import unwrapped
from dctps.ops.functional import AUTO, check_backend

Writer = Callable[[], object]  # writes one tensor into the network


def load(
    path: str | os.PathLike[str],
    model: nn.Module,
    *,
    backend: str = AUTO,
    device: torch.device | str | None = None,
    strict: bool = True,
) -> nn.Module:
    """Load a file into a network of the same architecture, in place, and return it (for a single layer: the new layer).

    Plain layers become sparse ones; layers that are sparse already keep their Parameter objects. The dtype of the model
    stays. The whole model moves to `device`; by default it stays where it is, and meta tensors become real ones on the
    CPU. If anything does not fit, CheckpointError says what, and the model is as it was. A file without running
    statistics resets those of the model and warns.

    The file of a fine-tuned network is loaded into the network that was fine-tuned, plain or with another adapter, and
    `detach` undoes it. It is refused where the weights W0 are others, or with `strict=False` used with a warning.
    """
    if isinstance(path, nn.Module):
        raise TypeError("load(path, model) takes the path of a file first, then the network; the arguments are swapped")
    check_network(model, "load(path, model)")
    check_backend(backend)
    check_device(device)
    contents, outer, model = read(path), model, unwrapped(model)
    if contents.base is not None:
        _attach_adapter(path, contents, model, strict, backend)
        return outer if device is None else outer.to(device)
    if not strict:
        raise ValueError("strict=False is for the files of fine-tuned networks; this file holds a whole network")
    target = torch.device(device or "cpu")
    with _fitting(path, model, contents, backend, target):
        contents = with_statistics(contents, model)
        layers = {entry.name: find_layer(model, entry) for entry in contents.entries}
        norms = {entry.name: find_norm(model, entry) for entry in contents.norms}
        check_distinct({**layers, **norms})
        check_rest(model, contents)
        new = _new_layers(layers, norms, contents, backend, target)
        writers = _rest_writers(model, new, contents, target)
    with torch.no_grad():
        for entry in contents.entries:
            _fill_layer(new.get(id(layers[entry.name]), layers[entry.name]), entry, contents)
        for norm in contents.norms:
            _fill_norm(new.get(id(norms[norm.name]), norms[norm.name]), norm, contents)
        for write in writers:
            write()
    result = replace_layers(model, new)
    mark(result)
    mark_config(result)
    if device is not None:
        result.to(target)
    if not contents.statistics:
        advice = "call dctps.recalibrate(model, batches) before evaluating it"
        warnings.warn(f"{path} holds no running statistics of BatchNorm layers; {advice}", stacklevel=2)
    return result if outer is model else outer


@contextlib.contextmanager
def _fitting(
    path: str | os.PathLike[str], model: nn.Module, contents: Contents, backend: str, device: torch.device
) -> Iterator[None]:
    """Let layers read built weights as in the file; where something does not fit, undo it and raise CheckpointError."""
    undo: Writer | None = None
    try:
        undo = attach_saved(model, _saved_parts(contents, backend), device)
        yield
    except ValueError as error:
        if undo is not None:
            undo()
        raise CheckpointError(f"{path} does not fit this network: {error}") from error


def _attach_adapter(
    path: str | os.PathLike[str], contents: Contents, model: nn.Module, strict: bool, backend: str
) -> None:
    try:
        Adapter(((1.0, as_adapter(contents)),)).attach(model, strict=strict, backend=backend)
    except ValueError as error:
        raise CheckpointError(f"{path} does not fit this network: {error}") from error


# --- the sparse layers ----------------------------------------------------------------------------------------------


def _saved_parts(contents: Contents, backend: str) -> dict[str, tuple[Support, dict[str, object]]]:
    """Return the support and the arguments of each layer of the file, by its name."""
    return {
        entry.name: (
            contents.supports[entry.name],
            {"offset": entry.offset, "train_alpha": entry.train_alpha, "backend": backend},
        )
        for entry in contents.entries
    }


def _new_layers(
    layers: Mapping[str, nn.Module],
    norms: Mapping[str, _BatchNorm],
    contents: Contents,
    backend: str,
    device: torch.device,
) -> dict[int, nn.Module]:
    """Return a sparse layer for each plain one that is sparse in the file, by the id of the plain layer."""
    new: dict[int, nn.Module] = {}
    for name, (support, options) in _saved_parts(contents, backend).items():
        if not isinstance(layer := layers[name], DpsLayer):
            new[id(layer)] = make_sparse_layer(name, layer, support, options, device)
    for name, norm in norms.items():
        if not isinstance(norm, SparseBatchNorm):
            new[id(norm)] = make_sparse_norm(norm, contents.supports[name], device)
    return new


def _fill_layer(layer: nn.Module, entry: LayerEntry, contents: Contents) -> None:
    """Write the values, positions, alpha and bias of the file into a sparse layer."""
    assert isinstance(layer, DpsLayer)
    layer.move(contents.supports[entry.name], contents.values[entry.name])
    if layer.alpha is not None:
        layer.alpha.copy_(contents.alphas[entry.name])
    bias = contents.rest.get(f"{entry.name}.bias" if entry.name else "bias")
    if bias is not None and layer.bias is not None:
        layer.bias.copy_(bias)


def _fill_norm(norm: nn.Module, entry: NormEntry, contents: Contents) -> None:
    """Write the scales, shifts and positions of the file into a sparse BatchNorm layer."""
    assert isinstance(norm, SparseBatchNorm)
    scale, shift = contents.values[entry.name].view(2, -1)
    norm.scale.copy_(scale)
    norm.shift.copy_(shift)
    norm._hold(contents.supports[entry.name])


# --- the rest of the state ------------------------------------------------------------------------------------------


class _Slot(NamedTuple):
    """A place in the network for a parameter or a buffer; it may be empty."""

    name: str  # in the state_dict
    module: nn.Module
    store: dict[str, Tensor | None]
    key: str  # in the store


def _slots(model: nn.Module, new: Mapping[int, nn.Module]) -> Iterator[_Slot]:
    """Yield the places of all parameters and buffers, with new layers in place of the old ones."""
    for path, module in model.named_modules(remove_duplicate=False):
        layer = new.get(id(module), module)
        for store in (layer._parameters, layer._buffers):
            for key in store:
                yield _Slot(f"{path}.{key}" if path else key, module, store, key)


def _rest_writers(
    model: nn.Module, new: Mapping[int, nn.Module], contents: Contents, device: torch.device
) -> list[Writer]:
    """Return a writer for each remaining tensor of the file; raise ValueError if a tensor has no place or no value.

    A writer copies into a real tensor, or puts a new tensor in place of a meta one.
    """
    filled = {id(model.get_submodule(entry.name)) for entry in contents.entries}  # layers that `_fill_layer` fills
    sources: dict[int, str] = {}  # by the id of each tensor of the model: the name of the tensor that it takes
    made: dict[int, Tensor] = {}  # by the id of each meta tensor: the tensor that replaces it
    writers: list[Writer] = []
    slots, without_value = list(_slots(model, new)), []
    for name, module, store, key in slots:
        old = store[key]
        if old is None or id(module) in filled:
            continue
        if name in contents.rest:
            check_tied(contents, sources.setdefault(id(old), name), name)
            writers.append(_writer(store, key, contents.rest[name], device, made))
        elif old.is_meta:  # a buffer that is not saved
            without_value.append(name)
    if without_value:
        names = ", ".join(without_value)
        raise ValueError(f"{names} is on the meta device and no part of the state; give it real values first")
    without_place = contents.rest.keys() - {slot.name for slot in slots}
    if without_place:
        raise ValueError(f"it has no place for {sorted(without_place)}")
    return writers


def _writer(
    store: dict[str, Tensor | None], key: str, value: Tensor, device: torch.device, made: dict[int, Tensor]
) -> Writer:
    """Return a function that writes a value into a place of the network.

    made: collects the tensors that replace meta tensors, so that a tensor in two places stays one tensor.
    """
    old = store[key]
    assert old is not None
    if not old.is_meta:
        return lambda: old.copy_(value)
    real = made.setdefault(id(old), _real_tensor(old, value, device))
    return lambda: store.__setitem__(key, real)


def _real_tensor(meta: Tensor, value: Tensor, device: torch.device) -> Tensor:
    """Return a tensor with this value, and with the dtype and kind (parameter or buffer) of a meta tensor."""
    real = value.to(device, meta.dtype, copy=True)
    return nn.Parameter(real, requires_grad=meta.requires_grad) if isinstance(meta, nn.Parameter) else real
