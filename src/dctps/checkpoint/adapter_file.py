"""The file of an adapter: what fine-tuning has made of a network, and a fingerprint of the weights W0, never W0.

It is a file as `contents.py` describes it, of version 3. The manifest has `base`, the fingerprint, and its layers have
the offset "pretrained". What is common to all layers stands once, under `defaults`.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dctps.base.files import write_atomically
from dctps.checkpoint.adapter_state import AdapterState
from dctps.checkpoint.contents import ADAPTER_VERSION, CheckpointError, Contents, digest_of, read
from dctps.checkpoint.manifest import ALPHA, DTYPES, POSITIONS, VALUES, LayerEntry, valid_seed
from dctps.checkpoint.serialize import serialized
from dctps.core.elias_fano import encode
from dctps.core.offsets import PRETRAINED
from dctps.core.support import Support


def write_adapter(state: AdapterState, path: str | os.PathLike[str], dtype: torch.dtype | None = None) -> None:
    """Write an adapter to one file, atomically.

    dtype: the type of the values in the file; by default that of the weights. float16 takes 2 bytes a value.
    """
    if dtype is not None and (not isinstance(dtype, torch.dtype) or _kind(dtype) not in DTYPES):
        raise CheckpointError(f"dtype={dtype!r} is no type of values in a file; there are: {_listed_types()}")
    entries, tensors = [], dict[str, list[Tensor]]()
    for name, support in state.supports.items():
        values = state.values[name].to(dtype or state.values[name].dtype)
        if not bool(torch.isfinite(values).all()) and bool(torch.isfinite(state.values[name]).all()):
            raise CheckpointError(f"values of {name!r} are too large for {values.dtype}; save them in another type")
        kind = _kind(values.dtype)
        if kind not in DTYPES:
            raise CheckpointError(f"the values of {name!r} are {values.dtype}; a file can hold {_listed_types()}")
        scaled, seed = name in state.alphas, valid_seed(support, support.seed)
        entries.append(LayerEntry(name, support.shape, support.nnz, seed, kind, PRETRAINED, scaled))
        tensors.setdefault(VALUES + kind, []).append(values)
        if scaled:
            tensors.setdefault(ALPHA, []).append(state.alphas[name].double().view(1))
        if seed is None:
            tensors.setdefault(POSITIONS, []).append(_code(support))
    packed = {name: torch.cat(parts) for name, parts in tensors.items()} | _rest(state)
    manifest = json.dumps(_manifest(entries, state.base), separators=(",", ":"))
    content = serialized(packed, {"dctps": manifest, "digest": digest_of(manifest, packed)})
    write_atomically(path, lambda file: file.write_bytes(content))


def _kind(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _listed_types() -> str:
    return ", ".join(f"torch.{name}" for name in DTYPES)


def _code(support: Support) -> Tensor:
    return torch.from_numpy(encode(support.positions.cpu().numpy().astype(np.int64), support.size))


def _rest(state: AdapterState) -> dict[str, Tensor]:
    reserved = [name for name in state.rest if name.startswith("dctps/")]
    if reserved:
        raise CheckpointError(f"the name {reserved[0]!r} is reserved for packed tensors; rename that module")
    return {name: tensor.contiguous() for name, tensor in state.rest.items()}


def _manifest(entries: list[LayerEntry], base: str) -> dict[str, Any]:
    """Return the manifest; fields that all layers share are written once."""
    rows = [{"offset": e.offset, "train_alpha": e.train_alpha, "dtype": e.dtype, **e.to_json()} for e in entries]
    shared = {k: v for k, v in rows[0].items() if k not in _OWN and all(row.get(k) == v for row in rows)}
    layers = [{k: v for k, v in row.items() if k not in shared} for row in rows]
    return {"version": ADAPTER_VERSION, "base": base, "defaults": shared, "layers": layers}


_OWN = ("name", "shape", "nnz", "seed")


def read_adapter(path: str | os.PathLike[str]) -> AdapterState:
    """Return the adapter in a file; raise CheckpointError if it is damaged, or the file of a whole network."""
    contents = read(path)
    if contents.base is None:
        raise CheckpointError(
            f"{Path(path)} is the file of a whole network, not of an adapter; load it with dctps.load"
        )
    return as_adapter(contents)


def as_adapter(contents: Contents) -> AdapterState:
    """Return the contents of the file of an adapter as an adapter."""
    assert contents.base is not None
    return AdapterState(contents.supports, contents.values, contents.alphas, contents.rest, contents.base)
