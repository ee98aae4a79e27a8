"""Transforms that the library does not know: what a user might enter in TRANSFORMS."""

import functools
import math

import numpy as np
import torch
from torch import Tensor

from dctps.core.transforms import Dct, Waves


class FromEntries:
    """A transform with the four required methods and nothing else, computed from its entries."""

    def padded(self, length: int) -> int:
        return length

    def apply(self, x: Tensor, axis: int = -1) -> Tensor:
        return (x.movedim(axis, -1) @ self._matrix(x, axis).T).movedim(-1, axis)

    def adjoint(self, y: Tensor, axis: int = -1) -> Tensor:
        return (y.movedim(axis, -1) @ self._matrix(y, axis)).movedim(-1, axis)

    def _matrix(self, x: Tensor, axis: int) -> Tensor:
        index = torch.arange(x.shape[axis])
        return self.entries(index, index, x.shape[axis]).to(x)


class Dct4(FromEntries):
    """DCT-IV: F[k, p] = sqrt(2/q) cos(pi (2k + 1)(2p + 1) / 4q)."""

    def entries(self, k: Tensor, p: Tensor, q: int) -> Tensor:
        turns = (2 * k[:, None] + 1) * (2 * p[None, :] + 1)
        return math.sqrt(2 / q) * torch.cos(math.pi * turns.double() / (4 * q))


class FastDct4(Dct4):
    """The same with both optional methods: an addition theorem, and the form that the native kernels understand."""

    terms = 2

    def split(self, k: Tensor, a: Tensor, b: Tensor, q: int) -> tuple[Tensor, Tensor]:
        unit = math.pi * (2 * k[:, None] + 1).double() / (4 * q)
        left, right = unit * (2 * a[None, :] + 1), unit * 2 * b[None, :]
        norm = math.sqrt(2 / q)
        return norm * torch.stack([left.cos(), left.sin()]), torch.stack([right.cos(), -right.sin()])

    def form(self, k: Tensor, q: int) -> Waves:
        norm = np.full(len(k), math.sqrt(2 / q))
        return Waves(2 * k.numpy() + 1, norm, period=8 * q, shift=1, cosine=1.0, sine=0.0)


class ThreeTerms(Dct4):
    """The same with an addition theorem of three terms, the first of which is halved, and no form."""

    terms = 3

    def split(self, k: Tensor, a: Tensor, b: Tensor, q: int) -> tuple[Tensor, Tensor]:
        left, right = FastDct4().split(k, a, b, q)
        return torch.cat([left[:1] / 2, left[:1] / 2, left[1:]]), torch.cat([right[:1], right])


class Rotation(FromEntries):
    """A random orthonormal matrix: its rows are no waves, and it has no addition theorem."""

    def entries(self, k: Tensor, p: Tensor, q: int) -> Tensor:
        return _rotation(q)[k][:, p]


@functools.cache
def _rotation(q: int) -> Tensor:
    generator = torch.Generator().manual_seed(q)
    return torch.linalg.qr(torch.randn(q, q, generator=generator, dtype=torch.float64)).Q


class HalfDone(Dct):
    """A DCT-IV that somebody derived from the DCT-II and forgot to give its own `split` and `form`."""

    entries = Dct4.entries
    _matrix = FromEntries._matrix
    apply = FromEntries.apply
    adjoint = FromEntries.adjoint
