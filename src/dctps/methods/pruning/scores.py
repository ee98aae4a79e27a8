"""How much each weight matters: the scores of pruning at initialisation (paper: section 2.1).

All but the constant are products w * g of a weight with something of its shape, taken at the network wbar = w * m whose
weights outside the mask m are zero:

    constant         1                          random pruning: the ranking's draw among equals decides
    magnitude        |w|
    sensitivity      |w * dL/dwbar|             SNIP (m = 1); Iter-SNIP, FORCE (m of the step before)
    gradient_flow    w * (H dL/dwbar)           GraSP; H the Hessian of L; signed, the largest are kept
    synaptic_flow    |w| * dR/d|wbar|           SynFlow; R = sum of the outputs, on ones, of the network of |.|

A score looks at a `Subject`, a copy of the network that wears the mask; the network itself is only read. Where pruned
weights have no say any more, the copy gets sparse layers as soon as few weights are left.
"""

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from dctps.base.words import listed
from dctps.core.support import Int64, Support
from dctps.methods.pruning.scoring_data import Batch, Feed, Inputs
from dctps.nn.convert import sparsify
from dctps.nn.diagnose import first_bad_layer
from dctps.ops import autotune

Prepare = Callable[[nn.Module], nn.Module]

TEMPERATURE = 200.0  # GraSP divides the logits by it


