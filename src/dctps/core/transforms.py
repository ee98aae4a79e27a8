"""Orthonormal fast transforms along an axis, and their matrices.

A transform of length q is an orthonormal q x q matrix F with three faces: `apply` (F x) and `adjoint` (F' y), both
in O(q log q), and `entries`, the numbers F[k, p] themselves. A fourth, `split`, is the addition theorem behind fast
convolutions: with p = a + b,

    F[k, a + b] = sum_r left[r, k, a] * right[r, k, b],      r < 2 (sines and cosines) or r < 1 (Hadamard),

so a filter bank made of rows of F is a sum of few separable ones (docs/numerics.md).

Angles are reduced modulo the period in integers before any cosine is taken: entries are exact to the last bit or two
for every length. Lengths are arbitrary, except for Hadamard, which `padded` rounds up to a power of two.
"""

import functools
import importlib.util
import math
from typing import Protocol

import torch
from torch import Tensor

HAS_SCIPY = importlib.util.find_spec("scipy") is not None  # scipy's DCT is 2-3 times faster than one made of FFTs


class Transform(Protocol):
    """An orthonormal q x q matrix F for every supported length q."""

    terms: int  # R, the number of products in the addition theorem

    def padded(self, length: int) -> int:
        """The smallest supported length that is at least `length`."""

    def apply(self, x: Tensor, axis: int = -1) -> Tensor:  # (..., q, ...) -> (..., q, ...)
        """F x along `axis`."""

    def adjoint(self, y: Tensor, axis: int = -1) -> Tensor:  # (..., q, ...) -> (..., q, ...)
        """F' y along `axis`, which is also the inverse."""

    def entries(self, k: Tensor, p: Tensor, q: int) -> Tensor:  # (K,), (P,) -> (K, P) float64
        """F[k, p] for every pair of a row k and a column p."""

    def split(self, k: Tensor, a: Tensor, b: Tensor, q: int) -> tuple[Tensor, Tensor]:  # (R, K, A), (R, K, B)
        """`left`, `right` with F[k, a + b] = sum_r left[r, k, a] right[r, k, b]."""


def matrix(transform: Transform, q: int) -> Tensor:  # (q, q) float64
    """The whole of F: what `apply` does to the identity, written out."""
    index = torch.arange(q, device="cpu")
    return transform.entries(index, index, q)


def _angle(turns: Tensor, period: int) -> Tensor:
    """2 pi turns / period for integer `turns`, reduced modulo the period first so that large products stay exact."""
    return turns.remainder(period).double() * (2 * math.pi / period)


def _outer(k: Tensor, p: Tensor) -> Tensor:
    return k[:, None] * p[None, :]


def _working(x: Tensor) -> Tensor:
    """`x` in a precision the transforms have: half types are computed in float32."""
    if not x.is_floating_point():
        raise ValueError(f"a transform needs floating point input, not {x.dtype}")
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


# --- cosine ---------------------------------------------------------------------------------------------------------


@torch.library.custom_op("dctps::dct", mutates_args=())
def _dct(x: Tensor, inverse: bool) -> Tensor:  # (..., q) -> (..., q)
    """Orthonormal DCT-II along the last axis, or its inverse, the DCT-III."""
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
    # pocketfft splits the batch over threads; one long vector or a small batch only pays for starting them
    workers = torch.get_num_threads() if x.numel() > 2**15 else 1
    return torch.from_numpy(run(x.detach().numpy(), type=2, norm="ortho", axis=-1, workers=workers))


