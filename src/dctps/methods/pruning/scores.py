"""Scores of pruning at initialisation: how much each weight matters (paper: section 2.1).

All scores but the constant one are products w * g of a weight with a tensor of its shape. They are taken at the network
with weights wbar = w * m, which are zero outside the mask m:

    constant         1                          random pruning: the ranking draws among equal scores
    magnitude        |w|
    sensitivity      |w * dL/dwbar|             SNIP (m = 1); Iter-SNIP and FORCE (m of the step before)
    gradient_flow    w * (H dL/dwbar)           GraSP; H is the Hessian of L; signed, the largest are kept
    synaptic_flow    |w| * dR/d|wbar|           SynFlow; R is the sum of the outputs, on ones, of the network of |wbar|

A score runs the copy in a `ScoredNetwork`, which applies the mask; the network itself is only read. Scores that give
pruned weights no way back run a copy with sparse layers as soon as few weights are left.
"""

import itertools
import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from dctps.methods.pruning.scored_network import ScoredNetwork
from dctps.methods.pruning.scoring_data import Batch, ScoringData
from dctps.nn.diagnose import first_bad_layer
from dctps.nn.logits import logits_of

TEMPERATURE = 200.0  # GraSP divides the logits by it


# --- preparing the copy ----------------------------------------------------------------------------------------------


def enter_training_mode(net: nn.Module) -> nn.Module:
    """Let BatchNorm use the statistics of the batch, as in the first step of a training, and return the network.

    On a CPU dense convolutions are faster in channels-last memory: FORCE on a ResNet50 by about a fifth.
    """
    on_cpu = all(parameter.device.type == "cpu" for parameter in net.parameters())
    return net.train().to(memory_format=torch.channels_last) if on_cpu else net.train()  # type: ignore[call-overload]


@torch.no_grad()
def take_absolute_values(net: nn.Module) -> nn.Module:
    """Replace every number of a network by its absolute value in float64, in eval mode, and return the network.

    float64 is needed because R is a product over layers: 5e71 in a ResNet50. BatchNorm gets mean 0 and variance 1: with
    the statistics of the batch it would subtract the constant signal.
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


def constant(network: ScoredNetwork, data: ScoringData) -> Iterator[Tensor]:
    """Return 1 for every weight: none is better than another."""
    return (torch.ones_like(weight) for weight in network.weights)


def magnitude(network: ScoredNetwork, data: ScoringData) -> Iterator[Tensor]:
    """Return |w|."""
    return (weight.abs() for weight in network.weights)


def sensitivity(network: ScoredNetwork, data: ScoringData) -> Iterator[Tensor]:
    """Return |w * dL/dwbar|, the gradient averaged over the step's batches before the absolute value is taken.

    w is the weight before pruning: a weight outside the mask is judged by what it would add if it came back.
    """
    batches = data.draw()
    network.gradients = _total(network.gradient(_loss(network, data, batch)) for batch in batches)
    return (product.abs_().div_(len(batches)) for product in _products(network))


def gradient_flow(network: ScoredNetwork, data: ScoringData) -> Iterator[Tensor]:
    """Return w * (H g), with g = dL/dwbar and L the sum over the step's batches of the loss of logits / 200.

    To first order w * (H g) is what removing w takes from |g|^2 / 2, so the largest are kept. H g is the gradient of
    <c, dL/dwbar> with c = g held constant.
    """
    batches = data.draw()
    g = _total(network.gradient(_loss(network, data, batch, TEMPERATURE)) for batch in batches)
    network.gradients = _total(_hessian_product(network, data, batch, g) for batch in batches)
    return _products(network)


def synaptic_flow(network: ScoredNetwork, data: ScoringData) -> Iterator[Tensor]:
    """Return |w| * dR/d|wbar|: how much of R flows through each weight. It needs no data and no loss."""
    inputs = data.ones()
    try:
        output = network.run(inputs)
    except RuntimeError as error:
        shapes, reason = ", ".join(str(tuple(x.shape)) for x in inputs), str(error).splitlines()[0]
        raise ValueError(f"the network does not take an input of shape {shapes}: {reason}") from error
    if not isinstance(output, Tensor):
        raise ValueError(f"SynFlow adds up the network's output, which must be a tensor, not {type(output).__name__}")
    network.gradients = network.gradient(output.sum())
    return (weight.detach() * g for weight, g in zip(network.copied_weights, network.gradients, strict=True))


def _loss(network: ScoredNetwork, data: ScoringData, batch: Batch, temperature: float = 1.0) -> Tensor:
    """Return the loss of a batch, with the outputs divided by the temperature; raise ValueError if it is not finite."""
    inputs, labels = batch
    output = network.run(inputs)
    loss = data.loss(output if temperature == 1 else logits_of(output) / temperature, labels)
    if not math.isfinite(loss.item()):
        assert network.copy is not None
        where = first_bad_layer(network.copy, inputs[0] if isinstance(inputs, tuple) and len(inputs) == 1 else None)
        raise ValueError(f"the loss of a batch is {loss.item()}; {where}")
    return loss


def _hessian_product(network: ScoredNetwork, data: ScoringData, batch: Batch, vector: list[Tensor]) -> list[Tensor]:
    """Return the Hessian of the loss of a batch times a vector, both as one tensor for each layer."""
    gradients = network.gradient(_loss(network, data, batch, TEMPERATURE), again=True)
    inner = torch.stack([(v * g).sum().to(v.dtype) for v, g in zip(vector, gradients, strict=True)]).sum()
    return network.gradient(inner)


def _total(parts: Iterable[list[Tensor]]) -> list[Tensor]:
    """Return the sum over batches, layer by layer."""
    total: list[Tensor] = []
    for part in parts:
        total = [a + b.detach() for a, b in zip(total, part, strict=True)] if total else [b.detach() for b in part]
    return total


def _products(network: ScoredNetwork) -> Iterator[Tensor]:
    """Return w * g for each layer, at least in float32."""
    dtype = network.scores.dtype
    return (w.to(dtype) * g for w, g in zip(network.weights, network.gradients, strict=True))
