"""What follows a layer in evaluation, y -> activation(batchnorm(y) + residual), as something that can be passed along.

A route whose kernels can do it before they write y says so by `finishes`; else it is one operation more
(`normalise.finished`).
"""

from typing import NamedTuple

from torch import Tensor


class Finish(NamedTuple):
    """A BatchNorm with running statistics, the addition of a residual, and an activation."""

    weight: Tensor | None  # (channels,)
    bias: Tensor | None  # (channels,)
    mean: Tensor  # (channels,)
    variance: Tensor  # (channels,)
    eps: float
    residual: Tensor | None  # like y
    activation: str  # a key of `normalise.ACTIVATIONS`