class Subject:
    """A network under examination: its weights, a copy whose weights are w * m, and how many passes it took.

    `weights` are the network's own (L tensors, only read), `twins` those of the copy: of the same shapes, or, in a thin
    copy, only the values at `places`. Without `prepare` there is no copy, for scores that need no pass.
    """

    def __init__(self, model: nn.Module, layers: Mapping[str, nn.Module], prepare: Prepare | None) -> None:
        self.names = list(layers)
        self.weights = [layer.get_parameter("weight").detach() for layer in layers.values()]
        self.forward_passes = self.backward_passes = 0
        self.gradients: list[Tensor] = []  # what the last scores were made of, to explain a collapse
        self.model, self.prepare = model, prepare
        self.net = None if prepare is None else prepare(_copied(model))
        self.twins = self._parameters("weight")
        self.places: list[Tensor] = []  # of the values of a thin copy, in each layer
        dtypes = {tensor.dtype for tensor in (*self.weights, *self.twins)}
        self.scores = torch.empty(self.size, dtype=torch.float64 if torch.float64 in dtypes else torch.float32)

    @property
    def size(self) -> int:
        return sum(weight.numel() for weight in self.weights)

    def parts(self, flat: Tensor) -> list[Tensor]:
        """The layers' parts of a tensor over all weights (size,), as views of the weights' shapes."""
        pieces = flat.split([weight.numel() for weight in self.weights])
        return [piece.view(weight.shape) for piece, weight in zip(pieces, self.weights, strict=True)]

    @torch.no_grad()
    def wear(self, kept: Int64, recover: bool) -> None:
        """Zero the copy's weights except at these positions; `recover`: there they are again those of the network.

        Without a copy there is nothing to do.
        """
        mask = torch.zeros(self.size, dtype=torch.bool)
        mask[torch.from_numpy(kept)] = True
        for twin, weight, part in zip(self.twins, self.weights, self.parts(mask), strict=False):
            torch.mul(weight if recover else twin, part.to(twin.device), out=twin)

    def thin(self, kept: Int64) -> None:
        """Give a new copy sparse layers, with the weights at these positions: for scores that judge no others.

        A pass then costs what these weights cost and not what all would.
        """
        assert self.prepare is not None
        supports = self.supports(kept)
        self.net = sparsify(self.prepare(_copied(self.model)), supports=supports, offset=None)
        self.twins = self._parameters("values")
        self.places = [supports[n].positions.to(w.device).long() for n, w in zip(self.names, self.weights, strict=True)]

    def _parameters(self, name: str) -> list[nn.Parameter]:
        """A parameter of each layer of the copy."""
        return [self.net.get_submodule(layer).get_parameter(name) for layer in self.names if self.net is not None]

    def output(self, inputs: Inputs) -> Any:
        assert self.net is not None
        self.forward_passes += 1
        with autotune.by_rule():  # a thin copy changes in every step: not worth a measurement
            return self.net(*inputs)

    def gradient(self, scalar: Tensor, again: bool = False) -> list[Tensor]:
        """d scalar / d wbar per layer; `again`: to be differentiated once more."""
        self.backward_passes += 1
        if not scalar.requires_grad:
            return [torch.zeros_like(weight) for weight in self.weights]
        gradients = torch.autograd.grad(scalar, self.twins, create_graph=again, materialize_grads=True)
        if not self.places:
            return list(gradients)
        pairs = zip(self.weights, self.places, gradients, strict=True)
        return [w.new_zeros(w.numel()).index_copy_(0, at, g).view(w.shape) for w, at, g in pairs]

    @torch.no_grad()
    def fill(self, scores: Iterable[Tensor], step: int) -> Tensor:  # (size,), on the CPU
        """The scores of all layers in one tensor; an error that names the layer if one is not finite."""
        for name, part, score in zip(self.names, self.parts(self.scores), scores, strict=True):
            part.copy_(score)
            if not all(math.isfinite(end) for end in part.aminmax()):
                raise ValueError(
                    f"at step {step} layer {name!r} has a score that is not a finite number; look for weights or "
                    "inputs that are not finite or very large"
                )
        return self.scores

    def supports(self, kept: Int64) -> dict[str, Support]:
        """Positions among all weights, sorted, as a support for each layer."""
        starts = np.cumsum([0] + [weight.numel() for weight in self.weights])
        cuts = np.searchsorted(kept, starts)
        return {
            name: Support(tuple(weight.shape), torch.from_numpy(kept[cuts[i] : cuts[i + 1]] - starts[i]))
            for i, (name, weight) in enumerate(zip(self.names, self.weights, strict=True))
        }

    def explain(self) -> str:
        """Why few scores are other than zero."""
        if not self.gradients:
            return "the other weights are zero"
        reached = [name for name, gradient in zip(self.names, self.gradients, strict=True) if gradient.any()]
        zero = [name for name, weight in zip(self.names, self.weights, strict=True) if not weight.any()]
        empty = [name for name, twin in zip(self.names, self.twins, strict=True) if not twin.any()]
        if reached and set(reached) <= set(zero):
            return f"every score is zero because a gradient reaches only {listed(reached)}, whose weights are all zero"
        if empty:
            return f"all weights are zero or pruned in {listed(empty)}"
        if not reached:
            return "no layer receives a gradient"
        unreached = [name for name in self.names if name not in reached]
        return f"no gradient reaches {listed(unreached)}" if unreached else "the others are pruned or have no gradient"


# --- copies ----------------------------------------------------------------------------------------------------------


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"this network cannot be copied, and scores are taken on a copy: {reason}") from error


def in_training(net: nn.Module) -> nn.Module:
    """BatchNorm with the statistics of the batch, as in the first step of a training.

    On a CPU dense convolutions are faster in channels-last memory: FORCE on a ResNet50 by about a fifth.
    """
    on_cpu = all(parameter.device.type == "cpu" for parameter in net.parameters())
    return net.train().to(memory_format=torch.channels_last) if on_cpu else net.train()  # type: ignore[call-overload]


