"""Where a network goes wrong: inputs that it does not take, and the first layer whose numbers are not finite."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


@torch.no_grad()
def check_input(model: nn.Module, x: Tensor, message: Callable[[str], str]) -> Any:
    """The output of one forward pass without gradients, in eval mode; afterwards the network is in training mode.

    Where the network does not take x, a ValueError says `message(reason)`, with the first line of torch's own error.
    """
    model.eval()
    try:
        return model(x)
    except RuntimeError as error:
        raise ValueError(message(str(error).splitlines()[0])) from error
    finally:
        model.train()


def first_bad_layer(model: nn.Module, x: Tensor | None) -> str:
    """Which layer's output is the first that is not finite, and whether its own numbers already are not."""
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            return f"the first parameter that is not finite is {name!r}"
    if x is None:
        return "every parameter is finite"
    bad: list[str] = []

    def look(name: str) -> Any:
        return lambda module, inputs, y: (
            bad.append(name) if isinstance(y, Tensor) and not bool(y.isfinite().all()) else None
        )

    leaves = [(n, m) for n, m in model.named_modules() if not list(m.children())]
    handles = [module.register_forward_hook(look(name)) for name, module in leaves]
    try:
        with torch.no_grad():
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    return f"the first output that is not finite is that of {bad[0]!r}" if bad else "every output is finite by itself"
