"""Rewiring: while a network trains, some of its weights move to other positions (RigL and SET; paper: section 4).

`rewire.step()` takes the place of the optimiser's own. Every so many iterations a part of each layer's weights, the
smallest |S|, are dropped, and as many are grown elsewhere: where |dL/dW| is largest (RigL), or anywhere (SET). A weight
that is dropped takes W back to alpha D there, so |S| is exactly what dropping it changes; alpha and everything else
stay as they are. A new weight is 0.
"""

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn

from dctps.core.support import Int64
from dctps.methods.rewiring.base import Schedule, positions_of
from dctps.methods.rewiring.by_magnitude import ByMagnitude
from dctps.methods.rewiring.growth import anywhere


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
