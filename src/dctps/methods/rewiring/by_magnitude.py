"""What RigL and SET share: each layer drops its weights of smallest magnitude and grows as many (paper: section 4).

`rewire.step()` takes the place of the optimiser's own. A weight that is dropped takes W back to alpha D at its
position, so |S| is exactly what dropping it changes; alpha and everything else stay as they are. A new weight is 0.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from dctps.base.registry import lookup
from dctps.core.ranking import largest
from dctps.core.support import Int64, derive_seed
from dctps.methods.rewiring.base import Move, Rewiring, magnitudes_of, positions_of
from dctps.methods.rewiring.schedule import Schedule

# Each decay gives the part of `drop_fraction` that is dropped in iteration t. RigL takes the cosine.
DECAYS: dict[str, Callable[[int, int], float]] = {
    "cosine": lambda t, stop: (1 + math.cos(math.pi * t / stop)) / 2,
    "constant": lambda t, stop: 1.0,
}

# Each rounding gives a number of weights from a real number; `lot` is a uniform draw from [0, 1).
ROUNDINGS: dict[str, Callable[[float, float], int]] = {
    "floor": lambda count, lot: math.floor(count),
    "stochastic": lambda count, lot: math.floor(count + lot),
    "at_least_one": lambda count, lot: max(1, math.floor(count)),
}


class ByMagnitude(Rewiring):
    """Each layer drops its c smallest |S|, exact zeros first and equals by lot, and grows c weights elsewhere."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        *,
        drop_fraction: float,
        decay: str,
        rounding: str,
        **options: Any,
    ) -> None:
        if not 0 < drop_fraction <= 1:
            raise ValueError(f"drop_fraction must be in (0, 1], not {drop_fraction}")
        self.drop_fraction = drop_fraction
        self._decay = lookup(DECAYS, decay, "decay")
        self._round = lookup(ROUNDINGS, rounding, "rounding")
        options |= {"drop_fraction": drop_fraction, "decay": decay, "rounding": rounding}
        super().__init__(model, optimizer, schedule, **options)

    def fraction(self, iteration: int) -> float:
        """The fraction f(t) of its weights that a layer drops in iteration t."""
        return self.drop_fraction * self._decay(iteration, self.schedule.stop)

    def count(self, name: str, iteration: int) -> int:
        """The number c of weights that a layer drops in an iteration."""
        lot = derive_seed(self.seed, f"{name}/{iteration}/count") / 2**32
        nnz = self.layers[name].nnz
        return min(nnz, self._round(nnz * self.fraction(iteration), lot))

    def _decide(self, iteration: int) -> dict[str, Move]:
        counts = {name: self.count(name, iteration) for name in self.layers}
        moves = {name: self._decide_layer(name, iteration, count) for name, count in counts.items() if count}
        return {name: move for name, move in moves.items() if move is not None}

    def _decide_layer(self, name: str, iteration: int, count: int) -> Move | None:
        layer, positions = self.layers[name], positions_of(self.layers[name])
        importance = self._importance(name, iteration)
        kept = np.zeros(layer.nnz, dtype=bool)
        kept[largest(importance, layer.nnz - count, derive_seed(self.seed, f"{name}/{iteration}/drop"))] = True
        grown = self._grow(name, kept, count, derive_seed(self.seed, f"{name}/{iteration}/grow"))
        if grown is None:
            return None
        return Move(np.sort(np.concatenate([positions[kept], grown])), np.ones(layer.nnz, dtype=bool))

    def _importance(self, name: str, iteration: int) -> npt.NDArray[np.float64]:
        """Return a number for each weight of a layer; those with the smallest are dropped."""
        return magnitudes_of(name, self.layers[name])

    def _grow(self, name: str, kept: npt.NDArray[np.bool_], count: int, seed: int) -> Int64 | None:
        """Choose `count` positions that are not kept, dropped ones among them; None leaves the layer as it is."""
        raise NotImplementedError
