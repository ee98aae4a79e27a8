"""Finding out why a network fails: inputs that it does not take, and the first layer whose numbers are not finite."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dctps.nn.logits import Inputs, output_of


@torch.no_grad()
def check_input(model: nn.Module, x: Inputs, message: Callable[[str], str]) -> Any:
    """Run the network on x, in eval mode and without gradients, return its output, and leave it in training mode.

    Raise ValueError if the network does not take x.

    message: makes the text of that error from the first line of torch's error.
    """
    model.eval()
    try:
        return output_of(model, x)
    except Exception as error:  # a network of the user may raise anything
        raise ValueError(message((str(error).splitlines() or [type(error).__name__])[0])) from error
    finally:
        model.train()


def first_bad_layer(model: nn.Module, x: Inputs | None) -> str:
    """Return a sentence that names the first parameter, else the first output of a layer, that is not finite.

    x: an input to run the network on; without one only the parameters are checked.
    """
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            return f"the first parameter that is not finite is {name!r}"
    if x is None:
        return "every parameter is finite"
    bad: list[str] = []

    def note(name: str) -> Any:
        return lambda module, inputs, y: (
            bad.append(name) if isinstance(y, Tensor) and not bool(y.isfinite().all()) else None
        )

    leaves = [(n, m) for n, m in model.named_modules() if not list(m.children())]
    handles = [module.register_forward_hook(note(name)) for name, module in leaves]
    try:
        with torch.no_grad():
            output_of(model, x)
    finally:
        for handle in handles:
            handle.remove()
    return f"the first output that is not finite is that of {bad[0]!r}" if bad else "every output is finite"
