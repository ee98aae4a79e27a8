"""Elias-Fano coding, which writes sorted positions in few bits.

Given k positions below N, the code stores the low l = floor(log2(N / k)) bits of each position in l bit planes: plane
j packs bit j of all positions. The high parts that remain are small and sorted. They are stored in unary: position i
sets the bit with the number (high part of position i) + i. A position takes less than 2 + log2(N / k) bits, which is
15.3 at density 1e-4. The length of the code follows from N and k alone. Encoding and decoding are a few vector
operations in O(k) memory.
"""

import numpy as np
import numpy.typing as npt

from dctps.core.support import Int64

Bytes = npt.NDArray[np.uint8]


def _low_bits(size: int, count: int) -> int:
    """Return l, the number of bit planes."""
    return max(0, (size // max(1, count)).bit_length() - 1)


def _unary_bits(size: int, count: int) -> int:
    """Return the number of bits in which the high parts are stored in unary."""
    return count + ((size - 1) >> _low_bits(size, count))


def coded_length(size: int, count: int) -> int:
    """Return the number of bytes that the code of `count` positions below `size` takes."""
    if count == 0:
        return 0
    return _low_bits(size, count) * -(-count // 8) + -(-_unary_bits(size, count) // 8)


def encode(positions: Int64, size: int) -> Bytes:
    """Return the code of sorted, distinct positions below `size`."""
    count = len(positions)
    if count == 0:
        return np.empty(0, dtype=np.uint8)
    low = _low_bits(size, count)
    planes = [np.packbits((positions >> j & 1).astype(np.uint8)) for j in range(low)]
    unary = np.zeros(_unary_bits(size, count), dtype=np.uint8)
    unary[(positions >> low) + np.arange(count)] = 1
    return np.concatenate([*planes, np.packbits(unary)])


def decode(code: Bytes, size: int, count: int) -> Int64:
    """Return the positions; raise ValueError where `code` is not the code of `count` positions below `size`."""
    if len(code) != coded_length(size, count):
        raise ValueError(
            f"the code of {count} positions below {size} has {coded_length(size, count)} bytes, not {len(code)}"
        )
    if count == 0:
        return np.empty(0, dtype=np.int64)
    low, width = _low_bits(size, count), -(-count // 8)
    ones = np.flatnonzero(np.unpackbits(code[low * width :], count=_unary_bits(size, count)))
    if len(ones) != count:
        raise ValueError(f"the code is damaged: it holds {len(ones)} positions instead of {count}")
    positions = (ones - np.arange(count)).astype(np.int64) << low
    for j in range(low):
        positions |= np.unpackbits(code[j * width : (j + 1) * width], count=count).astype(np.int64) << j
    return positions
