"""The network whose weights are scored: a copy that runs with a mask on its weights, and the passes that it took."""

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dctps.base.words import listed
from dctps.core.support import Int64, Support
from dctps.methods.pruning.scoring_data import Inputs
from dctps.nn.convert import sparsify
from dctps.ops import autotune

Prepare = Callable[[nn.Module], nn.Module]


class ScoredNetwork:
    """A network whose weights w are scored, with a copy whose weights are w * m for a mask m.

    weights: the weights of the network, one tensor for each layer; they are only read.
    copy: the copy that runs, or None for scores that do not run the network.
    copied_weights: the weights of the copy, of the shapes of `weights`; if the copy has sparse layers, only their
        values at `positions`.
    gradients: the factors of the last scores, one tensor for each layer, which explain a collapse.
    """

    def __init__(self, model: nn.Module, layers: Mapping[str, nn.Module], prepare: Prepare | None) -> None:
        self.names = list(layers)
        self.weights = [layer.get_parameter("weight").detach() for layer in layers.values()]
        self.forward_passes = self.backward_passes = 0
        self.gradients: list[Tensor] = []
        self.model, self.prepare = model, prepare
        self.copy = None if prepare is None else prepare(self._new_copy())
        self.copied_weights = self._parameters("weight")
        self.positions: list[Tensor] = []
        dtypes = {tensor.dtype for tensor in (*self.weights, *self.copied_weights)}
        self.scores = torch.empty(self.size, dtype=torch.float64 if torch.float64 in dtypes else torch.float32)

    @property
    def size(self) -> int:
        """The number of weights in all layers."""
        return sum(weight.numel() for weight in self.weights)

    def split(self, flat: Tensor) -> list[Tensor]:
        """Split a tensor over all weights (size,) into the parts of the layers, as views of the weights' shapes."""
        parts = flat.split([weight.numel() for weight in self.weights])
        return [part.view(weight.shape) for part, weight in zip(parts, self.weights, strict=True)]

    @torch.no_grad()
    def apply_mask(self, kept: Int64, recover: bool) -> None:
        """Set the weights of the copy to zero except at the positions `kept`; do nothing if there is no copy.

        recover: whether weights that an earlier mask set to zero get their values back where they are kept.
        """
        if self.copy is None:
            return
        mask = torch.zeros(self.size, dtype=torch.bool)
        mask[torch.from_numpy(kept)] = True
        for copied, weight, part in zip(self.copied_weights, self.weights, self.split(mask), strict=True):
            torch.mul(weight if recover else copied, part.to(copied.device), out=copied)

    def make_sparse(self, kept: Int64) -> None:
        """Take a new copy with sparse layers that hold only the weights at the positions `kept`.

        A pass then costs what these weights cost, but no other weight can be scored.
        """
        assert self.prepare is not None
        supports = self.supports(kept)
        self.copy = sparsify(self.prepare(self._new_copy()), supports=supports, offset=None)
        self.copied_weights = self._parameters("values")
        pairs = zip(self.names, self.weights, strict=True)
        self.positions = [supports[name].positions.to(weight.device).long() for name, weight in pairs]

    def _new_copy(self) -> nn.Module:
        """Return a copy of the network whose weights have gradients, also where those of the network are frozen."""
        copied = _copy(self.model)
        for name in self.names:
            copied.get_submodule(name).get_parameter("weight").requires_grad_()
        return copied

    def _parameters(self, name: str) -> list[nn.Parameter]:
        """Return the parameter of this name of each layer of the copy; nothing if there is no copy."""
        return [self.copy.get_submodule(layer).get_parameter(name) for layer in self.names if self.copy is not None]

    def run(self, inputs: Inputs) -> Any:
        """Return the output of the copy."""
        assert self.copy is not None
        self.forward_passes += 1
        with autotune.by_rule():  # sparse layers change in every step, so a measurement would not pay
            return self.copy(**inputs) if isinstance(inputs, Mapping) else self.copy(*inputs)

    def gradient(self, scalar: Tensor, again: bool = False) -> list[Tensor]:
        """Return d scalar / d wbar for each layer.

        again: whether the gradient will be differentiated once more.
        """
        self.backward_passes += 1
        if not scalar.requires_grad:
            return [torch.zeros_like(weight) for weight in self.weights]
        gradients = torch.autograd.grad(scalar, self.copied_weights, create_graph=again, materialize_grads=True)
        if not self.positions:
            return list(gradients)
        triples = zip(self.weights, self.positions, gradients, strict=True)
        return [w.new_zeros(w.numel()).index_copy_(0, at, g).view(w.shape) for w, at, g in triples]

    @torch.no_grad()
    def collect(self, scores: Iterable[Tensor], step: int) -> Tensor:  # (size,), on the CPU
        """Return the scores of all layers in one tensor; raise ValueError if a score is not finite."""
        for name, part, score in zip(self.names, self.split(self.scores), scores, strict=True):
            part.copy_(score)
            if not all(math.isfinite(end) for end in part.aminmax()):
                raise ValueError(
                    f"at step {step} layer {name!r} has a score that is not a finite number; look for weights or "
                    "inputs that are not finite or very large"
                )
        return self.scores

    def supports(self, kept: Int64) -> dict[str, Support]:
        """Return the support of each layer, from the sorted positions of the kept weights among all weights."""
        starts = np.cumsum([0] + [weight.numel() for weight in self.weights])
        cuts = np.searchsorted(kept, starts)
        return {
            name: Support(tuple(weight.shape), torch.from_numpy(kept[cuts[i] : cuts[i + 1]] - starts[i]))
            for i, (name, weight) in enumerate(zip(self.names, self.weights, strict=True))
        }

    def explain_zeros(self) -> str:
        """Return, in words, why so many scores are zero."""
        if not self.gradients:
            return "the other weights are zero"
        reached = [name for name, gradient in zip(self.names, self.gradients, strict=True) if gradient.any()]
        zero = [name for name, weight in zip(self.names, self.weights, strict=True) if not weight.any()]
        empty = [name for name, weight in zip(self.names, self.copied_weights, strict=True) if not weight.any()]
        if reached and set(reached) <= set(zero):
            return f"every score is zero because a gradient reaches only {listed(reached)}, whose weights are all zero"
        if empty:
            return f"all weights are zero or pruned in {listed(empty)}"
        if not reached:
            return "no layer receives a gradient"
        unreached = [name for name in self.names if name not in reached]
        return f"no gradient reaches {listed(unreached)}" if unreached else "the others are pruned or have no gradient"


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"this network cannot be copied, and scores are taken on a copy: {reason}") from error
