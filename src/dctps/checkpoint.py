"""The file: one safetensors file with the values, where they are, and the rest of the state; D never.

    dctps/values/<dtype>     the values of all layers, one after the other
    dctps/alpha              one alpha per layer with an offset, in float64, which holds any of them exactly
    dctps/BatchNorm/<dtype>  the scales, then the shifts, of each sparse BatchNorm layer
    dctps/positions          Elias-Fano codes (`coding.py`) of the supports that are not given by a seed
    <own names>              every other parameter and buffer: biases, running statistics, embeddings ...

The metadata hold a JSON manifest (`dctps`: version, layers, norms; `manifest.py`) and a digest of the manifest and all
tensors (`digest`). docs/checkpoint.md describes the format for readers in other languages. Everything in a file is
checked against the file itself and against the model before the model is touched.
"""

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor, nn

from dctps.coding import decode, encode
from dctps.files import write_atomically
from dctps.layers import DpsLayer
from dctps.manifest import ALPHA, DTYPES, NORMS, VALUES, Entry, LayerEntry, NormEntry, valid_seed
from dctps.manifest import POSITIONS as POSITIONS
from dctps.normalisation import STATISTICS, SparseBatchNorm, tracked_norms
from dctps.offsets import PatchOffset
from dctps.support import Support
from dctps.survey import state_keys

VERSION = 2  # 1 knows neither sparse BatchNorm layers nor files without running statistics; files without them say 1
RESERVED = "dctps/"


class CheckpointError(ValueError):
    """A file that cannot be loaded, or a network that cannot be saved; the message says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Contents:
    """A file, read and checked: a support, values and alpha for each layer, and the rest of the state."""

    entries: list[LayerEntry]
    norms: list[NormEntry]
    supports: dict[str, Support]
    values: dict[str, Tensor]  # of a BatchNorm layer: the scales, then the shifts
    alphas: dict[str, Tensor]
    rest: dict[str, Tensor]
    tensors: dict[str, Tensor]  # as they stand in the file
    statistics: bool  # whether the running statistics of BatchNorm are in the file


# --- saving ---------------------------------------------------------------------------------------------------------


def save(model: nn.Module, path: str | os.PathLike[str], *, statistics: bool = True) -> None:
    """Write the network to one file, atomically.

    A support that is still the sampled one is saved as its seed; any other takes about log2(size / nnz) + 2 bits a
    value. D is not saved: an offset of your own class cannot be, because the file could not say what it is.

    statistics: whether to save the running statistics of BatchNorm layers, two numbers a channel. Without them the
        network must see some data after loading, by `recalibrate`, before it can be evaluated.
    """
    model = unwrapped(model)
    layers = {name: m for name, m in model.named_modules() if isinstance(m, DpsLayer | SparseBatchNorm)}
    if not layers:
        raise CheckpointError("this network has no sparse layer; save its state_dict with safetensors instead")
    entries = [_entry(name, m) for name, m in layers.items() if isinstance(m, DpsLayer)]
    norms = [_norm_entry(name, m) for name, m in layers.items() if isinstance(m, SparseBatchNorm)]
    tensors = _packed(layers, [*entries, *norms])
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
    metadata = {"dctps": text, "digest": _digest(text, tensors)}
    content = serialize(tensors, metadata)  # not save_file, whose own temporary file would outlive a kill
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def _entry(name: str, layer: DpsLayer) -> LayerEntry:
    if layer.offset is not None and not isinstance(layer.offset, PatchOffset):
        kind = type(layer.offset).__name__
        raise CheckpointError(
            f"layer {name!r} has an offset of class {kind}, which a file cannot name; save its state_dict"
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
    if values.is_meta:
        raise CheckpointError(f"layer {name!r} is on the meta device: there are no values to save")
    dtype = str(values.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise CheckpointError(f"layer {name!r} holds {dtype} values; a file can hold {', '.join(DTYPES)}")
    return dtype


def _packed(layers: Mapping[str, DpsLayer | SparseBatchNorm], entries: Sequence[Entry]) -> dict[str, Tensor]:
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
    """The state outside the packed tensors, and which names of it are other names of the same tensor."""
    own = left_out | state_keys(model, layers.values(), ("values", "positions", "alpha", "scale", "shift"))
    rest, tied, seen = {}, dict[str, str](), dict[Any, str]()
    for name, tensor in model.state_dict().items():
        if name in own:
            continue
        _check_entry(name, tensor)
        place = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        first = seen.setdefault(place, name) if tensor.numel() else name
        if first == name:
            rest[name] = tensor.detach().cpu().contiguous().clone()
        else:
            tied[name] = first
    return rest, tied


def _check_entry(name: str, tensor: Any) -> None:
    if name.startswith(RESERVED):
        raise CheckpointError(f"the name {name!r} is reserved; rename that module")
    if not isinstance(tensor, Tensor) or name.endswith("_extra_state"):
        raise CheckpointError(
            f"the state entry {name!r} is not a tensor of the network; a file can hold no extra state"
        )
    if tensor.is_meta or tensor.layout != torch.strided or nn.parameter.is_lazy(tensor):
        raise CheckpointError(f"the state entry {name!r} has no plain values to save (meta, lazy or sparse)")


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside torch's wrappers (DistributedDataParallel, torch.compile), so that its own names are saved."""
    while True:
        inner = model._modules.get("_orig_mod") or (
            model._modules.get("module") if isinstance(model, _WRAPPERS) else None
        )
        if inner is None:
            return model
        model = inner