def _dct_fft(x: Tensor, inverse: bool) -> Tensor:
    """One real FFT of length q on the even entries followed by the odd ones reversed (Makhoul 1980)."""
    q = x.shape[-1]
    order = torch.cat([torch.arange(0, q, 2, device=x.device), torch.arange(1, q, 2, device=x.device).flip(0)])
    half = torch.arange(q // 2 + 1, device="cpu")  # float64 angles, which not every device has
    twiddle = torch.polar(
        torch.full((len(half),), math.sqrt(2 / q), dtype=torch.float64, device="cpu"), _angle(-half, 4 * q)
    )
    twiddle[0] = math.sqrt(1 / q)
    twiddle = twiddle.to(x.device, torch.promote_types(x.dtype, torch.complex64))
    return _idct_fft(x, twiddle, order) if inverse else _dct_fft_forward(x, twiddle, order)


def _dct_fft_forward(x: Tensor, twiddle: Tensor, order: Tensor) -> Tensor:
    q = x.shape[-1]
    half = torch.fft.rfft(x[..., order]) * twiddle
    # y_k = Re c_k and y_(q-k) = -Im c_k
    return torch.cat([half.real, -half.imag[..., 1 : (q + 1) // 2].flip(-1)], dim=-1)


def _idct_fft(y: Tensor, twiddle: Tensor, order: Tensor) -> Tensor:
    q = y.shape[-1]
    # the forward relation c_k = y_k - i y_(q-k) read backwards, with y_q = 0
    mirrored = torch.cat([torch.zeros_like(y[..., :1]), y[..., 1:].flip(-1)], dim=-1)[..., : q // 2 + 1]
    spectrum = torch.complex(y[..., : q // 2 + 1], -mirrored) / twiddle
    out = torch.empty_like(y, memory_format=torch.contiguous_format)
    out[..., order] = torch.fft.irfft(spectrum, n=q)
    return out


class Dct:
    """DCT-II: F[k, p] = s_k cos(pi k (2p + 1) / 2q), s_0 = sqrt(1/q), s_k = sqrt(2/q). The paper's transform."""

    terms = 2

    def padded(self, length: int) -> int:
        return length

    def apply(self, x: Tensor, axis: int = -1) -> Tensor:
        return self._run(x, axis, inverse=False)

    def adjoint(self, y: Tensor, axis: int = -1) -> Tensor:
        return self._run(y, axis, inverse=True)

    def entries(self, k: Tensor, p: Tensor, q: int) -> Tensor:
        return self._norm(k, q) * torch.cos(_angle(_outer(k, 2 * p + 1), 4 * q))

    def split(self, k: Tensor, a: Tensor, b: Tensor, q: int) -> tuple[Tensor, Tensor]:
        # cos(A + B) = cos A cos B - sin A sin B
        left, right = _angle(_outer(k, 2 * a + 1), 4 * q), _angle(_outer(k, 2 * b), 4 * q)
        return self._norm(k, q) * torch.stack([left.cos(), left.sin()]), torch.stack([right.cos(), -right.sin()])

    def _run(self, x: Tensor, axis: int, inverse: bool) -> Tensor:
        line: Tensor = _dct(_working(x).movedim(axis, -1), inverse)
        return line.movedim(-1, axis).to(x.dtype)

    def _norm(self, k: Tensor, q: int) -> Tensor:  # (K, 1)
        return (torch.where(k == 0, 1.0, 2.0).double() / q).sqrt()[:, None]


# --- sine -----------------------------------------------------------------------------------------------------------


class Dst:
    """DST-II: F[k, p] = s_k sin(pi (k + 1)(2p + 1) / 2q), s_(q-1) = sqrt(1/q), else sqrt(2/q).

    Row k is row q-1-k of the DCT-II with every other column negated: that is how it is computed.
    """

    terms = 2

    def padded(self, length: int) -> int:
        return length

    def apply(self, x: Tensor, axis: int = -1) -> Tensor:
        return Dct().apply(self._alternate(x, axis), axis).flip(axis)

    def adjoint(self, y: Tensor, axis: int = -1) -> Tensor:
        return self._alternate(Dct().adjoint(y.flip(axis), axis), axis)

    def entries(self, k: Tensor, p: Tensor, q: int) -> Tensor:
        return self._norm(k, q) * torch.sin(_angle(_outer(k + 1, 2 * p + 1), 4 * q))

    def split(self, k: Tensor, a: Tensor, b: Tensor, q: int) -> tuple[Tensor, Tensor]:
        # sin(A + B) = sin A cos B + cos A sin B
        left, right = _angle(_outer(k + 1, 2 * a + 1), 4 * q), _angle(_outer(k + 1, 2 * b), 4 * q)
        return self._norm(k, q) * torch.stack([left.sin(), left.cos()]), torch.stack([right.cos(), right.sin()])

    def _norm(self, k: Tensor, q: int) -> Tensor:
        return (torch.where(k == q - 1, 1.0, 2.0).double() / q).sqrt()[:, None]

    def _alternate(self, x: Tensor, axis: int) -> Tensor:
        signs = 1 - 2 * (torch.arange(x.shape[axis], device=x.device) % 2)
        return (x.movedim(axis, -1) * signs.to(x.dtype)).movedim(-1, axis)


# --- Hartley --------------------------------------------------------------------------------------------------------


class Hartley:
    """F[k, p] = (cos + sin)(2 pi k p / q) / sqrt(q): symmetric, its own inverse, one real FFT."""

    terms = 2

    def padded(self, length: int) -> int:
        return length

    def apply(self, x: Tensor, axis: int = -1) -> Tensor:
        line = _working(x).movedim(axis, -1)
        q = line.shape[-1]
        if line.numel() == 0:  # an empty batch, which MKL's FFT refuses
            return x.clone()
        half = torch.fft.rfft(line, norm="ortho")
        upper = half[..., 1 : (q + 1) // 2].flip(-1)  # the spectrum of a real line is conjugate symmetric
        out = torch.cat([half.real - half.imag, upper.real + upper.imag], dim=-1)
        return out.movedim(-1, axis).to(x.dtype)

    def adjoint(self, y: Tensor, axis: int = -1) -> Tensor:
        return self.apply(y, axis)

    def entries(self, k: Tensor, p: Tensor, q: int) -> Tensor:
        angle = _angle(_outer(k, p), q)
        return (angle.cos() + angle.sin()) / math.sqrt(q)

    def split(self, k: Tensor, a: Tensor, b: Tensor, q: int) -> tuple[Tensor, Tensor]:
        # cas(A + B) = cos A (cos B + sin B) + sin A (cos B - sin B)
        left, right = _angle(_outer(k, a), q), _angle(_outer(k, b), q)
        cos, sin = right.cos(), right.sin()
        return torch.stack([left.cos(), left.sin()]) / math.sqrt(q), torch.stack([cos + sin, cos - sin])


# --- Hadamard -------------------------------------------------------------------------------------------------------


class Hadamard:
    """F[k, p] = (-1)^(number of common one bits of k and p) / sqrt(q), q a power of two: additions only.

    Symmetric, its own inverse. Its addition theorem needs a and b to have no one bit in common.
    """

    terms = 1

    def padded(self, length: int) -> int:
        return 1 << max(0, length - 1).bit_length()

    def apply(self, x: Tensor, axis: int = -1) -> Tensor:
        line = _working(x).movedim(axis, -1)
        return (_walsh(line) / math.sqrt(line.shape[-1])).movedim(-1, axis).to(x.dtype)

    def adjoint(self, y: Tensor, axis: int = -1) -> Tensor:
        return self.apply(y, axis)

    def entries(self, k: Tensor, p: Tensor, q: int) -> Tensor:
        return _parity_sign(k[:, None] & p[None, :]) / math.sqrt(q)

    def split(self, k: Tensor, a: Tensor, b: Tensor, q: int) -> tuple[Tensor, Tensor]:
        return self.entries(k, a, q)[None], self.entries(k, b, 1)[None]


RADIX = 32  # one product with H_32 replaces five passes over memory


def _walsh(x: Tensor) -> Tensor:
    """The unnormalised Walsh-Hadamard transform of the last axis: H_q = H_(q/32) (x) H_32, radix by radix."""
    q = x.shape[-1]
    if q & (q - 1):
        raise ValueError(f"a Hadamard transform needs a length that is a power of two, not {q}")
    if q <= RADIX:
        return x @ _sylvester(q).to(x)
    blocks = x.reshape(*x.shape[:-1], q // RADIX, RADIX) @ _sylvester(RADIX).to(x)
    return _walsh(blocks.transpose(-1, -2)).transpose(-1, -2).reshape(x.shape)


@functools.cache
def _sylvester(q: int) -> Tensor:
    index = torch.arange(q, device="cpu")
    return _parity_sign(index[:, None] & index[None, :])


def _parity_sign(bits: Tensor) -> Tensor:
    """+1 where the number of one bits is even, -1 where it is odd, as float64."""
    for shift in (32, 16, 8, 4, 2, 1):
        bits = bits ^ (bits >> shift)
    return 1.0 - 2.0 * (bits & 1).double()


TRANSFORMS: dict[str, Transform] = {
    "dct": Dct(),
    "dst": Dst(),
    "hartley": Hartley(),
    "hadamard": Hadamard(),
}
