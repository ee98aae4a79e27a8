"""The file: one safetensors file with the values, where they are, and the rest of the state; D never.

    dctps/values/<dtype>   the values of all layers, one after the other
    dctps/alpha            one alpha per layer with an offset, in float64, which holds any of them exactly
    dctps/positions        Elias-Fano codes (`coding.py`) of the supports that are not given by a seed
    <own names>            every other parameter and buffer: biases, BatchNorm, embeddings ...

The metadata hold a JSON manifest (`dctps`: version, layers) and a digest of the manifest and all tensors (`digest`).
docs/checkpoint.md describes the format for readers in other languages. Everything in a file is checked against the
file itself and against the model before the model is touched.
"""

import dataclasses
import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor, nn

from dctps.coding import coded_length, decode, encode
from dctps.files import write_atomically
from dctps.layers import DpsLayer
from dctps.offsets import PatchOffset, TransformOffset
from dctps.support import Support
from dctps.survey import state_keys

VERSION = 1
RESERVED = "dctps/"
VALUES, ALPHA, POSITIONS = "dctps/values/", "dctps/alpha", "dctps/positions"
DTYPES = {str(d).removeprefix("torch."): d for d in (torch.float32, torch.float64, torch.float16, torch.bfloat16)}


class CheckpointError(ValueError):
    """A file that cannot be loaded, or a network that cannot be saved; the message says why and what to do."""


@dataclasses.dataclass(frozen=True)
class LayerEntry:
    """What the manifest says of one layer."""

    name: str
    shape: tuple[int, ...]
    nnz: int
    seed: int | None  # None: the positions are in the file
    offset: str | None
    dtype: str
    train_alpha: bool

    def to_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"name": self.name, "shape": self.shape, "nnz": self.nnz}
        optional: dict[str, tuple[Any, Any]] = {
            "seed": (self.seed, None),
            "offset": (self.offset, "dct"),
            "dtype": (self.dtype, "float32"),
        }
        optional["train_alpha"] = (self.train_alpha, True)
        return entry | {key: value for key, (value, default) in optional.items() if value != default}

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> "LayerEntry":
        defaults = {"seed": None, "offset": "dct", "dtype": "float32", "train_alpha": True}
        unknown = set(entry) - {field.name for field in dataclasses.fields(cls)}
        if unknown:
            raise ValueError(f"unknown keys {sorted(unknown)}")
        fields = {**defaults, **entry}
        result = cls(**{**fields, "shape": tuple(fields["shape"])})
        result._check()
        return result

    def _check(self) -> None:
        sizes = [self.nnz, 0 if self.seed is None else self.seed, *self.shape]
        if not all(type(n) is int and 0 <= n < 2**63 for n in sizes) or type(self.name) is not str:
            raise ValueError("names must be strings, counts and shapes non-negative integers")
        if len(self.shape) < 2 or not self.nnz <= math.prod(self.shape) < 2**62:
            raise ValueError(f"{self.nnz} values in a weight of shape {self.shape}")
        if self.dtype not in DTYPES or type(self.train_alpha) is not bool:
            raise ValueError(f"dtype {self.dtype!r}, train_alpha {self.train_alpha!r}")
        if self.offset is not None:
            TransformOffset.parse(self.offset)


@dataclasses.dataclass(frozen=True)
class Contents:
    """A file, read and checked: a support, values and alpha for each layer, and the rest of the state."""

    entries: list[LayerEntry]
    supports: dict[str, Support]
    values: dict[str, Tensor]
    alphas: dict[str, Tensor]
    rest: dict[str, Tensor]
    tensors: dict[str, Tensor]  # as they stand in the file