_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def _digest(manifest: str, tensors: dict[str, Tensor]) -> str:
    """Of everything that a file says: the manifest, and each tensor's name, type, shape and bytes."""
    digest = hashlib.blake2b(manifest.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# --- reading --------------------------------------------------------------------------------------------------------


def read(path: str | os.PathLike[str]) -> Contents:
    """The contents of a file, checked against themselves; CheckpointError where anything is amiss."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    manifest, tensors = _open(path)
    try:
        entries = [LayerEntry.from_json(entry) for entry in manifest["layers"]]
        norms = [NormEntry.from_json(entry) for entry in manifest.get("norms", [])]
        if len({entry.name for entry in (*entries, *norms)}) != len(entries) + len(norms):
            raise ValueError("a layer is listed twice")
        if type(statistics := manifest.get("statistics", True)) is not bool:
            raise ValueError(f"statistics {statistics!r}")
        return _unpacked(entries, norms, tensors, dict(manifest.get("tied", {})), statistics)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{path} is inconsistent: {error}; it was not written by dctps.save") from error


def _open(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The manifest and the tensors of a file whose format, version and digest are right."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if "dctps" not in metadata:
                raise CheckpointError(
                    f"{path} is a safetensors file without a dctps manifest; load it with safetensors"
                )
            manifest = json.loads(metadata["dctps"])
            _check_version(path, manifest)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except CheckpointError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, RuntimeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged or not a safetensors file ({error}); take another copy") from error
    if metadata.get("digest") != _digest(metadata["dctps"], tensors):
        raise CheckpointError(f"{path} is damaged: its contents do not match their digest; take another copy")
    return manifest, tensors


def _check_version(path: Path, manifest: Any) -> None:
    version = manifest.get("version") if isinstance(manifest, dict) else None
    if type(version) is not int or version < 1:
        raise CheckpointError(f"{path} has a manifest without a version; it was not written by dctps.save")
    if version > VERSION:
        raise CheckpointError(f"{path} has format version {version}, this dctps reads up to {VERSION}; upgrade dctps")


def _unpacked(
    entries: list[LayerEntry],
    norms: list[NormEntry],
    tensors: dict[str, Tensor],
    tied: dict[str, str],
    statistics: bool,
) -> Contents:
    packed = {name: tensor for name, tensor in tensors.items() if name.startswith(RESERVED)}
    rest = {name: tensor for name, tensor in tensors.items() if name not in packed}
    _check_sizes([*entries, *norms], packed)
    values, alphas, supports = dict[str, Tensor](), dict[str, Tensor](), dict[str, Support]()
    used = dict.fromkeys(packed, 0)
    for entry in (*entries, *norms):
        own = dict[str, Tensor]()
        for name, length in entry.lengths().items():
            own[name] = packed[name][used[name] : used[name] + length]
            used[name] += length
        values[entry.name] = own[(NORMS if isinstance(entry, NormEntry) else VALUES) + entry.dtype]
        if ALPHA in own:
            alphas[entry.name] = own[ALPHA][0]
        supports[entry.name] = _support(entry, own.get(POSITIONS))
    rest |= {alias: rest[name] for alias, name in tied.items()}
    return Contents(entries, norms, supports, values, alphas, rest, tensors, statistics)


def _support(entry: Entry, code: Tensor | None) -> Support:
    if entry.seed is not None:
        return Support.sample(entry.shape, entry.nnz, entry.seed)
    assert code is not None
    return Support(entry.shape, torch.from_numpy(decode(code.numpy(), math.prod(entry.shape), entry.nnz)))


def _check_sizes(entries: Sequence[Entry], packed: dict[str, Tensor]) -> None:
    """Each packed tensor has exactly the elements that the entries speak of, before anything of that size is made."""
    expected: dict[str, int] = {}
    for entry in entries:
        for name, length in entry.lengths().items():
            expected[name] = expected.get(name, 0) + length
    for name in expected.keys() | packed.keys():
        fixed = {POSITIONS: torch.uint8, ALPHA: torch.float64}
        dtype = fixed.get(name) or DTYPES.get(name.removeprefix(VALUES).removeprefix(NORMS))
        tensor = packed.get(name)
        if tensor is None or tensor.dim() != 1 or tensor.dtype != dtype or len(tensor) != expected.get(name):
            found = "nothing" if tensor is None else f"{tuple(tensor.shape)} of {tensor.dtype}"
            raise ValueError(f"{name} should hold {expected.get(name, 0)} elements of {dtype}, not {found}")
