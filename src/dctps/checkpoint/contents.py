"""The contents of a file: one safetensors file with the values, their positions and the rest of the state, without D.

    dctps/values/<dtype>      the values of all layers, one after the other
    dctps/alpha               one alpha for each layer with an offset, in float64, which holds every dtype exactly
    dctps/BatchNorm/<dtype>   the scales, then the shifts, of each sparse BatchNorm layer
    dctps/positions           Elias-Fano codes (core/elias_fano.py) of the supports that are not given by a seed
    names of the state_dict   every other parameter and buffer: biases, running statistics, embeddings ...

The metadata hold a JSON manifest (`dctps`: version, layers, norms; `manifest.py`) and a digest of the manifest and all
tensors (`digest`). docs/checkpoint.md describes the format for readers in other languages. Everything in a file is
checked against the file itself and against the model before the model is touched.
"""

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dctps.checkpoint.manifest import ALPHA, DTYPES, NORMS, VALUES, Entry, LayerEntry, NormEntry
from dctps.checkpoint.manifest import POSITIONS as POSITIONS
from dctps.core.elias_fano import decode
from dctps.core.offsets import PRETRAINED
from dctps.core.support import Support

# Version 2 adds sparse BatchNorm layers and files without running statistics. A file that has neither says 1.
VERSION = 2
ADAPTER_VERSION = 3  # the version of the file of an adapter, which holds no weights W0 (`adapter_file.py`)
RESERVED = "dctps/"  # the names of packed tensors begin with it


class CheckpointError(ValueError):
    """The error for a file that cannot be loaded or a network that cannot be saved; it says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Contents:
    """A file that was read and checked: the support, values and alpha of each layer, and the rest of the state."""

    entries: list[LayerEntry]
    norms: list[NormEntry]
    supports: dict[str, Support]  # by layer name, as are values and alphas
    values: dict[str, Tensor]  # for a BatchNorm layer: the scales, then the shifts
    alphas: dict[str, Tensor]
    rest: dict[str, Tensor]  # by name in the state_dict
    tensors: dict[str, Tensor]  # all tensors of the file, by their names there
    statistics: bool  # whether the running statistics of BatchNorm are in the file
    base: str | None = None  # of an adapter: the fingerprint of the weights W0


def digest_of(manifest: str, tensors: dict[str, Tensor]) -> str:
    """Return a digest of the manifest and of the name, type, shape and bytes of each tensor."""
    digest = hashlib.blake2b(manifest.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# --- reading --------------------------------------------------------------------------------------------------------


def read(path: str | os.PathLike[str]) -> Contents:
    """Read a file and check that its parts fit together; raise CheckpointError if they do not."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    manifest, tensors = _open(path)
    try:
        base, defaults = manifest.get("base"), manifest.get("defaults", {})
        entries = [LayerEntry.from_json({**defaults, **entry}) for entry in manifest["layers"]]
        _check_kind(manifest["version"], base, entries)
        norms = [NormEntry.from_json(entry) for entry in manifest.get("norms", [])]
        if len({entry.name for entry in (*entries, *norms)}) != len(entries) + len(norms):
            raise ValueError("a layer is listed twice")
        if type(statistics := manifest.get("statistics", True)) is not bool:
            raise ValueError(f"statistics {statistics!r} is neither true nor false")
        contents = _unpack(entries, norms, tensors, dict(manifest.get("tied", {})), statistics)
        return dataclasses.replace(contents, base=base)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{path} is inconsistent: {error}; it was not written by dctps.save") from error


def _check_kind(version: int, base: Any, entries: list[LayerEntry]) -> None:
    """Raise ValueError unless this is the file of a network, or of an adapter with a fingerprint of its base."""
    if (version == ADAPTER_VERSION) != (type(base) is str) or (base is not None and not entries):
        raise ValueError(f"version {version} with the base {base!r} is neither a network nor an adapter")
    if any((entry.offset == PRETRAINED) != (base is not None) for entry in entries):
        raise ValueError("the layers of an adapter have the offset 'pretrained', and no others have it")


def _open(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the manifest and the tensors of a file; raise CheckpointError if format, version or digest is wrong."""
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
    if metadata.get("digest") != digest_of(metadata["dctps"], tensors):
        raise CheckpointError(f"{path} is damaged: its contents do not match their digest; take another copy")
    return manifest, tensors


def _check_version(path: Path, manifest: Any) -> None:
    """Raise CheckpointError unless this library reads the version that the manifest names."""
    version = manifest.get("version") if isinstance(manifest, dict) else None
    if type(version) is not int or version < 1:
        raise CheckpointError(f"{path} has a manifest without a version; it was not written by dctps.save")
    if version > ADAPTER_VERSION:
        known = ADAPTER_VERSION
        raise CheckpointError(f"{path} has format version {version}, this dctps reads up to {known}; upgrade dctps")


def _unpack(
    entries: list[LayerEntry],
    norms: list[NormEntry],
    tensors: dict[str, Tensor],
    tied: dict[str, str],
    statistics: bool,
) -> Contents:
    """Cut the packed tensors into the parts of each layer."""
    packed = {name: tensor for name, tensor in tensors.items() if name.startswith(RESERVED)}
    rest = {name: tensor for name, tensor in tensors.items() if name not in packed}
    _check_sizes([*entries, *norms], packed)
    values, alphas, supports = dict[str, Tensor](), dict[str, Tensor](), dict[str, Support]()
    used = dict.fromkeys(packed, 0)
    for entry in (*entries, *norms):
        parts = dict[str, Tensor]()
        for name, length in entry.lengths().items():
            parts[name] = packed[name][used[name] : used[name] + length]
            used[name] += length
        values[entry.name] = parts[(NORMS if isinstance(entry, NormEntry) else VALUES) + entry.dtype]
        if ALPHA in parts:
            alphas[entry.name] = parts[ALPHA][0]
        supports[entry.name] = _support(entry, parts.get(POSITIONS))
    rest |= {alias: rest[name] for alias, name in tied.items()}
    return Contents(entries, norms, supports, values, alphas, rest, tensors, statistics)


def _support(entry: Entry, code: Tensor | None) -> Support:
    """Return the support of an entry, from its seed or from the code of its positions."""
    if entry.seed is not None:
        return Support.sample(entry.shape, entry.nnz, entry.seed)
    assert code is not None
    return Support(entry.shape, torch.from_numpy(decode(code.numpy(), math.prod(entry.shape), entry.nnz)))


def _check_sizes(entries: Sequence[Entry], packed: dict[str, Tensor]) -> None:
    """Raise ValueError unless each packed tensor has exactly the elements that the entries need.

    This comes first, so that a damaged entry cannot make the reader allocate a huge tensor.
    """
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
