"""The scale of D at initialisation: the norms of its filters, and the rules of `ALPHAS` (paper: sections 3 and 6).

    paper     1; where the network states a norm v for a layer, the published sqrt(v / mean norm of D's filters)
    exact     1; where a norm v is stated, v / mean norm of D's filters: alpha D then has that norm
    preserve  sqrt(2 / mean squared norm of D's filters): what He et al. (2015) do for Gaussian weights, whose filters
              have a mean squared norm of fan_in * 2 / fan_in = 2; where a norm is stated, as `exact`

The squared norms of D's m filters of n entries sum to m n / q for a transform of length q, whatever its order, signs
and rows: an orthonormal matrix of which either all rows are kept (q = m > n), or all columns (q = n), or whose entries
are all of one size (Hadamard).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dctps.core.offsets import BLOCK, Offset, PatchOffset

Rule = Callable[[Offset, float | None], float]  # the offset of a layer, the norm that the network states for it


# --- norms of the filters of D ---------------------------------------------------------------------------------------


def filter_norms(offset: Offset) -> Tensor:  # (m,), float64
    """The norms of D's rows; those of a transform some at a time, so that D itself is never made."""
    if not isinstance(offset, PatchOffset):
        return offset.matrix().detach().cpu().double().square().sum(1).sqrt()
    m, n = offset.shape
    if offset.length == n:
        return torch.ones(m, dtype=torch.float64, device="cpu")
    blocks = offset.rows.split(max(1, BLOCK // n))
    return torch.cat([offset.transform.entries(rows, offset.slots, offset.length).norm(dim=1) for rows in blocks])


def mean_norm(offset: Offset) -> float:
    """The mean norm of D's filters."""
    return float(filter_norms(offset).mean())


def mean_square(offset: Offset) -> float:
    """The mean squared norm of D's filters: n / q for the transforms (top of this file)."""
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
