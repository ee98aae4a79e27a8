"""The input-output Jacobian of a network, J = df/dx, and its spectrum (paper: section 6, Figure 4)."""

import copy

import torch
from torch import Tensor, nn

from dctps.nn.dps_layer import DpsLayer


def singular_values(model: nn.Module, x: Tensor) -> Tensor:
    """Return the singular values of df/dx at each example: (b, classes), the largest first, in float64 on the CPU.

    BatchNorm uses its running statistics (at initialisation: mean 0, variance 1), so that examples do not mix and the
    scale of the network shows. Everything is in float64, because at low density signals shrink below what float32 can
    hold, and a spectrum should be zero only if nothing gets through. Layers with an offset compute with their dense
    weight. The cosine transform of a flat patch has many exact zeros, whose ReLU follows the rounding, and the backends
    round differently.
    """
    network = copy.deepcopy(model).double().eval()
    for layer in network.modules():
        if isinstance(layer, DpsLayer) and layer.offset is not None:
            layer.backend = "dense"
    device = next(network.parameters()).device
    rows = [torch.linalg.svdvals(jacobian(network, image[None].to(device).double())) for image in x]
    return torch.stack(rows).cpu()


def jacobian(network: nn.Module, x: Tensor) -> Tensor:
    """Return df/dx at one example (1, channels, height, width): (classes, channels * height * width).

    One pass suffices, over as many copies of the example as there are classes: in eval mode they do not mix.
    """
    with torch.enable_grad():
        classes = network(x).shape[1]
        copies = x.detach().repeat(classes, 1, 1, 1).requires_grad_()
        (rows,) = torch.autograd.grad(network(copies).diagonal().sum(), copies)
    return rows.flatten(1)
