"""A network as a list of arrays and back, and the average of such lists.

    [0]      a digest (uint8, 16 bytes) of all that both sides must share and that is not sent
    [1:]     every parameter that trains, then every buffer of the state, in the order in which the network has them

The digest is of the names and shapes of what is sent, of the supports and offsets, and of the names, types and bytes of
what is fixed: frozen parameters, as W0 of a fine-tuned network, and alphas that do not train. It is an array like the
others, so it passes through code that averages or casts all arrays of a list.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dctps.core.fingerprint import fingerprint
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.finetune import saved_buffers
from dctps.nn.foreign import check_network
from dctps.nn.supported import SupportedLayer
from dctps.nn.wrappers import unwrapped

Arrays = list[NDArray[Any]]
"""A network as a list of arrays: a digest of what is not sent, then what is sent."""

DIGEST = 16  # bytes
ROUNDING = 0.25  # averages of equal bytes may differ from them by this much


def arrays(model: nn.Module) -> Arrays:
    """Return what a network must send, as copies: a digest, then all that trains and the buffers of its state.

    The arrays are in a fixed order and have the shapes and types of the tensors; bfloat16, which NumPy does not have,
    becomes float32. A plain network sends its weights, a fine-tuned one S and what trains beside it.
    """
    check_network(model, "arrays(model)")
    sent = _sent(unwrapped(model))
    return [_digest(unwrapped(model), sent), *(_array(tensor) for tensor in sent.values())]


def set_arrays(model: nn.Module, arrays: Sequence[NDArray[Any]]) -> nn.Module:
    """Copy arrays of a network like this one, or an average of such arrays, into it, and return it.

    Raises ValueError, and changes nothing, if they are of another network: another number of arrays, other shapes or
    types, other supports, offsets or frozen weights; and if a number is not finite. Integers that were averaged are
    rounded.
    """
    check_network(model, "set_arrays(model, arrays)", arrays)
    sent = _sent(unwrapped(model))
    own = [_digest(unwrapped(model), sent), *(_array(tensor) for tensor in sent.values())]
    check_fit(own, arrays, list(sent))
    taken = [torch.from_numpy(_as_type(new, old.dtype)) for new, old in zip(arrays[1:], own[1:], strict=True)]
    with torch.no_grad():
        for tensor, numbers in zip(sent.values(), taken, strict=True):
            tensor.copy_(numbers)
    return model


def _as_type(array: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    """Return a copy of an array in a type, rounded if that is of integers."""
    check_finite(array)
    rounded = np.rint(array) if array.dtype.kind == "f" and kind.kind != "f" else array
    with np.errstate(over="ignore"):  # a number that is too large is refused in plain words
        copied = np.array(rounded, dtype=kind)
    check_finite(copied, f"too large for {kind}")
    return copied


def average(lists: Sequence[Sequence[NDArray[Any]]], weights: Sequence[float] | None = None) -> Arrays:
    """Return the weighted mean of lists of arrays of networks with one digest, summed in float64.

    weights: one per list, as the numbers of samples of clients; by default all are equal. Means of integers are
        rounded; integers that are equal in all lists stay what they are.
    """
    factors = _factors(len(lists), weights)
    for other in lists[1:]:
        check_fit(lists[0], other)
    means = [_mean(same, factors) for same in zip(*(one[1:] for one in lists), strict=True)]
    return [np.array(lists[0][0]), *means]


def _factors(count: int, weights: Sequence[float] | None) -> NDArray[np.float64]:
    """Return weights of sum 1."""
    given = np.ones(count) if weights is None else np.asarray(weights, dtype=np.float64)
    if count == 0:
        raise ValueError("there is nothing to average: the list of lists of arrays is empty")
    if given.shape != (count,) or not np.isfinite(given).all() or (given < 0).any() or not given.sum() > 0:
        raise ValueError(f"weights are {count} numbers that are not negative, with a positive sum, not {weights}")
    factors: NDArray[np.float64] = given / given.sum()
    return factors


def _mean(same: Sequence[NDArray[Any]], factors: NDArray[np.float64]) -> NDArray[Any]:
    total = np.zeros(same[0].shape, dtype=np.float64)
    for array, factor in zip(same, factors, strict=True):
        check_finite(array)
        total += factor * array
    kind = same[0].dtype
    if kind.kind == "f":
        return total.astype(kind)
    equal = np.all([array == same[0] for array in same], axis=0)  # float64 has no place for integers beyond 2^53
    with np.errstate(invalid="ignore"):  # of equal ones, whose mean is not used
        return np.where(equal, same[0], np.rint(total).astype(kind))


# --- what is sent, and the digest of the rest -------------------------------------------------------------------------


def _sent(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that are sent, by name."""
    sent: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
    fixed = {id(alpha) for alpha in _fixed_alphas(model).values()}
    seen = set[int]()
    for name, buffer in saved_buffers(model):
        if id(buffer) not in fixed | seen:
            seen.add(id(buffer))
            sent[name] = buffer
    for name, tensor in sent.items():
        _check_tensor(name, tensor)
    return sent


