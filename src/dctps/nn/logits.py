"""Running a network on a batch, and the logits in what it returns: torch's networks and those of transformers."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

Inputs = Tensor | Mapping[str, Tensor]  # the only argument of a network, or its arguments by their names


def output_of(network: Callable[..., Any], x: Inputs) -> Any:
    """Return what a network returns for the inputs of a batch."""
    return network(**x) if isinstance(x, Mapping) else network(x)


def logits_of(output: Any) -> Any:
    """Return the logits of a network: its output, or the part of it that is called so, as in transformers."""
    return output if isinstance(output, Tensor) else getattr(output, "logits", output)
