"""A random rotation: a control for the other transforms, with no structure that a network could use."""

import functools

import torch
from torch import Tensor

from dctps.core.random import Stream
from dctps.core.transforms.base import working
from dctps.core.transforms.hadamard import Hadamard

HADAMARD = Hadamard()


class Rotation:
    """F = H P E H with the Hadamard transform H, seeded random signs E and a seeded random permutation P.

    Every entry is a sum of q random signs, divided by q. The entries are therefore close to normal numbers of variance
    1/q, those of a stored Gaussian matrix, but F is orthonormal and follows from its length alone.
    """

    def padded(self, length: int) -> int:
        return HADAMARD.padded(length)

    def apply(self, x: Tensor, axis: int = -1) -> Tensor:
        line = HADAMARD.apply(working(x), axis).movedim(axis, -1)
        signs, order = _draw(line.shape[-1])
        mixed = (line * signs.to(line)).index_select(-1, order.to(line.device))
        return HADAMARD.apply(mixed).movedim(-1, axis).to(x.dtype)

    def adjoint(self, y: Tensor, axis: int = -1) -> Tensor:
        line = HADAMARD.apply(working(y), axis).movedim(axis, -1)
        signs, order = _draw(line.shape[-1])
        mixed = line.index_select(-1, order.argsort().to(line.device)) * signs.to(line)
        return HADAMARD.apply(mixed).movedim(-1, axis).to(y.dtype)

    def entries(self, k: Tensor, p: Tensor, q: int) -> Tensor:
        signs, order = _draw(q)
        every = torch.arange(q, device="cpu")
        left = HADAMARD.entries(k, every, q)
        return left @ (HADAMARD.entries(every, p, q) * signs[:, None])[order]


@functools.lru_cache(maxsize=64)
@torch.inference_mode(False)  # the cached tensors must also serve training
def _draw(q: int) -> tuple[Tensor, Tensor]:
    """Return the signs and the permutation of length q."""
    stream = Stream(0, f"rotation/{q}")
    return torch.from_numpy(stream.signs(q)), torch.from_numpy(stream.permutation(q))