# --- saving ---------------------------------------------------------------------------------------------------------


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write the network to one file, atomically.

    A support that is still the sampled one is saved as its seed; any other takes about log2(size / nnz) + 2 bits a
    value. D is not saved: an offset of your own class cannot be, because the file could not say what it is.
    """
    model = unwrapped(model)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, DpsLayer)}
    if not layers:
        raise CheckpointError("this network has no sparse layer; save its state_dict with safetensors instead")
    entries = [_entry(name, layer) for name, layer in layers.items()]
    tensors = _packed(layers, entries)
    rest, tied = _rest(model, layers)
    tensors |= rest
    manifest = {
        "version": VERSION,
        "layers": [entry.to_json() for entry in entries],
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
    if layer.values.is_meta:
        raise CheckpointError(f"layer {name!r} is on the meta device: there are no values to save")
    dtype = str(layer.values.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise CheckpointError(f"layer {name!r} holds {dtype} values; a file can hold {', '.join(DTYPES)}")
    offset = None if layer.offset is None else layer.offset.recipe.name
    train_alpha = layer.alpha is None or isinstance(layer.alpha, nn.Parameter)
    shape = layer.geometry.weight_shape
    return LayerEntry(name, shape, layer.nnz, _valid_seed(layer), offset, dtype, train_alpha)


def _valid_seed(layer: DpsLayer) -> int | None:
    """The seed from which the support was sampled, if it still is that support."""
    support = layer.support
    if layer.seed is None or Support.sample(support.shape, support.nnz, layer.seed) != support:
        return None
    return layer.seed


def _packed(layers: dict[str, DpsLayer], entries: list[LayerEntry]) -> dict[str, Tensor]:
    tensors: dict[str, list[Tensor]] = {}
    for entry in entries:
        layer = layers[entry.name]
        tensors.setdefault(VALUES + entry.dtype, []).append(layer.values.detach().cpu())
        if layer.alpha is not None:
            tensors.setdefault(ALPHA, []).append(layer.alpha.detach().cpu().double().view(1))
        if entry.seed is None:
            code = encode(layer.positions.cpu().numpy().astype(np.int64), math.prod(entry.shape))
            tensors.setdefault(POSITIONS, []).append(torch.from_numpy(code))
    return {name: torch.cat(parts) for name, parts in tensors.items()}


def _rest(model: nn.Module, layers: dict[str, DpsLayer]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The state outside S and alpha, and which names of it are other names of the same tensor."""
    own = state_keys(model, layers.values(), ("values", "positions", "alpha"))
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
        if len({entry.name for entry in entries}) != len(entries):
            raise ValueError("a layer is listed twice")
        return _unpacked(entries, tensors, dict(manifest.get("tied", {})))
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


def _unpacked(entries: list[LayerEntry], tensors: dict[str, Tensor], tied: dict[str, str]) -> Contents:
    packed = {name: tensor for name, tensor in tensors.items() if name.startswith("dctps/")}
    rest = {name: tensor for name, tensor in tensors.items() if name not in packed}
    _check_sizes(entries, packed)
    values, alphas, supports = dict[str, Tensor](), dict[str, Tensor](), dict[str, Support]()
    used = dict.fromkeys(packed, 0)

    def take(name: str, count: int) -> Tensor:
        used[name] += count
        return packed[name][used[name] - count : used[name]]

    for entry in entries:
        values[entry.name] = take(VALUES + entry.dtype, entry.nnz)
        if entry.offset is not None:
            alphas[entry.name] = take(ALPHA, 1)[0]
        if entry.seed is None:
            size = math.prod(entry.shape)
            code = take(POSITIONS, coded_length(size, entry.nnz)).numpy()
            supports[entry.name] = Support(entry.shape, torch.from_numpy(decode(code, size, entry.nnz)))
        else:
            supports[entry.name] = Support.sample(entry.shape, entry.nnz, entry.seed)
    return Contents(
        entries, supports, values, alphas, rest | {alias: rest[name] for alias, name in tied.items()}, tensors
    )


def _check_sizes(entries: list[LayerEntry], packed: dict[str, Tensor]) -> None:
    """Each packed tensor has exactly the elements that the entries speak of, before anything of that size is made."""
    expected: dict[str, int] = {}
    for entry in entries:
        expected[VALUES + entry.dtype] = expected.get(VALUES + entry.dtype, 0) + entry.nnz
        if entry.offset is not None:
            expected[ALPHA] = expected.get(ALPHA, 0) + 1
        if entry.seed is None:
            length = coded_length(math.prod(entry.shape), entry.nnz)
            expected[POSITIONS] = expected.get(POSITIONS, 0) + length
    for name in expected.keys() | packed.keys():
        fixed = {POSITIONS: torch.uint8, ALPHA: torch.float64}
        dtype = fixed.get(name) or DTYPES.get(name.removeprefix(VALUES))
        tensor = packed.get(name)
        if tensor is None or tensor.dim() != 1 or tensor.dtype != dtype or len(tensor) != expected.get(name):
            found = "nothing" if tensor is None else f"{tuple(tensor.shape)} of {tensor.dtype}"
            raise ValueError(f"{name} should hold {expected.get(name, 0)} elements of {dtype}, not {found}")
