"""Rewiring: while a network trains, some of its weights move to other positions (RigL and SET; paper: section 4).

`rewire.step()` takes the place of the optimiser's own. Every so many iterations a part of each layer's weights, the
smallest |S|, are dropped, and as many are grown elsewhere: where |dL/dW| is largest (RigL), or anywhere (SET). A weight
that is dropped takes W back to alpha D there, so |S| is exactly what dropping it changes; alpha and everything else
stay as they are. A new weight is 0.
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
from dctps.methods.rewiring.base import Move, Rewiring, Schedule, magnitudes_of, positions_of

# Which part of `drop_fraction` is dropped in iteration t; RigL's is f(t) = drop_fraction / 2 (1 + cos(pi t / stop))
DECAYS: dict[str, Callable[[int, int], float]] = {
    "cosine": lambda t, stop: (1 + math.cos(math.pi * t / stop)) / 2,
    "constant": lambda t, stop: 1.0,
}

# A number of weights from a real number; `lot` is a uniform draw from [0, 1)
ROUNDINGS: dict[str, Callable[[float, float], int]] = {
    "floor": lambda count, lot: math.floor(count),
    "stochastic": lambda count, lot: math.floor(count + lot),
    "at_least_one": lambda count, lot: max(1, math.floor(count)),
}


class ByMagnitude(Rewiring):
    """Each layer drops c of its weights, the smallest |S|, exact zeros first and equals by lot, and grows c."""

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
        """f(t): the fraction of its weights that a layer drops."""
        return self.drop_fraction * self._decay(iteration, self.schedule.stop)

    def count(self, name: str, iteration: int) -> int:
        """c: how many weights a layer drops."""
        lot = derive_seed(self.seed, f"{name}/{iteration}/count") / 2**32
        nnz = self.layers[name].nnz
        return min(nnz, self._round(nnz * self.fraction(iteration), lot))

    def _decide(self, iteration: int) -> dict[str, Move]:
        counts = {name: self.count(name, iteration) for name in self.layers}
        moves = {name: self._decide_layer(name, iteration, count) for name, count in counts.items() if count}
        return {name: move for name, move in moves.items() if move is not None}

    def _decide_layer(self, name: str, iteration: int, count: int) -> Move | None:
        layer, positions = self.layers[name], positions_of(self.layers[name])
        magnitudes = magnitudes_of(name, layer)
        kept = np.zeros(layer.nnz, dtype=bool)
        kept[largest(magnitudes, layer.nnz - count, derive_seed(self.seed, f"{name}/{iteration}/drop"))] = True
        grown = self._grow(name, kept, count, derive_seed(self.seed, f"{name}/{iteration}/grow"))
        if grown is None:
            return None
        return Move(np.sort(np.concatenate([positions[kept], grown])), np.ones(layer.nnz, dtype=bool))

    def _grow(self, name: str, kept: npt.NDArray[np.bool_], count: int, seed: int) -> Int64 | None:
        """`count` positions outside those that are kept, the dropped ones among them; None: leave the layer alone."""
        raise NotImplementedError
