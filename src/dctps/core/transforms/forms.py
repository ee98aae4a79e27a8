"""Formulas for the entries of a transform, as far as the kernels need them.

The native kernels can compute every transform that has one of these forms. They ask the form for angles, periods and
phases, so no kernel knows a transform by its name.
"""

import dataclasses
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Bits = TypeVar("Bits", Int64, Tensor)


@dataclasses.dataclass(frozen=True)
class Spectrum:
    """Rows of a transform, computed from one discrete Fourier transform X of `length`.

    X transforms a line in which input p stands at place_p, multiplied by sign_p, and all other places are zero. Output
    k is real_k Re X[frequency_k] + imaginary_k Im X[frequency_k].
    """

    length: int
    place: Int64  # (inputs,)
    sign: Float64  # (inputs,)
    frequency: Int64  # (outputs,)
    real: Float64  # (outputs,)
    imaginary: Float64  # (outputs,)


@dataclasses.dataclass(frozen=True)
class Waves:
    """The form F[k, p] = norm_k (cosine cos A + sine sin A) with the angle A = 2 pi frequency_k (2 p + shift) / period.

    The period is even.
    """

    frequency: Int64  # (K,)
    norm: Float64  # (K,)
    period: int
    shift: int
    cosine: float
    sine: float

    def entries(self, p: Int64) -> Float64:  # (P,) -> (K, P)
        """Return F[k, p] by the formula."""
        A = self.angles(2 * p + self.shift)
        entries: Float64 = self.norm[:, None] * (self.cosine * np.cos(A) + self.sine * np.sin(A))
        return entries

    def angles(self, j: Int64) -> Float64:  # (J,) -> (K, J)
        """Return the angles 2 pi frequency_k j / period, reduced modulo the period in integers."""
        angles: Float64 = 2 * np.pi / self.period * (np.multiply.outer(self.frequency, j) % self.period)
        return angles

    def spectrum(self, inputs: int) -> Spectrum:
        """Return the products with the first `inputs` columns as one Fourier transform of length period / 2."""
        phase = self.angles(np.array([self.shift]))[:, 0]
        length, p = self.period // 2, np.arange(inputs)
        cos, sin = np.cos(phase), np.sin(phase)
        real, imaginary = self.cosine * cos + self.sine * sin, self.cosine * sin - self.sine * cos
        ones = np.ones(inputs)
        return Spectrum(length, p, ones, self.frequency % length, self.norm * real, self.norm * imaginary)


@dataclasses.dataclass(frozen=True)
class Walsh:
    """The form F[k, p] = (-1)^(number of one bits that k and p have in common) / sqrt(q), where q is a power of two."""

    rows: Int64  # (K,)
    length: int  # q

    def entries(self, p: Int64) -> Float64:  # (P,) -> (K, P)
        """Return F[k, p] by the formula."""
        entries: Float64 = (1.0 - 2.0 * parity(np.bitwise_and.outer(self.rows, p))) / np.sqrt(self.length)
        return entries


Form = Waves | Walsh


def parity(bits: Bits) -> Bits:
    """Return 0 where an integer has an even number of one bits, and 1 where it has an odd number."""
    for shift in (32, 16, 8, 4, 2, 1):
        bits = bits ^ (bits >> shift)
    return bits & 1
