"""Where the weights of S are, under an offset: methods for `dctps train --method dctps.experiments.places:NAME`.

The counts of the layers are those of the allocation, as for random places, so that the places alone differ. Scores are
taken where a training begins, at W = alpha D and S = 0. There |s g| of SNIP is zero everywhere, which leaves two
readings: how much the loss falls where a value begins to grow, |g|, and how much it changes where S takes the entry of
D away, |w g| with w = alpha D.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dctps.core.allocation import allocate, draw_supports
from dctps.core.ranking import largest
from dctps.core.support import Support, derive_seed, sample
from dctps.nn.convert import densify, sparsify
from dctps.nn.prunable import prunable

Batches = Iterable[tuple[Tensor, Tensor]]
Supports = dict[str, Support]
Score = Callable[[Tensor, Tensor], Tensor]  # of a weight and its gradient
BATCHES = 10  # whose mean gradient gives the scores


@dataclasses.dataclass(frozen=True)
class Request:
    """What the settings of a run say of its sparse layers."""

    density: float
    offset: str | None
    alpha: float | str
    allocation: str
    seed: int


def by_gradient(model: nn.Module, batches: Batches, **asked: Any) -> Supports:
    """Return the places where |dL/dW| is largest, which is where RigL grows weights."""
    return _best(model, batches, Request(**asked), lambda weight, gradient: gradient.abs())


def by_snip(model: nn.Module, batches: Batches, **asked: Any) -> Supports:
    """Return the places where |W dL/dW| is largest."""
    return _best(model, batches, Request(**asked), lambda weight, gradient: (weight * gradient).abs())


def whole_kernels(model: nn.Module, density: float, allocation: str, seed: int) -> Supports:
    """Return random places that have all kernel positions of a pair of a filter and a channel, or none.

    The last pair has only some of them where the number of weights asks for it.
    """
    shapes = {name: tuple(layer.get_parameter("weight").shape) for name, layer in prunable(model).items()}
    random = draw_supports(shapes, density, allocation, seed)
    return {name: _in_kernels(support, derive_seed(seed, f"{name}/kernels")) for name, support in random.items()}


def _in_kernels(support: Support, seed: int) -> Support:
    """Return a random support of the same shape and size, in whole kernels."""
    taps = torch.Size(support.shape[2:]).numel()
    count = -(-support.nnz // taps)
    kernels = torch.from_numpy(sample(support.size // taps, count, seed))
    positions = (kernels[:, None] * taps + torch.arange(taps)).flatten()
    cut = taps * (seed % max(1, count))  # the kernel that is not whole begins here
    surplus = count * taps - support.nnz
    return Support(support.shape, torch.cat([positions[:cut], positions[cut + surplus :]]))


def _best(model: nn.Module, batches: Batches, asked: Request, score: Score) -> Supports:
    """Return the places with the largest scores in each layer, as many as random places would be."""
    dense = _whole_weights(model, asked)
    layers = prunable(dense)
    weights = {name: layer.get_parameter("weight") for name, layer in layers.items()}
    counts = allocate([tuple(w.shape) for w in weights.values()], asked.density, asked.allocation, asked.seed)
    gradients = _gradients(dense, list(weights.values()), batches)
    found = {}
    for (name, weight), gradient, count in zip(weights.items(), gradients, counts, strict=True):
        scores = score(weight.detach(), gradient).flatten().cpu().numpy()
        chosen = largest(scores, count, derive_seed(asked.seed, f"{name}/places"))
        found[name] = Support(tuple(weight.shape), torch.from_numpy(chosen))
    return found


def _whole_weights(model: nn.Module, asked: Request) -> nn.Module:
    """Return the network in which the training begins, W = alpha D, with plain layers; without an offset as it is."""
    return model if asked.offset is None else densify(sparsify(model, **dataclasses.asdict(asked)))


def _gradients(model: nn.Module, weights: list[nn.Parameter], batches: Batches) -> list[Tensor]:
    """Return the gradient of the loss by each weight, over some batches, with BatchNorm as in training."""
    model.train()
    losses = (F.cross_entropy(model(images), labels) for images, labels in itertools.islice(batches, BATCHES))
    totals = [torch.zeros_like(weight) for weight in weights]
    for loss in losses:
        for total, gradient in zip(totals, torch.autograd.grad(loss, weights), strict=True):
            total += gradient
    return totals
