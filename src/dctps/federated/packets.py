"""Packets: arrays of a network as one row of bytes, whole or as updates of 16 or 8 bits with error feedback.

    digest      16 bytes, see `arrays.py`; over the last four lies (by exclusive or) a CRC-32 of all bytes behind it
    kind        1 byte: 0 for whole arrays, 1 for an update in float16, 2 for one in int8
    whole       the bytes of each array in its own type, the lowest byte first
    an update   for each array of real numbers its scale (float32), then its numbers over the scale in float16 or int8;
                for each array of integers the differences in int64

An update is what a side adds to arrays that both sides have. Its scale makes the largest number of the array 1 in
float16 and 127 in int8. What rounding takes from an update, the residual, the sender adds to its next one (error
feedback), so nothing is lost in the sum. Shapes are not sent: both sides know them.

The receiver knows the digest, so it finds the CRC-32 in it, and the checksum takes no bytes.
"""

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dctps.base.registry import lookup
from dctps.federated.arrays import DIGEST, Arrays, check_finite, check_fit

Packet = NDArray[np.uint8]  # one axis


class Kind(NamedTuple):
    """A type of the numbers of an update: its code in a packet, the type, and what the largest number becomes."""

    code: int
    dtype: Any
    limit: float


WHOLE = 0
CHECKSUM = 4  # bytes
KINDS = {"float16": Kind(1, np.dtype("<f2"), 1.0), "int8": Kind(2, np.dtype("i1"), 127.0)}
"""The types in which updates can be sent, by name."""


def pack(arrays: Sequence[NDArray[Any]]) -> Packet:
    """Return whole arrays of a network as one row of bytes, without loss."""
    check_fit(arrays, arrays)
    for array in arrays[1:]:
        check_finite(array)
    contents = [array.astype(array.dtype.newbyteorder("<")).tobytes() for array in arrays[1:]]
    return _packet(arrays[0], WHOLE, contents)


def unpack(packet: Packet, before: Sequence[NDArray[Any]]) -> Arrays:
    """Return the arrays that a packet stands for; those of an update are in float64.

    Raises ValueError if the packet is damaged or of another network, or has numbers that are not finite.

    before: the arrays that both sides have, to which an update is added. Of a whole packet only their shapes and types
        matter.
    """
    check_fit(before, before)
    reader, digest = _Reader(packet), _plain(before[0])
    found, code = reader.take(np.dtype(np.uint8), (DIGEST,)), int(reader.take(np.dtype(np.uint8), ()))
    if not np.array_equal(found[:-CHECKSUM], digest[:-CHECKSUM]):
        raise ValueError("the packet belongs to another network: to other supports, offsets, names or frozen weights")
    kind = next((kind for kind in KINDS.values() if kind.code == code), None)
    if kind is None and code != WHOLE:
        raise ValueError(f"the packet has the unknown kind {code}; it was not made by this version of dctps")
    taken = [reader.array(old, kind) for old in before[1:]]
    reader.finish()
    if not np.array_equal(found, _sealed(digest, reader.content[DIGEST:])):
        raise ValueError("the packet is damaged, or belongs to another network; let it be sent again")
    for array in taken:
        check_finite(array)
    if kind is None:
        return [digest, *taken]
    return [digest, *(np.asarray(old + update) for old, update in zip(before[1:], taken, strict=True))]


