"""The DCT-II, the transform of the paper."""

import importlib.util
import math

import numpy as np
import torch
from torch import Tensor

from dctps.core.transforms.base import angle, outer, working
from dctps.core.transforms.forms import Spectrum, Waves

HAS_SCIPY = importlib.util.find_spec("scipy") is not None  # scipy's DCT is 2-3 times faster than `_dct_fft`


class Dct:
    """The DCT-II: F[k, p] = s_k cos(pi k (2p + 1) / 2q) with s_0 = sqrt(1/q) and otherwise s_k = sqrt(2/q)."""

    terms = 2

    def padded(self, length: int) -> int:
        return length

    def apply(self, x: Tensor, axis: int = -1) -> Tensor:
        return self._run(x, axis, inverse=False)

    def adjoint(self, y: Tensor, axis: int = -1) -> Tensor:
        return self._run(y, axis, inverse=True)

    def entries(self, k: Tensor, p: Tensor, q: int) -> Tensor:
        return self._norm(k, q) * torch.cos(angle(outer(k, 2 * p + 1), 4 * q))

    def split(self, k: Tensor, a: Tensor, b: Tensor, q: int) -> tuple[Tensor, Tensor]:
        # cos(A + B) = cos A cos B - sin A sin B
        left, right = angle(outer(k, 2 * a + 1), 4 * q), angle(outer(k, 2 * b), 4 * q)
        return self._norm(k, q) * torch.stack([left.cos(), left.sin()]), torch.stack([right.cos(), -right.sin()])

    def form(self, k: Tensor, q: int) -> Waves:
        return CosineWaves(k.numpy(), self._norm(k, q)[:, 0].numpy(), 4 * q, shift=1, cosine=1.0, sine=0.0)

    def _run(self, x: Tensor, axis: int, inverse: bool) -> Tensor:
        line: Tensor = _dct(working(x).movedim(axis, -1), inverse)
        return line.movedim(-1, axis).to(x.dtype)

    def _norm(self, k: Tensor, q: int) -> Tensor:  # (K, 1)
        return (torch.where(k == 0, 1.0, 2.0).double() / q).sqrt()[:, None]


class CosineWaves(Waves):
    """The waves of the DCT-II, whose Fourier transform has length q instead of 2q (Makhoul 1980)."""

    def spectrum(self, inputs: int) -> Spectrum:
        """Return the spectrum of a line in which the even inputs come first and the odd ones follow in reverse."""
        q, p = self.period // 4, np.arange(inputs)
        place = np.where(p % 2 == 0, p // 2, q - 1 - p // 2)
        phase = np.pi * self.frequency / (2 * q)
        cos, sin = self.norm * np.cos(phase), self.norm * np.sin(phase)
        return Spectrum(q, place, np.ones(inputs), self.frequency, cos, sin)


# --- the fast transform ---------------------------------------------------------------------------------------------


@torch.library.custom_op("dctps::dct", mutates_args=())
def _dct(x: Tensor, inverse: bool) -> Tensor:  # (..., q) -> (..., q)
    """Apply the orthonormal DCT-II along the last axis, or its inverse, the DCT-III."""
    if x.numel() == 0:
        return x.clone()
    return _dct_scipy(x, inverse) if HAS_SCIPY and x.device.type == "cpu" else _dct_fft(x, inverse)


@_dct.register_fake
def _(x: Tensor, inverse: bool) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _dct_backward(ctx: object, grad: Tensor) -> tuple[Tensor, None]:
    return _dct(grad, not ctx.inverse), None  # type: ignore[attr-defined]


def _dct_setup(ctx: object, inputs: tuple[Tensor, bool], output: Tensor) -> None:
    ctx.inverse = inputs[1]  # type: ignore[attr-defined]


_dct.register_autograd(_dct_backward, setup_context=_dct_setup)


def _dct_scipy(x: Tensor, inverse: bool) -> Tensor:
    import scipy.fft

    run = scipy.fft.idct if inverse else scipy.fft.dct
    # pocketfft divides the batch among threads, which for a small batch or one long vector costs more than it saves
    workers = torch.get_num_threads() if x.numel() > 2**15 else 1
    return torch.from_numpy(run(x.detach().numpy(), type=2, norm="ortho", axis=-1, workers=workers))


def _dct_fft(x: Tensor, inverse: bool) -> Tensor:
    """Compute the DCT by one real FFT of the even entries followed by the odd ones in reverse (Makhoul 1980)."""
    q = x.shape[-1]
    order = torch.cat([torch.arange(0, q, 2, device=x.device), torch.arange(1, q, 2, device=x.device).flip(0)])
    half = torch.arange(q // 2 + 1, device="cpu")  # the angles are float64, which not every device has
    twiddle = torch.polar(
        torch.full((len(half),), math.sqrt(2 / q), dtype=torch.float64, device="cpu"), angle(-half, 4 * q)
    )
    twiddle[0] = math.sqrt(1 / q)
    twiddle = twiddle.to(x.device, torch.promote_types(x.dtype, torch.complex64))
    return _idct_fft(x, twiddle, order) if inverse else _dct_fft_forward(x, twiddle, order)


def _dct_fft_forward(x: Tensor, twiddle: Tensor, order: Tensor) -> Tensor:
    q = x.shape[-1]
    half = torch.fft.rfft(x[..., order]) * twiddle
    # y_k = Re c_k and y_(q-k) = -Im c_k, where c is `half`
    return torch.cat([half.real, -half.imag[..., 1 : (q + 1) // 2].flip(-1)], dim=-1)


def _idct_fft(y: Tensor, twiddle: Tensor, order: Tensor) -> Tensor:
    q = y.shape[-1]
    # c_k = y_k - i y_(q-k) with y_q = 0 inverts the relation at the end of `_dct_fft_forward`
    mirrored = torch.cat([torch.zeros_like(y[..., :1]), y[..., 1:].flip(-1)], dim=-1)[..., : q // 2 + 1]
    spectrum = torch.complex(y[..., : q // 2 + 1], -mirrored) / twiddle
    out = torch.empty_like(y, memory_format=torch.contiguous_format)
    out[..., order] = torch.fft.irfft(spectrum, n=q)
    return out
