"""The Walsh-Hadamard transform."""

import functools
import math

import torch
from torch import Tensor

from dctps.core.transforms.base import working
from dctps.core.transforms.forms import Walsh, parity


class Hadamard:
    """The Walsh-Hadamard transform F[k, p] = (-1)^(number of common one bits of k and p) / sqrt(q), q a power of two.

    It needs additions only, is symmetric, and is its own inverse. Its addition theorem holds where a and b have no one
    bit in common.
    """

    terms = 1

    def padded(self, length: int) -> int:
        return 1 << max(0, length - 1).bit_length()

    def apply(self, x: Tensor, axis: int = -1) -> Tensor:
        line = working(x).movedim(axis, -1)
        return (_walsh(line) / math.sqrt(line.shape[-1])).movedim(-1, axis).to(x.dtype)

    def adjoint(self, y: Tensor, axis: int = -1) -> Tensor:
        return self.apply(y, axis)

    def entries(self, k: Tensor, p: Tensor, q: int) -> Tensor:
        return _parity_sign(k[:, None] & p[None, :]) / math.sqrt(q)

    def split(self, k: Tensor, a: Tensor, b: Tensor, q: int) -> tuple[Tensor, Tensor]:
        return self.entries(k, a, q)[None], self.entries(k, b, 1)[None]

    def form(self, k: Tensor, q: int) -> Walsh:
        return Walsh(k.numpy(), q)


RADIX = 32  # length of the blocks that one matrix product transforms, instead of five passes over memory


def _walsh(x: Tensor) -> Tensor:
    """Apply the unnormalised transform along the last axis, by the recursion H_q = H_(q/32) (x) H_32."""
    q = x.shape[-1]
    if q & (q - 1):
        raise ValueError(
            f"a Hadamard transform needs a length that is a power of two, not {q}; pad the input with zeros"
        )
    if q <= RADIX:
        return x @ _sylvester(q).to(x)
    blocks = x.reshape(*x.shape[:-1], q // RADIX, RADIX) @ _sylvester(RADIX).to(x)
    return _walsh(blocks.transpose(-1, -2)).transpose(-1, -2).reshape(x.shape)


@functools.cache
def _sylvester(q: int) -> Tensor:
    """Return the unnormalised matrix H_q."""
    index = torch.arange(q, device="cpu")
    return _parity_sign(index[:, None] & index[None, :])


def _parity_sign(bits: Tensor) -> Tensor:
    """Return +1 where the number of one bits is even and -1 where it is odd, as float64."""
    return 1.0 - 2.0 * parity(bits).double()
