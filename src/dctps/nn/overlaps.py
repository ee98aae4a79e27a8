"""Tensors that share memory: a change of one of them, in place, changes the other."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

Held = tuple[str, Tensor]  # a name and its tensor


def overlaps(held: Sequence[Held]) -> Iterator[tuple[Held, Held]]:
    """Yield pairs of tensors whose memory overlaps, so that each tensor that overlaps any is in a pair."""
    spans = sorted(((*_span(tensor), i) for i, (_, tensor) in enumerate(held) if _is_plain(tensor)))
    furthest = (0, 0)  # the end of the memory so far, and the tensor that it belongs to
    for start, end, i in spans:
        if start < furthest[0]:
            yield held[furthest[1]], held[i]
        furthest = max(furthest, (end, i))


def _is_plain(tensor: Tensor) -> bool:
    if nn.parameter.is_lazy(tensor) or tensor.is_meta or type(tensor.data) is not Tensor:
        return False
    return tensor.layout == torch.strided and tensor.numel() > 0


def _span(tensor: Tensor) -> tuple[int, int]:
    """Return the addresses of the first byte of a tensor, and of that behind its last."""
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()
