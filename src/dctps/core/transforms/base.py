"""What a transform is: an orthonormal q x q matrix F for every length q that it supports.

Required are the four methods of `Transform`. Two more are optional and make layers faster, never different:

    terms, split   the addition theorem behind fast convolutions (`Separable`): with p = a + b,
                   F[k, a + b] = sum_r left[r, k, a] * right[r, k, b],  r < terms
    form           a formula for the entries that the native kernels understand (`forms.py`)

Angles are reduced modulo the period in integers before any cosine is taken, so entries are exact to the last bit or
two for every length.
"""

import math
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from dctps.core.transforms.forms import Form


class Transform(Protocol):
    """An orthonormal q x q matrix F for every supported length q."""

    def padded(self, length: int) -> int:
        """The smallest supported length that is at least `length`."""

    def apply(self, x: Tensor, axis: int = -1) -> Tensor:  # (..., q, ...) -> (..., q, ...)
        """F x along `axis`."""

    def adjoint(self, y: Tensor, axis: int = -1) -> Tensor:  # (..., q, ...) -> (..., q, ...)
        """F' y along `axis`, which is also the inverse."""

    def entries(self, k: Tensor, p: Tensor, q: int) -> Tensor:  # (K,), (P,) -> (K, P) float64
        """F[k, p] for every pair of a row k and a column p."""


@runtime_checkable
class Separable(Protocol):
    """A transform with an addition theorem: a filter bank made of its rows is a sum of few separable ones."""

    terms: int  # R, the number of products in the addition theorem

    def split(self, k: Tensor, a: Tensor, b: Tensor, q: int) -> tuple[Tensor, Tensor]:  # (R, K, A), (R, K, B)
        """`left`, `right` with F[k, a + b] = sum_r left[r, k, a] right[r, k, b]."""


@runtime_checkable
class HasForm(Protocol):
    """A transform whose entries follow a formula that the native kernels understand."""

    def form(self, k: Tensor, q: int) -> Form:
        """The formula for the rows k of the transform of length q."""


def matrix(transform: Transform, q: int) -> Tensor:  # (q, q) float64
    """The whole of F: what `apply` does to the identity, written out."""
    index = torch.arange(q, device="cpu")
    return transform.entries(index, index, q)


def angle(turns: Tensor, period: int) -> Tensor:
    """2 pi turns / period for integer `turns`, reduced modulo the period first so that large products stay exact."""
    return turns.remainder(period).double() * (2 * math.pi / period)


def outer(k: Tensor, p: Tensor) -> Tensor:
    """The products k_i p_j."""
    return k[:, None] * p[None, :]


def working(x: Tensor) -> Tensor:
    """`x` in a precision that the transforms have: half types are computed in float32."""
    if not x.is_floating_point():
        raise ValueError(f"a transform needs floating point input, not {x.dtype}")
    return x if x.dtype in (torch.float32, torch.float64) else x.float()
