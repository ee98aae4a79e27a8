"""The parameters of a network in groups for an optimiser: what decays, what does not, and how fast the values train."""

import math
from typing import Any

from torch import nn

from dctps.nn.dps_layer import DpsLayer


def param_groups(model: nn.Module, weight_decay: float = 0.0, values_lr: float | None = None) -> list[dict[str, Any]]:
    """Return groups of parameters for an optimiser, such that weights decay and nothing else does.

    Weights are the values of sparse layers, and every other parameter with two or more axes. Alphas, biases, and the
    scales and shifts of normalisation do not decay. The usual rule, "two or more axes", would leave out the values,
    which have one; under an offset they decay towards alpha D, not towards zero. Frozen parameters are in no group.

    `values_lr` is a learning rate for the values alone; all else has that of the optimiser. Networks without
    normalisation layers learn faster if it is about three times as high (docs/offsets.md).

    >>> from dctps.nn.layers import DpsLinear
    >>> [(len(group["params"]), group["weight_decay"]) for group in param_groups(DpsLinear(8, 8, nnz=9), 0.01)]
    [(1, 0.01), (2, 0.0)]
    """
    if not weight_decay >= 0:
        raise ValueError(f"weight_decay is a number that is not negative, not {weight_decay}")
    if values_lr is not None and not 0 < values_lr < math.inf:
        raise ValueError(f"values_lr is a positive number, or None for that of the optimiser, not {values_lr}")
    values = {id(m.values) for m in model.modules() if isinstance(m, DpsLayer)}
    decayed, others = list[nn.Parameter](), list[nn.Parameter]()
    for parameter in model.parameters():
        if parameter.requires_grad:
            (decayed if id(parameter) in values or parameter.dim() >= 2 else others).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    if values_lr is not None:
        own = {"params": [p for p in decayed if id(p) in values], "weight_decay": weight_decay, "lr": values_lr}
        groups = [own, groups[0] | {"params": [p for p in decayed if id(p) not in values]}, groups[1]]
    return [group for group in groups if group["params"]]
