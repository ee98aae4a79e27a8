"""The running statistics of BatchNorm layers, and their estimation from data.

Running statistics are no parameters: evaluation needs them, and they follow from the weights and some data. A file may
therefore leave them out, and `recalibrate` finds them again.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # the names of their buffers


def tracked_norms(model: nn.Module) -> list[_BatchNorm]:
    """Return the BatchNorm layers, plain or sparse, that keep running statistics."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]


def recalibrate(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Estimate the running statistics of every BatchNorm layer anew, and return the model.

    The model runs once on each batch, without gradients, with every other layer in eval mode. Each statistic becomes
    the mean over the batches, so a few batches of the size used in training are enough.

    batches: inputs, or pairs (inputs, labels), on the device of the model.
    """
    norms = tracked_norms(model)
    if not norms:
        raise ValueError("there is no BatchNorm layer with running statistics in this network to recalibrate")
    with _restored(model, norms), torch.no_grad():
        model.eval()
        for norm in norms:
            norm.train()
            norm.momentum = None  # torch then takes the mean over all batches
            norm.reset_running_stats()
        count = 0
        for batch in batches:
            model(batch[0] if isinstance(batch, tuple | list) else batch)
            count += 1
        if not count:
            raise ValueError("there is no batch to estimate running statistics from; give at least one in batches=")
    return model


@contextlib.contextmanager
def _restored(model: nn.Module, norms: list[_BatchNorm]) -> Iterator[None]:
    """Restore the modes and momenta of the layers at the end; after an error also their statistics."""
    modes, momenta = [(m, m.training) for m in model.modules()], [norm.momentum for norm in norms]
    buffers = [b for norm in norms for key in STATISTICS if (b := norm._buffers[key]) is not None]
    values = [buffer.clone() for buffer in buffers]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for buffer, value in zip(buffers, values, strict=True):
                buffer.copy_(value)
        raise
    finally:
        for module, training in modes:
            module.training = training
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