class Sender:
    """One side of an exchange: it makes updates of a few bits, and keeps what rounding took from them.

    kind: the type of the numbers, "int8" or "float16".
    residual: the state of the sender, a list of arrays that can be stored and given to a new sender; None at first.
    """

    def __init__(self, kind: str = "int8", residual: Arrays | None = None) -> None:
        self.kind, self.residual = kind, residual
        self._kind = lookup(KINDS, kind, "kind of update")

    def pack(self, before: Sequence[NDArray[Any]], after: Sequence[NDArray[Any]]) -> Packet:
        """Return the update from arrays that the receiver has to those that this side has now.

        The residual is added to the update, and becomes what is missing in the packet. It is taken that the receiver
        gets the packet.
        """
        check_fit(before, after)
        wanted = self._wanted(before, after)
        contents, residual = list[bytes](), [np.array(before[0])]
        for numbers in wanted:
            content, rest = _coded(numbers, self._kind)
            contents.append(content)
            residual.append(rest)
        self.residual = residual
        return _packet(before[0], self._kind.code, contents)

    def _wanted(self, before: Sequence[NDArray[Any]], after: Sequence[NDArray[Any]]) -> Arrays:
        """Return the true update and the residual, added."""
        old, new = ([_wide(array) for array in arrays[1:]] for arrays in (before, after))
        update = [b - a for a, b in zip(old, new, strict=True)]
        for number, difference in enumerate(update, 1):
            if difference.dtype.kind == "f" and not np.isfinite(difference).all():
                raise ValueError(f"array {number} has numbers that are not finite; the training has diverged")
        if self.residual is None:
            return update
        try:
            check_fit(before, self.residual)
        except ValueError as error:
            raise ValueError(f"the residual of the sender does not fit: {error}") from error
        return [np.asarray(new + rest) for new, rest in zip(update, self.residual[1:], strict=True)]


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.float64 if array.dtype.kind == "f" else np.int64)


def _coded(numbers: NDArray[Any], kind: Kind) -> tuple[bytes, NDArray[Any]]:
    """Return an array of an update as bytes, and what is missing there."""
    if numbers.dtype.kind != "f":
        return numbers.astype("<i8").tobytes(), np.zeros_like(numbers)
    largest = np.abs(numbers).max(initial=0.0)
    if largest / kind.limit > np.finfo(np.float32).max:
        raise ValueError(f"an update of size {largest:.3g} is too large to be sent")
    scale = np.float32(largest / kind.limit)
    ratios = np.zeros_like(numbers) if scale == 0 else np.clip(numbers / np.float64(scale), -kind.limit, kind.limit)
    coded = (np.rint(ratios) if kind.dtype.kind == "i" else ratios).astype(kind.dtype)
    rest = np.asarray(numbers - coded.astype(np.float64) * np.float64(scale))
    return scale.astype("<f4").tobytes() + coded.tobytes(), rest


def _packet(digest: NDArray[Any], code: int, contents: Sequence[bytes]) -> Packet:
    content = bytes([code]) + b"".join(contents)
    return np.frombuffer(_sealed(_plain(digest), content).tobytes() + content, dtype=np.uint8).copy()


def _plain(digest: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a digest as bytes, also one that was averaged."""
    return np.asarray(np.rint(digest), dtype=np.uint8)


def _sealed(digest: NDArray[np.uint8], content: bytes) -> NDArray[np.uint8]:
    """Return a digest under the checksum of the bytes behind it."""
    checksum = np.frombuffer(zlib.crc32(content).to_bytes(CHECKSUM, "little"), dtype=np.uint8)
    return np.concatenate([digest[:-CHECKSUM], digest[-CHECKSUM:] ^ checksum])


class _Reader:
    """What is left of a packet."""

    def __init__(self, packet: Packet) -> None:
        if not isinstance(packet, np.ndarray) or packet.dtype != np.uint8 or packet.ndim != 1:
            raise ValueError("a packet is a NumPy array of bytes (uint8) with one axis, as `pack` makes it")
        self.content, self.length, self.place = packet.tobytes(), len(packet), 0

    def take(self, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the next numbers."""
        count = int(np.prod(shape))
        start, self.place = self.place, self.place + count * dtype.itemsize
        if self.place > self.length:
            raise ValueError(f"the packet has {self.length} bytes, fewer than this network needs")
        return np.frombuffer(self.content, dtype, count, start).reshape(shape)

    def array(self, like: NDArray[Any], kind: Kind | None) -> NDArray[Any]:
        """Return the next whole array, or with a kind the next array of an update."""
        if kind is None:
            return self.take(like.dtype.newbyteorder("<"), like.shape).astype(like.dtype)
        if like.dtype.kind != "f":
            return self.take(np.dtype("<i8"), like.shape)
        scale = self.take(np.dtype("<f4"), ()).astype(np.float64)
        numbers = self.take(kind.dtype, like.shape).astype(np.float64)
        with np.errstate(invalid="ignore"):  # numbers of a damaged packet, which is refused when all of it is read
            return np.asarray(numbers * scale)

    def finish(self) -> None:
        """Raise ValueError if something is left."""
        if self.place != self.length:
            raise ValueError(f"the packet has {self.length} bytes, this network needs {self.place}")
