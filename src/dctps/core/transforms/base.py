"""What a transform is: an orthonormal q x q matrix F for every length q that it supports.

A transform must have the four methods of `Transform`. Two more members are optional; they make layers faster and never
change their results:

    terms, split   the addition theorem behind fast convolutions (`Separable`): with p = a + b,
                   F[k, a + b] = sum_r left[r, k, a] * right[r, k, b],  r < terms
    form           a formula for the entries that the native kernels understand (`forms.py`)

Angles are reduced modulo the period in integers before any cosine is taken. The entries are therefore exact to the
last bit or two for every length.
"""

import math
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from dctps.core.transforms.forms import Form


class Transform(Protocol):
    """An orthonormal q x q matrix F for every supported length q."""

    def padded(self, length: int) -> int:
        """Return the smallest supported length that is at least `length`."""

    def apply(self, x: Tensor, axis: int = -1) -> Tensor:  # (..., q, ...) -> (..., q, ...)
        """Return F x along `axis`."""

    def adjoint(self, y: Tensor, axis: int = -1) -> Tensor:  # (..., q, ...) -> (..., q, ...)
        """Return F' y along `axis`; F' is also the inverse of F."""

    def entries(self, k: Tensor, p: Tensor, q: int) -> Tensor:  # (K,), (P,) -> (K, P) float64
        """Return F[k, p] for every pair of a row k and a column p."""


@runtime_checkable
class Separable(Protocol):
    """A transform with an addition theorem: a filter bank made of its rows is a sum of a few separable filter banks."""

    terms: int  # R, the number of products in the addition theorem

    def split(self, k: Tensor, a: Tensor, b: Tensor, q: int) -> tuple[Tensor, Tensor]:  # (R, K, A), (R, K, B)
        """Return `left` and `right` with F[k, a + b] = sum_r left[r, k, a] right[r, k, b]."""


@runtime_checkable
class HasForm(Protocol):
    """A transform whose entries follow a formula that the native kernels understand."""

    def form(self, k: Tensor, q: int) -> Form:
        """Return the formula for the rows k of the transform of length q."""


def matrix(transform: Transform, q: int) -> Tensor:  # (q, q) float64
    """Return the whole matrix F of length q."""
    index = torch.arange(q, device="cpu")
    return transform.entries(index, index, q)


def angle(turns: Tensor, period: int) -> Tensor:
    """Return the angle 2 pi turns / period for integer `turns`, reduced modulo the period first to keep it exact."""
    return turns.remainder(period).double() * (2 * math.pi / period)


def outer(k: Tensor, p: Tensor) -> Tensor:
    """Return the matrix of products k_i p_j."""
    return k[:, None] * p[None, :]


def working(x: Tensor) -> Tensor:
    """Return x in a type in which transforms compute: float32 for the half types, else its own type."""
    if not x.is_floating_point():
        raise ValueError(f"a transform needs floating point input, not {x.dtype}; convert it with .float()")
    return x if x.dtype in (torch.float32, torch.float64) else x.float()
