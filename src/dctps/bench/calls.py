"""What is timed: a training step, an inference, one layer forwards and backwards."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Call = Callable[[], object]


def training_step(model: nn.Module, x: Tensor, target: Tensor) -> Call:
    """zero_grad, forward, cross entropy, backward, Adam.

    Adam is the fused one, torch's fastest on large and on small tensors: a comparison with dense networks would else
    be flattered by an optimiser that nobody has to use.
    """
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def run() -> None:
        optimiser.zero_grad()
        F.cross_entropy(model(x), target).backward()
        optimiser.step()

    return run


def inference(model: nn.Module, x: Tensor) -> Call:
    """One forward pass in eval mode, without anything that gradients need."""
    model.eval()

    def run() -> None:
        with torch.inference_mode():
            model(x)

    return run


def there_and_back(layer: nn.Module, x: Tensor) -> Call:
    """y = layer(x), then the gradients of all parameters and, where it wants one, of x."""
    wanted = [tensor for tensor in (x, *layer.parameters()) if tensor.requires_grad]
    cotangent = torch.randn_like(layer(x))  # also says what shape y has: all that is done before the clock starts

    def run() -> None:
        torch.autograd.grad(layer(x), wanted, cotangent)

    return run
