"""The Hartley transform."""

import math

import numpy as np
import torch
from torch import Tensor

from dctps.core.transforms.base import angle, outer, working
from dctps.core.transforms.forms import Waves


class Hartley:
    """The Hartley transform F[k, p] = (cos + sin)(2 pi k p / q) / sqrt(q).

    It is symmetric and its own inverse, and one real FFT computes it.
    """

    terms = 2

    def padded(self, length: int) -> int:
        return length

    def apply(self, x: Tensor, axis: int = -1) -> Tensor:
        line = working(x).movedim(axis, -1)
        q = line.shape[-1]
        if line.numel() == 0:  # MKL's FFT refuses an empty batch
            return x.clone()
        half = torch.fft.rfft(line, norm="ortho")
        upper = half[..., 1 : (q + 1) // 2].flip(-1)  # the spectrum of a real line is conjugate symmetric
        out = torch.cat([half.real - half.imag, upper.real + upper.imag], dim=-1)
        return out.movedim(-1, axis).to(x.dtype)

    def adjoint(self, y: Tensor, axis: int = -1) -> Tensor:
        return self.apply(y, axis)

    def entries(self, k: Tensor, p: Tensor, q: int) -> Tensor:
        turned = angle(outer(k, p), q)
        return (turned.cos() + turned.sin()) / math.sqrt(q)

    def split(self, k: Tensor, a: Tensor, b: Tensor, q: int) -> tuple[Tensor, Tensor]:
        # cas(A + B) = cos A (cos B + sin B) + sin A (cos B - sin B)
        left, right = angle(outer(k, a), q), angle(outer(k, b), q)
        cos, sin = right.cos(), right.sin()
        return torch.stack([left.cos(), left.sin()]) / math.sqrt(q), torch.stack([cos + sin, cos - sin])

    def form(self, k: Tensor, q: int) -> Waves:
        norm = np.full(len(k), 1 / math.sqrt(q))
        return Waves(k.numpy(), norm, 2 * q, shift=0, cosine=1.0, sine=1.0)
