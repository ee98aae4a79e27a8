"""Tensors that share memory: a change of one of them, in place, changes the other."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

Held = tuple[str, Tensor]  # a name and its tensor


def overlaps(held: Sequence[Held]) -> Iterator[tuple[Held, Held]]:
    """Yield pairs of tensors whose memory overlaps, so that each tensor that overlaps any is in a pair."""
    found = [(span, i) for i, (_, tensor) in enumerate(held) if (span := _span(tensor)) is not None]
    furthest = (0, 0, 0)  # a storage, the end of its memory so far, and the tensor that it belongs to
    for (storage, start, end), i in sorted(found):
        if storage == furthest[0] and start < furthest[1]:
            yield held[furthest[2]], held[i]
        furthest = max(furthest, (storage, end, i))


def _span(tensor: Tensor) -> tuple[int, int, int] | None:
    """Return the address of the storage of a tensor, and where in it the tensor starts and ends, in bytes.

    None stands for tensors without memory of this kind: empty, lazy, sparse, on the meta device or wrapped ones.
    """
    if nn.parameter.is_lazy(tensor) or tensor.is_meta or type(tensor.data) is not Tensor:
        return None
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return None
    try:
        storage = tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # of devices that do not show their memory
        return None
    last = sum((n - 1) * int(stride) for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start, size = int(tensor.storage_offset()), tensor.element_size()
    return storage, start * size, (start + last + 1) * size
