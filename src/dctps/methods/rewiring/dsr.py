"""DSR, dynamic sparse reparameterisation: weights move from layer to layer too (Mostafa and Wang 2019).

All layers share one threshold H: every weight with |S| < H is pruned, but one weight of each layer stays. H is halved
if more weights were pruned than wanted, and doubled if fewer were. As many weights as were pruned are grown, with the
value 0 at random positions, in each layer in proportion to the weights that survived there. The number of all weights
stays the same, that of a layer does not.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from dctps.core.ranking import largest
from dctps.core.support import Support, derive_seed
from dctps.methods.rewiring.base import Move, Rewiring, magnitudes_of, positions_of
from dctps.methods.rewiring.growth import anywhere
from dctps.methods.rewiring.process_group import several
from dctps.methods.rewiring.schedule import Schedule, TrainingPlan

TOLERANCE = 0.1  # how far the number of pruned weights may be from the wanted one before the threshold changes


class DSR(Rewiring):
    """Prune below a threshold that adapts, grow in proportion to the layers' survivors, after the optimiser's step.

    The threshold adapts so that about `drop_fraction` of all weights are pruned. Under an offset all values start at 0,
    below any threshold; `start` is the iteration before which nothing is pruned, so that they can grow.

    A layer's `values` change their length, on the same Parameter object. DistributedDataParallel cannot follow that.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        stop: int,
        every: int = 100,
        start: int = 0,
        drop_fraction: float = 0.1,
        threshold: float = 1e-3,
        optimizer_state: str = "reset",
        seed: int = 0,
    ) -> None:
        if not 0 < drop_fraction < 1 or not 0 < threshold < float("inf"):
            raise ValueError(
                f"drop_fraction must be in (0, 1) and threshold positive, not {drop_fraction} and {threshold}"
            )
        if several() or isinstance(model, nn.parallel.DistributedDataParallel):
            raise ValueError(_ALONE)
        settings: dict[str, Any] = {"drop_fraction": drop_fraction, "first_threshold": threshold}
        schedule = Schedule(stop, every, start)
        super().__init__(model, optimizer, schedule, optimizer_state=optimizer_state, seed=seed, **settings)
        self.drop_fraction, self.threshold = drop_fraction, threshold

    @classmethod
    def for_training(cls, model: nn.Module, optimizer: torch.optim.Optimizer, plan: TrainingPlan) -> Self:
        """DSR has its own drop fraction; under an offset it starts after one epoch, in which the values have grown."""
        start = plan.steps_per_epoch if plan.has_offset else 0
        return cls(model, optimizer, stop=plan.stop, every=plan.every, start=start, seed=plan.seed)

    def _check(self) -> None:
        if several():
            raise RuntimeError(_ALONE)
        super()._check()

    def _decide(self, iteration: int) -> dict[str, Move]:
        kept = {name: self._kept(name, iteration) for name in self.layers}
        pruned = sum(int((~flags).sum()) for flags in kept.values())
        wanted = self.drop_fraction * sum(map(len, kept.values()))
        survivors = [int((flags & (magnitudes_of(name, self.layers[name]) > 0)).sum()) for name, flags in kept.items()]
        room = [self.layers[name].support.size - int(flags.sum()) for name, flags in kept.items()]
        grown = shares(pruned, survivors, room, derive_seed(self.seed, f"{iteration}/shares"))
        self.threshold *= (
            0.5 if pruned > (1 + TOLERANCE) * wanted else 2.0 if pruned < (1 - TOLERANCE) * wanted else 1.0
        )
        counts = zip(kept.items(), grown, strict=True)
        return {name: self._move(name, flags, count, iteration) for (name, flags), count in counts}

    def _kept(self, name: str, iteration: int) -> npt.NDArray[np.bool_]:
        """Which weights of a layer are not below the threshold; the largest always stays."""
        magnitudes = magnitudes_of(name, self.layers[name])
        kept: npt.NDArray[np.bool_] = magnitudes >= self.threshold
        kept[largest(magnitudes, 1, derive_seed(self.seed, f"{name}/{iteration}/drop"))] = True
        return kept

    def _move(self, name: str, kept: npt.NDArray[np.bool_], count: int, iteration: int) -> Move:
        layer = self.layers[name]
        stay = positions_of(layer)[kept]
        grown = anywhere(stay, layer.support.size, count, derive_seed(self.seed, f"{name}/{iteration}/grow"))
        return Move(np.sort(np.concatenate([stay, grown])), kept)

    def state_dict(self) -> dict[str, Any]:
        supports = {name: layer.positions.clone() for name, layer in self.layers.items()}
        return {**super().state_dict(), "threshold": self.threshold, "supports": supports}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. The layers get the sizes of the state, so load it before the state of the network."""
        super().load_state_dict(state)
        self.threshold = state["threshold"]
        for name, support in self._supports(state).items():
            layer = self.layers[name]
            if layer.support != support:
                layer.move(support, torch.zeros(support.nnz, dtype=layer.values.dtype, device=layer.values.device))

    def _check_state(self, state: Mapping[str, Any]) -> None:
        super()._check_state(state)
        if several() or state["supports"].keys() - self.layers.keys():
            raise ValueError(_ALONE if several() else "this state belongs to another network")
        self._supports(state)  # raises an error for positions that are none

    def _supports(self, state: Mapping[str, Any]) -> dict[str, Support]:
        return {n: Support(self.layers[n].geometry.weight_shape, p) for n, p in state["supports"].items()}


_ALONE = (
    "DSR changes how many weights a layer has, and DistributedDataParallel exchanges gradients of fixed sizes; "
    "train in one process, or take RigL or SET"
)


def shares(total: int, weights: Sequence[int], room: Sequence[int], seed: int) -> list[int]:
    """Shares of `total` in proportion to `weights`, of which the i-th is at most `room[i]`.

    What rounding leaves goes to a layer drawn at random, and what does not fit goes to the others in proportion.

    >>> shares(7, weights=[1, 2, 4], room=[9, 9, 3], seed=0)
    [1, 3, 3]
    """
    if total > sum(room):
        raise ValueError(f"{total} weights do not fit into {sum(room)} places")
    given, stream = [0] * len(room), np.random.PCG64(seed)
    while left := total - sum(given):
        free = [places - have for places, have in zip(room, given, strict=True)]
        open_weights = [weight if places else 0 for weight, places in zip(weights, free, strict=True)]
        scale = sum(open_weights)
        parts = [min(places, left * w // scale if scale else 0) for w, places in zip(open_weights, free, strict=True)]
        if not any(parts):
            eligible = [i for i, places in enumerate(free) if places and (open_weights[i] or not scale)]
            lucky = eligible[int(stream.random_raw()) % len(eligible)]
            parts[lucky] = min(left, free[lucky])
        given = [have + part for have, part in zip(given, parts, strict=True)]
    return given
