"""The parameters of a network in two groups: those that weight decay shrinks, and those that it leaves alone."""

from typing import Any

from torch import nn

from dctps.nn.dps_layer import DpsLayer


def param_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return groups of parameters for an optimiser, such that weights decay and nothing else does.

    Weights are the values of sparse layers, and every other parameter with two or more axes. Alphas, biases, and the
    scales and shifts of normalisation do not decay. The usual rule, "two or more axes", would leave out the values,
    which have one; under an offset they decay towards alpha D, not towards zero. Frozen parameters are in no group.

    >>> from dctps.nn.layers import DpsLinear
    >>> [(len(group["params"]), group["weight_decay"]) for group in param_groups(DpsLinear(8, 8, nnz=9), 0.01)]
    [(1, 0.01), (2, 0.0)]
    """
    if not weight_decay >= 0:
        raise ValueError(f"weight_decay is a number that is not negative, not {weight_decay}")
    values = {id(m.values) for m in model.modules() if isinstance(m, DpsLayer)}
    decayed, others = list[nn.Parameter](), list[nn.Parameter]()
    for parameter in model.parameters():
        if parameter.requires_grad:
            (decayed if id(parameter) in values or parameter.dim() >= 2 else others).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
