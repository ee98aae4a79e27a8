"""The offset of one weight: rows of a fast transform, with its formula and its separable factors.

`offsets.py` says what D is.
"""

import functools
import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dctps.core.support import derive_seed, sample
from dctps.core.transforms import TRANSFORMS, Form, HasForm, Separable

BLOCK = 1 << 20  # entries of D that are computed at a time


class Recipe(Protocol):
    """What an offset is made by: a transform and the choices of `offsets.TransformOffset`."""

    @property
    def transform(self) -> str: ...
    @property
    def order(self) -> str: ...
    @property
    def signs(self) -> str: ...
    @property
    def rows(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def name(self) -> str: ...
    def bind(self, weight_shape: tuple[int, ...]) -> "PatchOffset": ...


class PatchOffset:
    """The offset that a recipe gives to weights of one shape: an `Offset` that also knows its separable factors."""

    def __init__(self, recipe: Recipe, weight_shape: tuple[int, ...]) -> None:
        filters, channels, *kernel = weight_shape
        taps = math.prod(kernel)
        if min(weight_shape) < 1:
            raise ValueError(f"an offset needs a weight with at least one element, not of shape {weight_shape}")
        self.recipe, self.weight_shape = recipe, weight_shape
        self.name = recipe.name  # which `TransformOffset.parse` reads; found here, where torch.compile does not look on
        self.transform = TRANSFORMS[recipe.transform]
        self.shape = (filters, channels * taps)
        wide, tall = self.transform.padded(channels), self.transform.padded(taps)
        self.length = self.transform.padded(max(wide * tall, filters))  # q
        by_channel, by_tap = (1, wide) if recipe.order == "spatial" else (tall, 1)
        self.channel_slots = by_channel * torch.arange(channels, device="cpu")
        self.tap_slots = by_tap * torch.arange(taps, device="cpu")
        self.slots = (self.channel_slots[:, None] + self.tap_slots[None, :]).flatten()  # (n,)
        self.rows = self._rows(filters)  # (m,)
        self.signs = self._signs(channels, taps)  # (channels, taps) or (channels, 1)

    def _rows(self, filters: int) -> Tensor:
        """Return the rows of F that become the rows of D."""
        if self.recipe.rows == "lowest":
            return torch.arange(filters, device="cpu")
        return torch.from_numpy(sample(self.length, filters, derive_seed(self.recipe.seed, f"rows/{self.shape}")))

    def _signs(self, channels: int, taps: int) -> Tensor:
        """Return +1 or -1 for each channel, or for each channel and kernel position."""
        if self.recipe.signs == "none":
            return torch.ones(channels, 1, dtype=torch.float64, device="cpu")
        count = channels * (taps if self.recipe.signs == "position" else 1)
        words = np.random.PCG64(derive_seed(self.recipe.seed, f"signs/{self.shape}")).random_raw(count)
        return torch.from_numpy(1.0 - 2.0 * (words >> np.uint64(63)).astype(np.float64)).view(channels, -1)

    @property
    def terms(self) -> int:
        """The number of terms when D is written as a sum of (channel factor) x (kernel position factor).

        It is 0 where D has no such sum.
        """
        separable = isinstance(self.transform, Separable) and self.signs.shape[1] == 1
        return self.transform.terms if separable else 0  # type: ignore[attr-defined]

    @property
    def separable(self) -> bool:
        """Whether D is a short sum of (channel factor) x (kernel position factor)."""
        return self.terms > 0

    @functools.cached_property
    def form(self) -> Form | None:
        """The formula for D's entries that kernels may use.

        It is None where the transform has no formula, and where there are signs per position.
        """
        if not isinstance(self.transform, HasForm) or self.signs.shape[1] > 1:
            return None
        form = self.transform.form(self.rows, self.length)
        k, p = _sample(len(self.rows)), _sample(len(self.slots))
        self._check("form", k, p, torch.from_numpy(form.entries(self.slots[p].numpy())[k.numpy()]))
        return form

    def apply(self, x: Tensor) -> Tensor:  # (..., n) -> (..., m)
        line = _scatter(self._signed(x), self.slots, self.length)
        return _gather(self.transform.apply(line), self.rows)

    def adjoint(self, v: Tensor) -> Tensor:  # (..., m) -> (..., n)
        line = self.transform.adjoint(_scatter(v, self.rows, self.length))
        return self._signed(_gather(line, self.slots))

    def matrix(self, dtype: torch.dtype | None = None) -> Tensor:  # (m, n)
        """Return D in `dtype` (by default torch's default type), computed in float64."""
        out = torch.empty(self.shape, dtype=dtype or torch.get_default_dtype(), device="cpu")
        block = max(1, BLOCK // self.shape[1])  # rows that are computed at a time, so that float64 tensors stay small
        for start in range(0, self.shape[0], block):
            rows = slice(start, start + block)
            out[rows] = self._signed(self.transform.entries(self.rows[rows], self.slots, self.length))
        return out

    def factors(self) -> tuple[Tensor, Tensor]:  # (R, m, channels), (R, m, taps), float64
        """Return `left` and `right` with D[k, (c, t)] = sum_r left[r, k, c] right[r, k, t].

        ValueError is raised where the transform or the signs do not allow it.
        """
        if not isinstance(self.transform, Separable):
            raise ValueError(
                f"the transform {self.recipe.transform!r} has no addition theorem, so its offsets have no factors"
            )
        if not self.separable:
            raise ValueError("an offset with signs='position' is not separable; use signs='channel' or signs='none'")
        left, right = self.transform.split(self.rows, self.channel_slots, self.tap_slots, self.length)
        k, p = _sample(len(self.rows)), _sample(len(self.slots))
        taps = len(self.tap_slots)
        self._check("split", k, p, (left[:, k][:, :, p // taps] * right[:, k][:, :, p % taps]).sum(0))
        return left * self.signs.T, right

    def _check(self, method: str, k: Tensor, p: Tensor, found: Tensor) -> None:
        """Raise ValueError unless `found` equals the transform's `entries` at the rows k and the patch entries p."""
        expected = self.transform.entries(self.rows[k], self.slots[p], self.length)
        tolerance = 1e-5 * float(expected.abs().max())  # permits float32; a wrong formula differs in every digit
        if not torch.allclose(found, expected.double(), rtol=0, atol=tolerance):
            raise ValueError(
                f"the transform {self.recipe.transform!r} contradicts itself: its method {method!r} gives other "
                f"numbers than its method 'entries' for length {self.length}; correct {method!r}, or leave it out"
            )

    def _signed(self, x: Tensor) -> Tensor:  # (..., n) -> (..., n)
        """Return x with its entries multiplied by the signs."""
        if self.recipe.signs == "none":
            return x
        return x * self.signs.expand(-1, len(self.tap_slots)).reshape(-1).to(x)

    def __reduce__(self) -> tuple[object, ...]:
        return self.recipe.bind, (self.weight_shape,)  # a copy or an unpickled offset is the one that `_bind` caches

    def __repr__(self) -> str:
        return f"PatchOffset({self.recipe.name}, {self.shape[0]} x {self.shape[1]})"


def _sample(count: int) -> Tensor:
    """Return up to eight indices below `count`, spread evenly from the first to the last."""
    return torch.from_numpy(np.unique(np.linspace(0, count - 1, min(count, 8)).round().astype(np.int64)))


def _is_prefix(index: Tensor) -> bool:
    """Return whether the index is 0, 1, 2, ...; padding and slicing then replace scatter and gather."""
    return torch.equal(index, torch.arange(len(index), device="cpu"))


def _scatter(x: Tensor, index: Tensor, length: int) -> Tensor:  # (..., len(index)) -> (..., length)
    """Return zeros of the given length with the entries of x at `index`."""
    if _is_prefix(index):
        return torch.nn.functional.pad(x, (0, length - len(index))) if length > len(index) else x
    return x.new_zeros(*x.shape[:-1], length).index_copy(-1, index.to(x.device), x)


def _gather(line: Tensor, index: Tensor) -> Tensor:  # (..., length) -> (..., len(index))
    """Return the entries of the line at `index`."""
    return line[..., : len(index)] if _is_prefix(index) else line.index_select(-1, index.to(line.device))
