"""RigL, the rigged lottery: weights that are dropped grow where |dL/dW| is largest (Evci et al. 2020)."""

import operator
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn

from dctps.base.words import listed
from dctps.core.support import Int64, derive_seed
from dctps.methods.rewiring.base import Closure, Move
from dctps.methods.rewiring.by_magnitude import ByMagnitude
from dctps.methods.rewiring.dense_gradient import DenseGradients, Wanted
from dctps.methods.rewiring.growth import Largest
from dctps.methods.rewiring.schedule import Schedule


class RigL(ByMagnitude):
    """Grow where |dL/dW| is largest; in an iteration that rewires the optimiser takes no step (Evci et al. 2020).

    The dense gradient of the iteration's batch is made layer by layer in the backward pass, summed over processes, and
    not stored. `gradient_batches` sums the gradients of that many iterations, and `accumulate` allows several backward
    passes per step; with either, the dense gradients of all layers are stored in between.

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
        hidden = [name for name, layer in self.layers.items() if not layer.shows_gradient]
        if hidden:
            raise ValueError(
                f"RigL grows weights by their dense gradient, which the weights {listed(hidden)} do not show; "
                "exclude these layers in sparsify, or use SET, which needs no gradient"
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
        """Do an iteration that rewires, in which the optimiser takes no step."""
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
        """Watch the layers if the gradient of the coming iteration counts for a rewiring."""
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
        self._check_state(state)
        self.watches_for = None
        super().load_state_dict(state)
        self.gradients.hold_again(state["held"])

    def _check_state(self, state: Mapping[str, Any]) -> None:
        super()._check_state(state)
        if state["held"].keys() - self.layers.keys():
            raise ValueError("this state belongs to another network: it holds the gradient of a layer that is not here")
