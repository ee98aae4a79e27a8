"""The DST-II."""

import dataclasses

import numpy as np
import torch
from torch import Tensor

from dctps.core.transforms.base import angle, outer
from dctps.core.transforms.cosine import CosineWaves, Dct
from dctps.core.transforms.forms import Spectrum, Waves


class Dst:
    """The DST-II: F[k, p] = s_k sin(pi (k + 1)(2p + 1) / 2q) with s_(q-1) = sqrt(1/q) and otherwise s_k = sqrt(2/q).

    It is computed by the DCT-II: row k is row q-1-k of the DCT-II with every other column negated.
    """

    terms = 2

    def padded(self, length: int) -> int:
        return length

    def apply(self, x: Tensor, axis: int = -1) -> Tensor:
        return Dct().apply(self._alternate(x, axis), axis).flip(axis)

    def adjoint(self, y: Tensor, axis: int = -1) -> Tensor:
        return self._alternate(Dct().adjoint(y.flip(axis), axis), axis)

    def entries(self, k: Tensor, p: Tensor, q: int) -> Tensor:
        return self._norm(k, q) * torch.sin(angle(outer(k + 1, 2 * p + 1), 4 * q))

    def split(self, k: Tensor, a: Tensor, b: Tensor, q: int) -> tuple[Tensor, Tensor]:
        # sin(A + B) = sin A cos B + cos A sin B
        left, right = angle(outer(k + 1, 2 * a + 1), 4 * q), angle(outer(k + 1, 2 * b), 4 * q)
        return self._norm(k, q) * torch.stack([left.sin(), left.cos()]), torch.stack([right.cos(), right.sin()])

    def form(self, k: Tensor, q: int) -> Waves:
        return SineWaves(k.numpy() + 1, self._norm(k, q)[:, 0].numpy(), 4 * q, shift=1, cosine=0.0, sine=1.0)

    def _norm(self, k: Tensor, q: int) -> Tensor:
        return (torch.where(k == q - 1, 1.0, 2.0).double() / q).sqrt()[:, None]

    def _alternate(self, x: Tensor, axis: int) -> Tensor:
        signs = 1 - 2 * (torch.arange(x.shape[axis], device=x.device) % 2)
        return (x.movedim(axis, -1) * signs.to(x.dtype)).movedim(-1, axis)


class SineWaves(Waves):
    """The waves of the DST-II, whose row k is row q - 1 - k of the DCT-II with every other column negated."""

    def spectrum(self, inputs: int) -> Spectrum:
        mirrored = CosineWaves(self.period // 4 - self.frequency, self.norm, self.period, 1, 1.0, 0.0)
        spectrum = mirrored.spectrum(inputs)
        signs = (1 - 2 * (np.arange(inputs) % 2)).astype(np.float64)
        return dataclasses.replace(spectrum, sign=signs)