@torch.no_grad()
def absolute(net: nn.Module) -> nn.Module:
    """float64, every number its absolute value, and normalisations that only scale (mean 0, variance 1).

    float64 because R is a product over layers: 5e71 in a ResNet50. Eval mode because with its own statistics
    BatchNorm would take the constant signal away.
    """
    net = net.double().eval()
    device = next(net.parameters()).device
    for module in net.modules():
        if isinstance(module, _NormBase):
            module.track_running_stats = True
            module.running_mean = torch.zeros(module.num_features, dtype=torch.float64, device=device)
            module.running_var = torch.ones(module.num_features, dtype=torch.float64, device=device)
    for tensor in itertools.chain(net.parameters(), net.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.abs()
    return net


# --- scores ----------------------------------------------------------------------------------------------------------


def constant(subject: Subject, feed: Feed) -> Iterator[Tensor]:
    """1: no weight is better than another."""
    return (torch.ones_like(weight) for weight in subject.weights)


def magnitude(subject: Subject, feed: Feed) -> Iterator[Tensor]:
    """|w|."""
    return (weight.abs() for weight in subject.weights)


def sensitivity(subject: Subject, feed: Feed) -> Iterator[Tensor]:
    """|w * dL/dwbar|, the gradient averaged over the step's batches before the absolute value is taken.

    w is the weight before pruning: a weight outside the mask is judged by what it would add if it came back.
    """
    batches = feed.draw()
    subject.gradients = _total(subject.gradient(_loss(subject, feed, batch)) for batch in batches)
    return (product.abs_().div_(len(batches)) for product in _products(subject))


def gradient_flow(subject: Subject, feed: Feed) -> Iterator[Tensor]:
    """w * (H g), g = dL/dwbar, L the sum over the step's batches of the loss of logits / 200.

    To first order w * (H g) is what removing w takes from |g|^2 / 2, so the largest are kept. H g is the gradient of
    <c, dL/dwbar> with c = g held constant.
    """
    batches = feed.draw()
    g = _total(subject.gradient(_loss(subject, feed, batch, TEMPERATURE)) for batch in batches)
    subject.gradients = _total(_hessian_product(subject, feed, batch, g) for batch in batches)
    return _products(subject)


def _hessian_product(subject: Subject, feed: Feed, batch: Batch, vector: list[Tensor]) -> list[Tensor]:
    gradients = subject.gradient(_loss(subject, feed, batch, TEMPERATURE), again=True)
    inner = torch.stack([(v * g).sum().to(v.dtype) for v, g in zip(vector, gradients, strict=True)]).sum()
    return subject.gradient(inner)


def synaptic_flow(subject: Subject, feed: Feed) -> Iterator[Tensor]:
    """|w| * dR/d|wbar|: how much of R flows through a weight. No data, no loss."""
    inputs = feed.ones()
    try:
        output = subject.output(inputs)
    except RuntimeError as error:
        shapes, reason = ", ".join(str(tuple(x.shape)) for x in inputs), str(error).splitlines()[0]
        raise ValueError(f"the network does not take an input of shape {shapes}: {reason}") from error
    if not isinstance(output, Tensor):
        raise ValueError(f"SynFlow adds up the network's output, which must be a tensor, not {type(output).__name__}")
    subject.gradients = subject.gradient(output.sum())
    return (twin.detach() * g for twin, g in zip(subject.twins, subject.gradients, strict=True))


def _loss(subject: Subject, feed: Feed, batch: Batch, temperature: float = 1.0) -> Tensor:
    inputs, labels = batch
    output = subject.output(inputs)
    loss = feed.loss(output if temperature == 1 else output / temperature, labels)
    if not math.isfinite(loss.item()):
        assert subject.net is not None
        where = first_bad_layer(subject.net, inputs[0] if len(inputs) == 1 else None)
        raise ValueError(f"the loss of a batch is {loss.item()}; {where}")
    return loss


def _total(parts: Iterable[list[Tensor]]) -> list[Tensor]:
    """The sum over batches, layer by layer."""
    total: list[Tensor] = []
    for part in parts:
        total = [a + b.detach() for a, b in zip(total, part, strict=True)] if total else [b.detach() for b in part]
    return total


def _products(subject: Subject) -> Iterator[Tensor]:
    """w * g, at least in float32."""
    dtype = subject.scores.dtype
    return (w.to(dtype) * g for w, g in zip(subject.weights, subject.gradients, strict=True))
