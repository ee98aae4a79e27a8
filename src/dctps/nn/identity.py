"""The identity of a sparse layer as one tensor of bytes: shape, offset, support. A state_dict holds it as extra state.

Tools of other libraries keep the tensors of a state and lose what is beside them, so the identity is a tensor. Its
bytes survive a cast to any floating point type, which holds 0 to 255 exactly, and an average of equal states. A digest
at the end tells when something else has happened to them.

    header      JSON {"dctps": 1, "shape", "offset", "nnz", "seed"}, a line feed, spaces up to a multiple of 256 bytes
    positions   nnz numbers of 4 bytes (8 where the weight has more than 2^31 entries), the lowest byte first
    digest      16 bytes: BLAKE2b of everything before
"""

import hashlib
import json
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dctps.core.support import Support, index_dtype

VERSION = 1
BLOCK = 256  # the header fills whole blocks, so that its length does not depend on the digits of the seed
DIGEST = 16


def encode(support: Support, offset: str | None) -> Tensor:  # uint8
    """Return the bytes that say which support and offset a layer has."""
    facts = {"dctps": VERSION, "shape": support.shape, "offset": offset, "nnz": support.nnz, "seed": support.seed}
    header = json.dumps(facts).encode() + b"\n"
    header = header.ljust(-(-len(header) // BLOCK) * BLOCK)
    positions = support.positions.cpu().numpy()
    content = header + positions.astype(positions.dtype.newbyteorder("<")).tobytes()
    return torch.frombuffer(bytearray(content + _digest(content)), dtype=torch.uint8)


def decode(state: Any) -> tuple[Support, str | None]:
    """Return the support and the name of the offset; raise ValueError if these are not the bytes of an identity."""
    content = _bytes(state)
    content, digest = content[:-DIGEST], content[-DIGEST:]
    if _digest(content) != digest:
        raise ValueError(
            "its identity is damaged: states of layers with different supports were averaged, or cast to integers"
        )
    header, _, _ = content.partition(b"\n")
    start = -(-(len(header) + 1) // BLOCK) * BLOCK
    try:
        return _parse(header, content[start:])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"its identity cannot be read: {error}") from error


def _parse(header: bytes, positions: bytes) -> tuple[Support, str | None]:
    facts = json.loads(header)
    if facts["dctps"] != VERSION:
        raise ValueError(f"it has version {facts['dctps']!r}, this library reads version {VERSION}")
    shape, seed, offset = tuple(map(int, facts["shape"])), facts["seed"], facts["offset"]
    if not isinstance(seed, int | None) or not isinstance(offset, str | None):
        raise ValueError(f"seed {seed!r} and offset {offset!r} are not a number and a name")
    dtype = np.dtype("<i4" if index_dtype(math.prod(shape)) == torch.int32 else "<i8")
    numbers = np.frombuffer(positions, dtype).astype(dtype.newbyteorder("="))
    return Support(shape, torch.from_numpy(numbers), seed), offset


def _bytes(state: Any) -> bytes:
    """Return the bytes of a tensor whose numbers are whole numbers from 0 to 255, up to rounding."""
    if not isinstance(state, Tensor) or state.is_nested or state.dim() != 1 or len(state) < BLOCK + DIGEST:
        kind = f"a tensor of shape {tuple(state.shape)}" if isinstance(state, Tensor) else f"a {type(state).__name__}"
        raise ValueError(f"its identity is {kind}, not a row of bytes")
    try:
        numbers = state.detach().cpu()
        rounded = numbers if numbers.dtype == torch.uint8 else numbers.double().round()
        are_bytes = numbers.dtype == torch.uint8 or bool(((rounded >= 0) & (rounded <= 255)).all())
        content = rounded.to(torch.uint8).numpy().tobytes()
    except (RuntimeError, TypeError) as error:  # of a tensor without plain numbers: sparse, quantised, on meta
        raise ValueError(f"its identity cannot be read: {error}") from error
    if not are_bytes:
        raise ValueError("its identity holds numbers that are no bytes")
    return content


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST).digest()
