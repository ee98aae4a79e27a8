"""What an optimiser keeps for each weight, and how it moves when weights move.

An optimiser keeps tensors of the shape of `values`: momentum, moments, their maxima. Their numbers belong to positions
and move with the values; at a new position they start at zero ("reset"). Under "keep" a weight that returns gets the
numbers it would have in a dense network under a mask, where the gradient of a masked weight is zero: those it left
with, faded by the steps in between. Everything else that an optimiser keeps, such as the number of its steps, stays.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dctps.base.registry import lookup
from dctps.core.support import Int64, Support
from dctps.nn.dps_layer import DpsLayer

POLICIES = {"reset": False, "keep": True}

# The factor by which one step with a zero gradient multiplies a number; numbers not named here stay as they are.
FADING: dict[str, Callable[[dict[str, Any]], float]] = {
    "exp_avg": lambda group: group["betas"][0],
    "exp_avg_sq": lambda group: group["betas"][1],
    "exp_inf": lambda group: group["betas"][1],
    "momentum_buffer": lambda group: group["momentum"],
    "square_avg": lambda group: group["alpha"],
}

Flags = npt.NDArray[np.bool_]
Memory = dict[str, Tensor]  # weights that left a layer: "positions" (sorted), "steps" when they left, and their numbers


class OptimiserState:
    """The state that an optimiser keeps for each weight; without an optimiser, none."""

    def __init__(self, optimizer: torch.optim.Optimizer | None, policy: str) -> None:
        self.optimizer, self.keeps = optimizer, lookup(POLICIES, policy, "optimizer_state")
        self.memory: dict[str, Memory] = {}

    def per_weight(self, name: str, layer: DpsLayer) -> dict[str, Tensor]:
        """The tensors with a number for each value of a layer; ValueError if the optimiser keeps something else."""
        state = {} if self.optimizer is None else self.optimizer.state.get(layer.values, {})
        for key, entry in state.items():
            scalar = isinstance(entry, int | float | None) or (isinstance(entry, Tensor) and entry.dim() == 0)
            if not scalar and not (isinstance(entry, Tensor) and entry.shape == layer.values.shape):
                kind = type(self.optimizer).__name__
                raise ValueError(
                    f"{kind} keeps {key!r} for layer {name!r}, which is not a number for each weight "
                    "and cannot move with them; take an optimiser as SGD, Adam or AdamW"
                )
        return {key: entry for key, entry in state.items() if isinstance(entry, Tensor) and entry.dim() == 1}

    def move(self, name: str, layer: DpsLayer, positions: Int64, carried: Flags, steps: int) -> None:
        """Move a layer to other positions (sorted), with its values and their state.

        A weight that `carried` (nnz,) marks keeps its value if its position is among the new ones; all others start at
        zero. `steps` is the number of steps that the optimiser has taken.
        """
        before = layer.positions.cpu().numpy().astype(np.int64)
        found, source = _located(positions, before[carried])
        source = np.flatnonzero(carried)[source]
        state = self.per_weight(name, layer)
        moved = {key: _gathered(tensor, found, source) for key, tensor in state.items()}
        if self.keeps:
            left = np.ones(len(before), dtype=bool)
            left[source] = False
            self._remember(name, before, left, state, steps)
            self._recall(name, layer, positions, moved, steps)
        support = Support(layer.geometry.weight_shape, torch.from_numpy(positions))
        layer.move(support, _gathered(layer.values, found, source))
        for key, tensor in moved.items():
            if tensor.shape == state[key].shape:
                state[key].copy_(tensor)
            elif self.optimizer is not None:
                self.optimizer.state[layer.values][key] = tensor

    def _remember(self, name: str, before: Int64, left: Flags, state: dict[str, Tensor], steps: int) -> None:
        """Put the numbers of the weights that leave into the memory of the layer."""
        if not state or not left.any():
            return
        where = torch.from_numpy(np.flatnonzero(left))
        new = {"positions": torch.from_numpy(before[left]), "steps": torch.full((len(where),), steps)}
        new |= {key: tensor.detach().cpu()[where] for key, tensor in state.items()}
        old = self.memory.get(name, {key: tensor[:0] for key, tensor in new.items()})
        order = torch.argsort(torch.cat([old["positions"], new["positions"]]))
        self.memory[name] = {key: torch.cat([old[key], new[key]])[order] for key in new}

    def _recall(self, name: str, layer: DpsLayer, positions: Int64, moved: dict[str, Tensor], steps: int) -> None:
        """Take the numbers of the weights that return out of the memory, faded."""
        memory = self.memory.get(name)
        if memory is None:
            return
        found, source = _located(positions, memory["positions"].numpy())
        where, group = torch.from_numpy(source), self._group(layer)
        away = steps - memory["steps"][where]
        for key, tensor in moved.items():
            fading = FADING[key](group) if key in FADING else 1.0
            back = memory[key][where] * torch.pow(torch.tensor(fading, dtype=torch.float64), away)
            tensor[torch.from_numpy(found).to(tensor.device)] = back.to(tensor)
        stays = torch.ones(len(memory["positions"]), dtype=torch.bool)
        stays[where] = False
        self.memory[name] = {key: tensor[stays] for key, tensor in memory.items()}

    def _group(self, layer: DpsLayer) -> dict[str, Any]:
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        return next(group for group in groups if any(p is layer.values for p in group["params"]))


def _located(positions: Int64, among: Int64) -> tuple[Flags, Int64]:
    """Which positions are in `among` (sorted), and their indices there."""
    index = np.searchsorted(among, positions)
    inside = index < len(among)
    inside[inside] = among[index[inside]] == positions[inside]
    return inside, index[inside]


def _gathered(tensor: Tensor, found: Flags, source: Int64) -> Tensor:  # (len(found),)
    """A tensor with the entries `source` of another where `found` is true, and zeros elsewhere."""
    out = torch.zeros(len(found), dtype=tensor.dtype, device=tensor.device)
    out[torch.from_numpy(found).to(tensor.device)] = tensor.detach()[torch.from_numpy(source).to(tensor.device)]
    return out
