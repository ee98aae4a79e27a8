"""The published formulation of W = alpha D + S, to compare with: two dense products and a dense gradient.

    y = alpha * conv(x, D) + conv(x, S) + bias

D is a dense weight that does not train. S is a dense weight that is zero outside the support; a hook multiplies its
gradient by the support's mask, so that it stays zero there. Weight, gradient and Adam's moments have the size of the
dense layer: nothing is saved, and every step pays for a second product.
"""

import copy

import torch
from torch import Tensor, nn

from dctps.nn.convert import densify
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.replace import replace_layers
from dctps.ops.weight import dense_weight


class Published(nn.Module):
    """The function of a sparse layer, computed as the published code does."""

    mask: Tensor
    alpha: Tensor | None

    def __init__(self, layer: DpsLayer) -> None:
        super().__init__()
        own = copy.deepcopy(layer)  # the bias of the new layer is not that of the old
        self.product = densify(own)
        mask, shape = own.support.mask().to(own.values.dtype), own.geometry.weight_shape
        sparse = dense_weight(own.values, own.positions, None, None, shape).detach()
        self.product.weight = nn.Parameter(sparse)
        self.register_buffer("mask", mask)  # a buffer, so that it takes the memory format of the weight
        self.product.get_parameter("weight").register_hook(lambda gradient: gradient * self.mask)
        if isinstance(own.alpha, nn.Parameter):
            self.alpha = own.alpha
        else:
            self.register_buffer("alpha", own.alpha)
        self.offset = self._fixed(own)

    def _fixed(self, layer: DpsLayer) -> nn.Module | None:
        if layer.offset is None:
            return None
        fixed = copy.deepcopy(self.product)
        nothing, one = layer.values[:0], layer.values.new_ones(())
        weight = dense_weight(nothing, layer.positions[:0], one, layer.offset, layer.geometry.weight_shape)
        fixed.weight = nn.Parameter(weight.detach(), requires_grad=False)
        fixed.register_parameter("bias", None)
        return fixed

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.product(x)
        return y if self.offset is None or self.alpha is None else self.alpha * self.offset(x) + y


@torch.no_grad()
def published(model: nn.Module) -> nn.Module:
    """Replace every sparse layer of a network, in place, by its published formulation; returns the network."""
    layers = [layer for layer in model.modules() if isinstance(layer, DpsLayer)]
    return replace_layers(model, {id(layer): Published(layer) for layer in layers})
