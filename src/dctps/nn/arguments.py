"""Checks of the arguments that all layers W = alpha D + S share."""

import math
import operator

import torch
from torch import Tensor

from dctps.core.allocation import budget
from dctps.core.support import Support


def check_numbers(device: torch.device, dtype: torch.dtype, alpha: float) -> None:
    """Raise ValueError unless the layer can hold its numbers and alpha is one of them."""
    if not dtype.is_floating_point:
        raise ValueError(f"a layer holds real floating point numbers, not {dtype}")
    if device.type == "meta":
        raise ValueError("this layer never holds a dense weight, so the meta device saves nothing; use a real device")
    if not math.isfinite(alpha):
        raise ValueError(f"alpha must be a finite number, not {alpha}")


def check_input(x: object, values: Tensor) -> None:
    """Raise TypeError unless an input is a tensor of torch."""
    if not isinstance(x, Tensor):
        advice = "torch.from_numpy(x)" if type(x).__module__ == "numpy" else "torch.as_tensor(x)"
        kind = f"{type(x).__module__}.{type(x).__name__}".removeprefix("builtins.")
        raise TypeError(f"the input is a {kind}, not a tensor; pass {advice}, of the type {values.dtype}")


def choose_support(
    shape: tuple[int, ...], density: float | None, nnz: int | None, support: Support | None, seed: int
) -> Support:
    """Return the given support, or draw one of the given density or nnz; exactly one of the three is given."""
    size = math.prod(shape)
    if size < 1:
        raise ValueError(f"a weight of shape {shape} has no place for a trainable value")
    if sum(given is not None for given in (density, nnz, support)) != 1:
        raise ValueError("give exactly one of density=, nnz= and support=, to say which weights train")
    if support is None:
        return Support.sample(shape, budget(size, density) if density is not None else operator.index(nnz or 0), seed)
    if not isinstance(support, Support):
        kind = type(support).__name__
        raise ValueError(f"support must be a Support, not a {kind}; make one by Support.from_mask")
    if support.shape != shape:
        raise ValueError(f"a support of shape {support.shape} cannot serve a weight of shape {shape}")
    return support
