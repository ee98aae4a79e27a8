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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dctps.checkpoint.manifest import ALPHA, DTYPES, NORMS, VALUES, Entry, LayerEntry, NormEntry
from dctps.checkpoint.manifest import POSITIONS as POSITIONS
from dctps.core.elias_fano import decode
from dctps.core.support import Support

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


def digest_of(manifest: str, tensors: dict[str, Tensor]) -> str:
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
    if metadata.get("digest") != digest_of(metadata["dctps"], tensors):
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
