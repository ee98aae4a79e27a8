"""Saving a sparse network to one safetensors file; `contents.py` says what is in the file."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dctps.base.files import write_atomically
from dctps.checkpoint.adapter_file import write_adapter
from dctps.checkpoint.adapter_state import state_of
from dctps.checkpoint.contents import RESERVED, VERSION, CheckpointError, digest_of
from dctps.checkpoint.manifest import ALPHA, DTYPES, NORMS, POSITIONS, VALUES, Entry, LayerEntry, NormEntry, valid_seed
from dctps.checkpoint.serialize import serialized
from dctps.core.elias_fano import encode
from dctps.core.patch_offset import PatchOffset
from dctps.nn.batchnorm import SparseBatchNorm
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.fine_tuned import tuned_weights
from dctps.nn.foreign import check_network
from dctps.nn.prunable import state_keys
from dctps.nn.running_statistics import STATISTICS, tracked_norms
from dctps.nn.supported import EXTRA
from dctps.nn.wrappers import unwrapped


def save(
    model: nn.Module, path: str | os.PathLike[str], *, statistics: bool = True, dtype: torch.dtype | None = None
) -> None:
    """Save a sparse network to one file; a reader of the path sees the old file or the new one, never a part.

    A support that a seed gives is saved as that seed; any other takes about log2(size / nnz) + 2 bits a value. D is not
    saved, only the name of the offset. A network with an offset of your own class cannot be saved, because a file
    cannot name it. Of a fine-tuned network the file holds what fine-tuning has made and a fingerprint of the weights W0
    (docs/finetuning.md).

    statistics: whether to save the running statistics of BatchNorm layers, two numbers a channel. Without them the
        loaded network must see some data, by `recalibrate`, before it can be evaluated.
    dtype: the type of the values of a fine-tuned network in the file, as torch.float16; by default it is their own.
    """
    check_network(model, "save(model, path)", path)
    model = unwrapped(model)
    if tuned_weights(model):
        _save_adapter(model, path, dtype)
        return
    if dtype is not None:
        raise ValueError("dtype= is for fine-tuned networks; convert this network with .to() and save it then")
    layers = {name: m for name, m in model.named_modules() if isinstance(m, DpsLayer | SparseBatchNorm)}
    if not layers:
        raise CheckpointError("this network has no sparse layer; save its state_dict with safetensors instead")
    entries = [_layer_entry(name, m) for name, m in layers.items() if isinstance(m, DpsLayer)]
    norms = [_norm_entry(name, m) for name, m in layers.items() if isinstance(m, SparseBatchNorm)]
    tensors = _pack(layers, [*entries, *norms])
    left_out = set() if statistics else state_keys(model, tracked_norms(model), STATISTICS)
    rest, tied = _rest(model, layers, left_out)
    tensors |= rest
    manifest = {
        "version": VERSION if norms or left_out else 1,
        "layers": [entry.to_json() for entry in entries],
        **({"norms": [entry.to_json() for entry in norms]} if norms else {}),
        **({"statistics": False} if left_out else {}),
        **({"tied": tied} if tied else {}),
    }
    text = json.dumps(manifest, separators=(",", ":"))
    metadata = {"dctps": text, "digest": digest_of(text, tensors)}
    content = serialized(tensors, metadata)  # save_file would leave its temporary file behind if it is killed
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def _save_adapter(model: nn.Module, path: str | os.PathLike[str], dtype: torch.dtype | None) -> None:
    try:
        state = state_of(model)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    write_adapter(state, path, dtype)


def _layer_entry(name: str, layer: DpsLayer) -> LayerEntry:
    """Return the entry of a layer in the manifest; raise CheckpointError if a file cannot describe the layer."""
    if layer.offset is not None and not isinstance(layer.offset, PatchOffset):
        kind = type(layer.offset).__name__
        raise CheckpointError(
            f"layer {name!r} has an offset of class {kind}, which a file cannot name; save its state_dict instead"
        )
    dtype = _dtype(name, layer.values)
    offset = None if layer.offset is None else layer.offset.recipe.name
    train_alpha = layer.alpha is None or isinstance(layer.alpha, nn.Parameter)
    shape, seed = layer.geometry.weight_shape, valid_seed(layer.support, layer.seed)
    return LayerEntry(name, shape, layer.nnz, seed, dtype, offset, train_alpha)


def _norm_entry(name: str, norm: SparseBatchNorm) -> NormEntry:
    dtype = _dtype(name, norm.scale)
    return NormEntry(name, (norm.num_features,), norm.nnz, valid_seed(norm.support, norm.seed), dtype)


def _dtype(name: str, values: Tensor) -> str:
    """Return the name of the dtype of the values; raise CheckpointError if a file cannot hold them."""
    if values.is_meta:
        raise CheckpointError(f"layer {name!r} is on the meta device: there are no values to save")
    dtype = str(values.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise CheckpointError(f"layer {name!r} holds {dtype} values; a file can hold {', '.join(DTYPES)}")
    return dtype


def _pack(layers: Mapping[str, DpsLayer | SparseBatchNorm], entries: Sequence[Entry]) -> dict[str, Tensor]:
    """Return the packed tensors: the values, alphas and positions of all layers, one after the other."""
    tensors: dict[str, list[Tensor]] = {}
    for entry in entries:
        layer = layers[entry.name]
        if isinstance(layer, SparseBatchNorm):
            tensors.setdefault(NORMS + entry.dtype, []).extend(p.detach().cpu() for p in (layer.scale, layer.shift))
        else:
            tensors.setdefault(VALUES + entry.dtype, []).append(layer.values.detach().cpu())
            if layer.alpha is not None:
                tensors.setdefault(ALPHA, []).append(layer.alpha.detach().cpu().double().view(1))
        if entry.seed is None:
            code = encode(layer.positions.cpu().numpy().astype(np.int64), math.prod(entry.shape))
            tensors.setdefault(POSITIONS, []).append(torch.from_numpy(code))
    return {name: torch.cat(parts) for name, parts in tensors.items()}


def _rest(
    model: nn.Module, layers: Mapping[str, nn.Module], left_out: set[str]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the state outside the packed tensors, and the first name of each tensor that has a second name."""
    skipped = left_out | state_keys(model, layers.values(), ("values", "alpha", "scale", "shift", EXTRA))
    rest, tied, seen = {}, dict[str, str](), dict[Any, str]()
    for name, tensor in model.state_dict().items():
        if name in skipped:
            continue
        _check_tensor(name, tensor)
        place = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        first = seen.setdefault(place, name) if tensor.numel() else name
        if first == name:
            rest[name] = tensor.detach().cpu().contiguous().clone()
        else:
            tied[name] = first
    return rest, tied


def _check_tensor(name: str, tensor: Any) -> None:
    """Raise CheckpointError unless a file can hold this entry of the state."""
    if name.startswith(RESERVED):
        raise CheckpointError(f"the name {name!r} is reserved for packed tensors; rename that module")
    if not isinstance(tensor, Tensor) or name.endswith("_extra_state"):
        raise CheckpointError(
            f"the state entry {name!r} is not a tensor of the network; a file cannot hold extra state"
        )
    if tensor.is_meta or tensor.layout != torch.strided or nn.parameter.is_lazy(tensor):
        raise CheckpointError(f"the state entry {name!r} has no plain values to save (meta, lazy or sparse)")
