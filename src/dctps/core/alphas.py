"""The initial alpha, which scales D: the norms of D's filters, and the rules of `ALPHAS` (paper: sections 3 and 6).

A network may state a norm v that the filters of a layer should have. Let r be the mean norm of D's filters.

    rule      alpha where no norm is stated                alpha where the norm v is stated
    paper     1                                            sqrt(v / r), as published
    exact     1                                            v / r, so that the filters of alpha D have mean norm v
    preserve  sqrt(2 / mean squared norm of D's filters)   v / r

`preserve` does what He et al. (2015) do for Gaussian weights: their filters have the mean squared norm
fan_in * 2 / fan_in = 2.

For a transform of length q, the squared norms of D's m filters of n entries sum to m n / q, whatever the order, signs
and rows. The reason is that the transform is orthonormal, and that D has either all of its rows (q = m > n), or all of
its columns (q = n), or entries of one magnitude (Hadamard).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dctps.core.offsets import Offset
from dctps.core.patch_offset import BLOCK, PatchOffset

Rule = Callable[[Offset, float | None], float]  # (offset of a layer, norm that the network states for it) -> alpha


# --- norms of the filters of D ---------------------------------------------------------------------------------------


def filter_norms(offset: Offset) -> Tensor:  # (m,), float64
    """Return the norms of D's rows; a transform computes some rows at a time, so that D is never held as a whole."""
    if not isinstance(offset, PatchOffset):
        return offset.matrix().detach().cpu().double().square().sum(1).sqrt()
    m, n = offset.shape
    if offset.length == n:
        return torch.ones(m, dtype=torch.float64, device="cpu")
    blocks = offset.rows.split(max(1, BLOCK // n))
    return torch.cat([offset.transform.entries(rows, offset.slots, offset.length).norm(dim=1) for rows in blocks])


def mean_norm(offset: Offset) -> float:
    """Return the mean norm of D's filters."""
    return float(filter_norms(offset).mean())


def mean_square(offset: Offset) -> float:
    """Return the mean squared norm of D's filters, which is n / q for a transform (top of this file)."""
    if isinstance(offset, PatchOffset):
        return offset.shape[1] / offset.length
    return float(filter_norms(offset).square().mean())


# --- the rules --------------------------------------------------------------------------------------------------------


def _paper(offset: Offset, norm: float | None) -> float:
    return 1.0 if norm is None else math.sqrt(_exact(offset, norm))


def _exact(offset: Offset, norm: float | None) -> float:
    return 1.0 if norm is None else norm / mean_norm(offset)


def _preserve(offset: Offset, norm: float | None) -> float:
    return math.sqrt(2 / mean_square(offset)) if norm is None else _exact(offset, norm)


PAPER = "paper"
ALPHAS: dict[str, Rule] = {PAPER: _paper, "exact": _exact, "preserve": _preserve}
