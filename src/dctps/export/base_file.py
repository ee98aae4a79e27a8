"""The base file of fine-tuned networks: W0 and whatever else training has left alone, for the ONNX files of many tasks.

It is a safetensors file of the plain network as it was before it was fine-tuned, so it is the same for all adapters of
one base. The ONNX file of an adapter refers to the tensors in it by their places.
"""

import copy
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from dctps.core.fingerprint import fingerprint
from dctps.export.recipe import Stored
from dctps.nn.convert import densify
from dctps.nn.fine_tuned import tuned_weights
from dctps.nn.finetune import before, detach, saved_buffers
from dctps.nn.sparse_part import SparsePart
from dctps.nn.wrappers import unwrapped

FINGERPRINT = "dctps.base"  # the key of the fingerprint of the base, in the metadata of both files
FEWEST_BYTES = 128  # a smaller tensor takes fewer bytes in the ONNX file than to say where it is


class Base(NamedTuple):
    """The base file of a fine-tuned network, which need not be there yet.

    content: the bytes of the file.
    is_new: whether they must be written.
    places: the place of each tensor that training has left alone, or that is a W0, by its name in the plain network.
    parts: S of each W0 by the name of W0 in the plain network, and the name of the weight (`fine_tuned.weight_name`).
    """

    file: Path
    location: str  # the path from the folder of the ONNX file
    content: bytes
    is_new: bool
    fingerprint: str
    places: dict[str, Stored]
    parts: dict[str, tuple[str, SparsePart]]


def base_of(model: nn.Module, file: str | os.PathLike[str], target: Path) -> Base:
    """Return the base file of a network; raise ValueError if there is one of other weights, or it cannot be there.

    target: the ONNX file that refers to it.
    """
    model, path = unwrapped(model), Path(file)
    if before(model) is None:
        raise ValueError("base= is for fine-tuned networks: sparsify(model, ..., offset='pretrained')")
    location = _location(path, target)
    plain = copy.deepcopy(model).cpu()
    detach(plain, restore=True)
    tensors = {name: t.contiguous() for name, t in _large(plain)}
    mark = fingerprint(tensors)
    is_new = not path.exists()
    content = save(tensors, {FINGERPRINT: mark}) if is_new else _checked(path, mark)
    names = {id(p): name for name, p in model.named_parameters()}
    tuned = {names[id(weight.base)]: (name, weight.part) for name, weight in tuned_weights(model).items()}
    parts = {key: part for key, part in tuned.items() if key in tensors}
    now = dict(_large(densify(copy.deepcopy(model).cpu())))
    kept = {name for name, t in tensors.items() if name in parts or torch.equal(t, now[name])}
    places = {name: stored for name, stored in _places(content, location) if name in kept}
    return Base(path, location, content, is_new, mark, places, parts)


def _large(plain: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors of the state of a plain network that are worth sharing, each tensor once."""
    for name, tensor in (*plain.named_parameters(), *saved_buffers(plain)):
        if tensor.dtype == torch.float32 and tensor.nbytes >= FEWEST_BYTES:
            yield name, tensor.detach()


def _location(path: Path, target: Path) -> str:
    """Return the path of the base file from the folder of the ONNX file; runtimes look nowhere but there and below."""
    folder = target.parent.resolve()
    if path.is_dir() or not path.parent.is_dir():
        raise FileNotFoundError(f"base={str(path)!r} is a folder, or its folder is not there; name a file")
    resolved = path.resolve()
    if not resolved.is_relative_to(folder) or resolved == target.resolve():
        raise ValueError(
            f"the base file {str(path)!r} must be in the folder of {str(target)!r} or below, and not the same file; "
            "runtimes look for it nowhere else"
        )
    return resolved.relative_to(folder).as_posix()


def _checked(path: Path, mark: str) -> bytes:
    """Return the bytes of an existing base file; raise ValueError unless its weights have this fingerprint."""
    content = path.read_bytes()
    try:
        found = fingerprint(load(content))
    except (SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"{str(path)!r} is there and is no base file ({error}); name another file") from error
    if found != mark:
        raise ValueError(
            f"{str(path)!r} is the base file of other weights: its fingerprint is {found}, that of the weights of this "
            f"network before fine-tuning is {mark}; name another file"
        )
    return content


def _places(content: bytes, location: str) -> Iterator[tuple[str, Stored]]:
    """Yield the names of the tensors of a safetensors file and their places, which its header says."""
    start = 8 + int.from_bytes(content[:8], "little")
    header: Mapping[str, dict[str, list[int]]] = json.loads(content[8:start])
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            yield name, Stored(tuple(entry["shape"]), location, start + first, last - first)
