"""The size of a whole network: how many of its parameters train, and the bytes of its tensors in a file."""

import dataclasses
import math

from torch import Tensor, nn

from dctps.core.elias_fano import coded_length
from dctps.nn.batchnorm import SparseBatchNorm
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.fine_tuned import tuned_weights
from dctps.nn.finetune import before
from dctps.nn.supported import SupportedLayer

ALPHA_BYTES = 8  # a file holds alphas in float64


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a network, of all of its parts, and those that it would have if it were dense."""

    trainable: int  # parameters that train
    parameters: int  # parameters of the dense network
    file_bytes: int  # of the tensors that `dctps.save` writes, without the header of the file
    dense_bytes: int  # of the parameters and buffers of the dense network


def sizes(model: nn.Module) -> Sizes:
    """Return the sizes of a network; a tensor that is used in two places counts once."""
    if before(model) is not None:
        return _fine_tuned_sizes(model)
    trainable = sum(_count(p) for p in model.parameters() if p.requires_grad)
    parameters = sum(map(_count, model.parameters()))
    file = dense = sum(_bytes(tensor) for tensor in _saved(model))
    for layer in model.modules():
        if isinstance(layer, SupportedLayer):
            parameters += _pruned(layer)
            dense += pruned_bytes(layer)
            code = coded_length(math.prod(layer._weight_shape()), len(layer.positions))
            file += code if layer.seed is None else 0
        if isinstance(layer, DpsLayer) and layer.alpha is not None:
            parameters -= isinstance(layer.alpha, nn.Parameter)
            dense -= _bytes(layer.alpha)
            file += ALPHA_BYTES - _bytes(layer.alpha)
    return Sizes(trainable, parameters, file, dense)


def _fine_tuned_sizes(model: nn.Module) -> Sizes:
    """Return the sizes of a fine-tuned network, whose file holds what trains and not the frozen rest."""
    parts = [weight.part for weight in tuned_weights(model).values()]
    own = {id(p): p for part in parts for p in part.parameters()}
    trainable = {id(p): p for p in model.parameters() if p.requires_grad} | own
    codes = [coded_length(math.prod(p._weight_shape()), p.nnz) for p in parts if p.seed is None]
    alphas = [ALPHA_BYTES - _bytes(part.alpha) for part in parts if part.alpha is not None]
    plain = [tensor for tensor in _saved(model) if id(tensor) not in own]
    parameters = sum(map(_count, model.parameters())) - sum(map(_count, own.values()))
    file = sum(map(_bytes, trainable.values())) + sum(codes) + sum(alphas)
    return Sizes(sum(map(_count, trainable.values())), parameters, file, sum(map(_bytes, plain)))


def _saved(model: nn.Module) -> list[Tensor]:
    """Return the parameters and buffers that are part of the state, each once."""
    apart = {id(m._buffers[name]) for m in model.modules() for name in m._non_persistent_buffers_set}
    return [*model.parameters(), *(buffer for buffer in model.buffers() if id(buffer) not in apart)]


def pruned_bytes(layer: SupportedLayer) -> int:
    """Return how many more bytes the parameters of the layer of torch have."""
    values = layer.scale if isinstance(layer, SparseBatchNorm) else layer.get_parameter("values")
    return _pruned(layer) * values.element_size()


def _pruned(layer: SupportedLayer) -> int:
    """Return how many more parameters the layer of torch has: weights, or scales and shifts."""
    count = math.prod(layer._weight_shape()) - len(layer.positions)
    return 2 * count if isinstance(layer, SparseBatchNorm) else count


def _bytes(tensor: Tensor) -> int:
    return 0 if nn.parameter.is_lazy(tensor) else tensor.numel() * tensor.element_size()


def _count(tensor: Tensor) -> int:
    """Return the number of elements; a parameter whose shape is not known yet has none."""
    return 0 if nn.parameter.is_lazy(tensor) else tensor.numel()
