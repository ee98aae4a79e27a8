"""Another number of weights for a network that is sparse already: `set_density`."""

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from dctps.base.registry import lookup
from dctps.core.allocation import ALLOCATIONS, allocate, budget, check_at_least_one, check_density
from dctps.core.support import Int64, derive_seed
from dctps.methods.rewiring.base import check_apart, check_known, magnitudes_of, positions_of, sparse_layers
from dctps.methods.rewiring.growth import anywhere, ranking
from dctps.methods.rewiring.optimiser_state import OptimiserState
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.foreign import check_network
from dctps.nn.report import Request, attach_request
from dctps.nn.wrappers import unwrapped


@torch.inference_mode(False)  # what moves must train afterwards
def set_density(
    model: nn.Module,
    density: float,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    allocation: str = "epl",
    seed: int = 0,
) -> nn.Module:
    """Give the sparse layers of a network another density, in place, and return the network.

    A layer that gets fewer weights keeps those with the largest |S|. A layer that gets more keeps all of its weights,
    and the new ones are 0 at random positions. `values` stays the same Parameter object, and its gradient is removed.
    Layers whose values are frozen stay as they are. DistributedDataParallel knows the former numbers of weights: call
    this before the network is wrapped, and in all processes.

    density: the fraction of all weights of the sparse layers, frozen ones left out, that trains from now on.
    optimizer: the optimiser that trains the network, if there is one. Its moments move with the weights, and are 0 for
        new ones. Without it, the next step of an optimiser with moments would fail.
    allocation: the rule that shares the weights out among the layers, one of `ALLOCATIONS`.
    seed: the seed of the new positions.
    """
    check_network(model, "set_density(model, density)", density)
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError("DistributedDataParallel knows the former numbers of weights: call this before it wraps them")
    layers = {name: layer for name, layer in sparse_layers(model).items() if layer.values.requires_grad}
    sizes = [layer.geometry.weight_shape for layer in layers.values()]
    check_density(density)
    lookup(ALLOCATIONS, allocation, "allocation")
    total = sum(layer.support.size for layer in layers.values())
    check_at_least_one(total, density)
    carrier = OptimiserState(optimizer, "reset")
    check_apart(layers)
    if optimizer is not None:
        check_known(layers, optimizer)
    for name, layer in layers.items():
        carrier.per_weight(name, layer)
    counts = dict(zip(layers, allocate(sizes, density, allocation, seed), strict=True))
    moves = {name: _move(name, layer, counts[name], derive_seed(seed, name)) for name, layer in layers.items()}
    for name, (positions, kept) in moves.items():
        carrier.move(name, layers[name], positions, kept, steps=0)
    attach_request(unwrapped(model), Request(density, budget(total, density), allocation))
    return model


def _move(name: str, layer: DpsLayer, count: int, seed: int) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """Return the sorted positions of a layer that gets `count` weights, and which of its weights stay."""
    positions, kept = positions_of(layer), np.ones(layer.nnz, dtype=bool)
    if count < layer.nnz:
        kept[ranking(magnitudes_of(name, layer), positions, seed)[count:]] = False
        return positions[kept], kept
    grown = anywhere(positions, layer.support.size, count - layer.nnz, seed)
    return np.sort(np.concatenate([positions, grown])), kept
