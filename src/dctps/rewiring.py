"""Rewiring: while a network trains, some of its weights move to other positions (RigL and SET; paper: section 4).

`rewire.step()` takes the place of the optimiser's own. Every so many iterations a part of each layer's weights, the
smallest |S|, are dropped, and as many are grown elsewhere: where |dL/dW| is largest (RigL), or anywhere (SET). A weight
that is dropped takes W back to alpha D there, so |S| is exactly what dropping it changes; alpha and everything else
stay as they are. A new weight is 0.
"""

import math
import operator
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn

from dctps.dense_gradient import DenseGradients, Wanted
from dctps.growth import Largest, anywhere
from dctps.moving import Closure, Move, Rewiring, Schedule, magnitudes_of, positions_of
from dctps.ranking import largest
from dctps.registry import lookup
from dctps.support import Int64, derive_seed

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


class RigL(ByMagnitude):
    """Grow where |dL/dW| is largest; in an iteration that rewires the optimiser takes no step (Evci et al. 2020).

    The dense gradient is that of the iteration's batch, made layer by layer in its backward pass and gone at once;
    of several processes their sum. `gradient_batches` sums those of so many iterations, and `accumulate` allows several
    backward passes per step; then the dense gradients of all layers are held in between.

    >>> import dctps
    >>> net = dctps.sparsify(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), 0.25)
    >>> rewire = dctps.RigL(net, torch.optim.Adam(net.parameters()), stop=300)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        stop: int,
        every: int = 100,
        drop_fraction: float = 0.3,
        decay: str = "cosine",
        rounding: str = "floor",
        gradient_batches: int = 1,
        accumulate: bool = False,
        optimizer_state: str = "reset",
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        schedule = Schedule(stop, every)
        if not 1 <= operator.index(gradient_batches) <= schedule.every:
            raise ValueError(f"gradient_batches must be between 1 and every={every}, not {gradient_batches}")
        super().__init__(
            model,
            optimizer,
            schedule,
            drop_fraction=drop_fraction,
            decay=decay,
            rounding=rounding,
            gradient_batches=gradient_batches,
            accumulate=bool(accumulate),
            optimizer_state=optimizer_state,
            seed=seed,
            group=group,
        )
        self.gradient_batches = gradient_batches
        self.gradients = DenseGradients(self.layers, self.peers, accumulate=accumulate, hold=gradient_batches > 1)
        self.found: dict[str, Largest] = {}
        self.watches_for: int | None = None  # the update for which gradients are being collected
        weakref.finalize(self, self.gradients.stop).atexit = False
        self._look_ahead()

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.gradients.discard_unused()

    def _update(self, iteration: int, closure: Closure) -> Any:
        """No step of the optimiser, for no parameter."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.found = self.gradients.results()
        try:
            self._rewire(iteration)
        finally:
            self.found = {}
        return loss

    def _decide(self, iteration: int) -> dict[str, Move]:
        if any(self.count(name, iteration) for name in self.layers) and not self.found:
            raise RuntimeError(
                f"iteration {iteration} grows weights by their gradient, but no backward pass through the layers was "
                "seen since the last step; call backward() before step(); gradients taken by torch.func are not seen"
            )
        bad = [name for name, found in self.found.items() if not found.finite]
        if bad:
            raise RuntimeError(f"the dense gradient of layer {bad[0]!r} is not finite in iteration {iteration}")
        return super()._decide(iteration)

    def _grow(self, name: str, kept: npt.NDArray[np.bool_], count: int, seed: int) -> Int64 | None:
        return self.found[name].outside(kept, count) if name in self.found else None

    def _look_ahead(self) -> None:
        """Watch the layers while an iteration's gradient counts for an update."""
        coming = range(self.iteration + 1, self.iteration + 1 + self.gradient_batches)
        update = next((t for t in coming if self.schedule.due(t)), None)
        if update is None:
            self.gradients.stop()
        elif update == self.watches_for:
            self.gradients.next()
        else:
            self.gradients.start(self._wanted(update))
        self.watches_for = update

    def _wanted(self, update: int) -> dict[str, Wanted]:
        counts = {name: self.count(name, update) for name in self.layers}
        return {n: Wanted(c, derive_seed(self.seed, f"{n}/{update}/grow")) for n, c in counts.items() if c}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "held": self.gradients.held()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("held", {}).keys() - self.layers.keys():
            raise ValueError("this state belongs to another network: it holds the gradient of a layer that is not here")
        self.watches_for = None
        super().load_state_dict(state)
        self.gradients.hold_again(state["held"])


class SET(ByMagnitude):
    """Grow anywhere outside what is kept, uniformly, after the optimiser's step (Mocanu et al. 2018).

    `decay="constant"` drops the same fraction each time, as the original does; the default follows RigL's cosine.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        stop: int,
        every: int = 100,
        drop_fraction: float = 0.3,
        decay: str = "cosine",
        rounding: str = "floor",
        optimizer_state: str = "reset",
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            model,
            optimizer,
            Schedule(stop, every),
            drop_fraction=drop_fraction,
            decay=decay,
            rounding=rounding,
            optimizer_state=optimizer_state,
            seed=seed,
            group=group,
        )

    def _grow(self, name: str, kept: npt.NDArray[np.bool_], count: int, seed: int) -> Int64:
        layer = self.layers[name]
        return anywhere(positions_of(layer)[kept], layer.support.size, count, seed)