def _check_tensor(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless a tensor can be an array."""
    if (
        nn.parameter.is_lazy(tensor)
        or tensor.is_meta
        or tensor.layout != torch.strided
        or hasattr(tensor, "placements")
    ):
        raise ValueError(f"{name!r} has no plain numbers to send: it is lazy, on the meta device, sparse or sharded")
    if tensor.is_complex() or tensor.is_quantized:
        raise ValueError(f"{name!r} is a tensor of {tensor.dtype}; arrays of real numbers and integers can be sent")


def _fixed_alphas(model: nn.Module) -> dict[str, Tensor]:
    """Return the alphas that do not train, by the names of their layers."""
    layers = {name: m._buffers.get("alpha") for name, m in model.named_modules() if isinstance(m, DpsLayer)}
    return {name: alpha for name, alpha in layers.items() if alpha is not None}


def _array(tensor: Tensor) -> NDArray[Any]:
    plain = tensor.detach().cpu()
    plain = plain.float() if plain.dtype == torch.bfloat16 else plain
    return np.array(plain.numpy())


def _digest(model: nn.Module, sent: Mapping[str, Tensor]) -> NDArray[np.uint8]:
    """Return a hash of all that two networks must share and that is not sent."""
    digest = hashlib.blake2b(digest_size=DIGEST)
    for name, tensor in sent.items():
        digest.update(f"|{name}|{tuple(tensor.shape)}|".encode())
    for name, layer in model.named_modules():
        if isinstance(layer, SupportedLayer):
            digest.update(f"|{name}|{layer._offset_name()}|{layer._weight_shape()}|".encode())
            digest.update(layer.positions.cpu().numpy().astype("<i8").tobytes())
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    digest.update(fingerprint(frozen | _fixed_alphas(model)).encode())
    return np.frombuffer(digest.digest(), dtype=np.uint8).copy()


# --- checks -----------------------------------------------------------------------------------------------------------


def check_finite(array: NDArray[Any], reason: str = "not finite") -> None:
    """Raise ValueError if an array has a number that is not finite; reason: why that is."""
    if not np.isfinite(array).all():
        raise ValueError(f"an array has numbers that are {reason}; leave that network out, its training has diverged")


def check_fit(own: Sequence[NDArray[Any]], other: Sequence[NDArray[Any]], names: Sequence[str] | None = None) -> None:
    """Raise ValueError unless two lists of arrays are of networks with one digest, and have the same shapes and types.

    names: the names of the arrays behind the digest, for the message.
    """
    _check_arrays(other)
    if len(other) != len(own):
        raise ValueError(f"there are {len(other)} arrays, the network has {len(own)}, the digest included")
    for number, (mine, theirs) in enumerate(zip(own[1:], other[1:], strict=True)):
        what = f"array {number + 1}" + (f" ({names[number]})" if names else "")
        if mine.shape != theirs.shape:
            raise ValueError(f"{what} has the shape {theirs.shape}, in the network it has {mine.shape}")
        if mine.dtype.kind == "f" and theirs.dtype.kind != "f":
            raise ValueError(f"{what} is of {theirs.dtype}, in the network it is of {mine.dtype}")
    if not same_digest(own[0], other[0]):
        raise ValueError(
            "the arrays belong to another network: to other supports, offsets, names or frozen weights; build both "
            "networks alike and sparsify them with the same density and seed"
        )


def _check_arrays(other: Sequence[NDArray[Any]]) -> None:
    """Raise ValueError unless this is a list of arrays of numbers that begins with a digest."""
    kinds = (np.ndarray, np.generic)  # arithmetic makes numbers of arrays without axes
    wrong = [type(a).__name__ for a in other if not isinstance(a, kinds)]
    wrong += [f"array of {a.dtype}" for a in other if isinstance(a, kinds) and a.dtype.kind not in "fiub"]
    if wrong or not other or other[0].shape != (DIGEST,):
        found = wrong[0] if wrong else f"{len(other)} arrays"
        raise ValueError(f"expected a list of NumPy arrays as dctps.federated.arrays makes it, not one with {found}")


def same_digest(own: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two digests are equal, up to the rounding of an average."""
    return bool((np.abs(other.astype(np.float64) - own) <= ROUNDING).all())
