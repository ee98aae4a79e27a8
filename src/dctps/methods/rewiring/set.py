"""SET, sparse evolutionary training: weights that are dropped grow anywhere (Mocanu et al. 2018)."""

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn

from dctps.core.support import Int64
from dctps.methods.rewiring.base import positions_of
from dctps.methods.rewiring.by_magnitude import ByMagnitude
from dctps.methods.rewiring.growth import anywhere
from dctps.methods.rewiring.schedule import Schedule


class SET(ByMagnitude):
    """Grow at positions drawn uniformly outside those that are kept, after the optimiser's step (Mocanu et al. 2018).

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
