"""The initial alpha, which scales D: the norms of D's filters, and the rules of `ALPHAS` (paper: sections 3 and 6).

A network may state a norm v that the filters of a layer should have. Let r be the mean norm of D's filters.

    rule      alpha where no norm is stated                alpha where the norm v is stated
    paper     1                                            sqrt(v / r), as published
    exact     1                                            v / r, so that the filters of alpha D have mean norm v
    preserve  sqrt(2 / mean squared norm of D's filters)   v / r
    leverage  1, or what a training can turn (see below)   sqrt(v / r)

`preserve` does what He et al. (2015) do for Gaussian weights: their filters have the mean squared norm
fan_in * 2 / fan_in = 2.

`leverage` is for layers whose output a BatchNorm (or another normalisation) rescales, and for the classifier behind
such layers. There the length of a filter w = alpha d + s means nothing (in the classifier: little, because BatchNorm
scales its input), and its direction everything. So alpha sets how far S can turn a filter. The gradient of
such a filter is orthogonal to it, because a change along the filter changes nothing. Steps of the optimiser therefore
add up like the sides of right angles: Adam moves each of the k values of a filter by about the learning rate lr, so
after T steps

    |s| = C lr sqrt(T k)

with a constant C that grows with how long a gradient keeps its sign (C = 1 for independent steps). The rule chooses
alpha such that alpha |d| is this length: at the end of the training S has turned an average filter by half a right
angle. A much larger alpha leaves all learning to BatchNorm; with a much smaller one the first few steps replace D.

For a transform of length q, the squared norms of D's m filters of n entries sum to m n / q, whatever the order, signs
and rows, if D has all of its rows (q = m > n), or all of its columns (q = n), or entries of one magnitude (Hadamard).
The reason is that the transform is orthonormal.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dctps.base.registry import unknown
from dctps.core.offsets import Offset
from dctps.core.patch_offset import BLOCK, PatchOffset
from dctps.core.transforms import Walsh


class ScaledLayer(NamedTuple):
    """What a rule may look at to choose the alpha of a layer."""

    offset: Offset
    norm: float | None = None  # the norm of a filter that the network states
    nnz: int = 0  # the number of values in S
    is_rescaled: bool = False  # whether the network sets the scale of the output elsewhere, as by a BatchNorm


Rule = Callable[[ScaledLayer], float]  # returns the alpha of a layer


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
    """Return the mean squared norm of D's filters, which is n / q for most transforms (top of this file)."""
    if isinstance(offset, PatchOffset) and (offset.length in offset.shape or isinstance(offset.form, Walsh)):
        return offset.shape[1] / offset.length
    return float(filter_norms(offset).square().mean())


# --- the rules --------------------------------------------------------------------------------------------------------


def _paper(layer: ScaledLayer) -> float:
    return 1.0 if layer.norm is None else math.sqrt(_exact(layer))


def _exact(layer: ScaledLayer) -> float:
    return 1.0 if layer.norm is None else layer.norm / mean_norm(layer.offset)


def _preserve(layer: ScaledLayer) -> float:
    return math.sqrt(2 / mean_square(layer.offset)) if layer.norm is None else _exact(layer)


@dataclasses.dataclass(frozen=True)
class Leverage:
    """The rule `leverage` for a training of `steps` steps of Adam at the learning rate `lr` (docs/offsets.md).

    `alpha="leverage/3e-4/50000"` is another way to write `alpha=Leverage(3e-4, 50_000)`.

    Where the network does not set the scale elsewhere, alpha sets the size of the signal, and stays what `paper` says.
    """

    lr: float = 1e-3
    steps: int = 1000

    def __post_init__(self) -> None:
        if not (LEAST < self.lr < math.inf and 0 < self.steps < MOST):
            raise ValueError(f"a learning rate and a number of steps are positive, not {self.lr} and {self.steps}")

    @classmethod
    def parse(cls, name: str) -> "Leverage":
        """Return the rule that is written "leverage/LR/STEPS"; raise ValueError if it is not written so."""
        try:
            rule, lr, steps = name.split("/")
            if rule == LEVERAGE:
                return cls(float(lr), int(steps))
        except ValueError:
            pass
        raise ValueError(
            f"alpha {name!r}: leverage for a training of its own is written leverage/LR/STEPS, with a positive "
            "learning rate and a positive whole number of steps, as in leverage/3e-4/50000"
        )

    @property
    def name(self) -> str:
        """The name of the rule, which `parse` reads; without numbers if they are the usual ones."""
        return LEVERAGE if self == Leverage() else f"{LEVERAGE}/{self.lr}/{self.steps}"

    @property
    def reach(self) -> float:
        """How far a value of S gets from zero in the training: C lr sqrt(steps)."""
        return PERSISTENCE * self.lr * math.sqrt(self.steps)

    def __call__(self, layer: ScaledLayer) -> float:
        if not layer.is_rescaled or layer.norm is not None:
            return _paper(layer)
        per_filter = max(1.0, layer.nnz / layer.offset.shape[0])  # a filter without a value is turned by no alpha
        return self.reach * math.sqrt(per_filter) / mean_norm(layer.offset)


PERSISTENCE = 2.0  # C, as measured (docs/offsets.md)
PAPER, LEVERAGE = "paper", "leverage"
LEAST, MOST = 1e-30, 10**30  # of a learning rate and of a number of steps: beyond them alpha would be 0 or infinite
ALPHAS: dict[str, Rule] = {PAPER: _paper, "exact": _exact, "preserve": _preserve, LEVERAGE: Leverage()}
"""The rules for the initial alpha by name: functions of a `ScaledLayer` that return a number."""


def named_rule(name: str) -> Rule:
    """Return the rule of a name: an entry of `ALPHAS`, or leverage/LR/STEPS for a `Leverage(lr, steps)`."""
    if name.startswith(f"{LEVERAGE}/"):
        return Leverage.parse(name)
    if name not in ALPHAS:
        raise ValueError(unknown("alpha", name, ALPHAS, ", or leverage/LR/STEPS"))
    return ALPHAS[name]
