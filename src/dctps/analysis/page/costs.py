"""Numbers that the files of runs do not hold, computed once for each network: bytes without BatchNorm, multiply-adds.

Only networks of `dctps.models` are built. To build a user's network, code would have to be imported by a name that
stands in a file, and a report must not run whatever a file names.
"""

import functools
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from dctps import models
from dctps.checkpoint.load import load
from dctps.data import DATASETS
from dctps.experiments.numbers import number
from dctps.experiments.results import Row
from dctps.experiments.status import DONE
from dctps.nn.costs import count_ops
from dctps.nn.prunable import prunable
from dctps.train.settings import Settings

FLOAT, ALPHA = 4, 8  # bytes in a file: values are float32, alphas float64
BYTES_TIP = (
    "Bytes of the weights alone: 4 for each trained weight of the linear layers and convolutions, and 8 for the alpha "
    "of each such layer that has an offset. BatchNorm, biases, the header of the file and coded positions are not "
    "counted; positions that follow from the seed take no bytes, others about log2(1 / density) + 2 bits each."
)
OPS_TIP = (
    "Multiply-adds of one forward pass of one image, as this library performs it (dctps.count_ops), counted in one run "
    "of each network, density and method. Empty for networks of your own and for projections."
)


# --- bytes ----------------------------------------------------------------------------------------------------------


def weight_bytes(row: Row) -> int | None:
    """Return the bytes that values and alphas of a trained network take in its file, or None if not known."""
    weights, alphas = number(row.content, "weights", "got"), _alpha_count(row.settings)
    return None if weights is None or alphas is None else FLOAT * int(weights) + ALPHA * alphas


def _alpha_count(settings: Settings) -> int | None:
    """Return the number of layers that have an alpha, or None if the network cannot be built."""
    sparse = settings.density is not None and settings.projection is None
    if not sparse or settings.offset is None:
        return 0
    return _layer_count(settings.model, settings.width, settings.hidden)


@functools.cache
def _layer_count(model: str, width: int | None, hidden: int | None) -> int | None:
    """Return the number of prunable layers, or None for a user's network, an unknown setting or an absurd width."""
    try:
        with torch.device("meta"):
            return len(prunable(_build(model, width, hidden, 10, 3)))
    except (ValueError, TypeError, RuntimeError):
        return None


def _build(model: str, width: int | None, hidden: int | None, classes: int, channels: int) -> nn.Module:
    options = {name: value for name, value in (("width", width), ("hidden", hidden)) if value is not None}
    return models.build(model, classes, in_channels=channels, **options)


# --- multiply-adds --------------------------------------------------------------------------------------------------


def operations(rows: Iterable[Row]) -> list[int | None]:
    """Return the multiply-adds of each row, which are counted once for runs of the same kind."""
    known: dict[tuple[Any, ...], int | None] = {}
    counts = []
    for row in rows:
        kind = _kind(row.settings)
        if row.status == DONE and known.get(kind) is None:
            known[kind] = _count_operations(row)
        counts.append(known[kind] if row.status == DONE else None)
    return counts


def _kind(s: Settings) -> tuple[Any, ...]:
    """Return the settings that multiply-adds depend on."""
    support = s.allocation if s.method is None else s.method
    return s.model, s.width, s.hidden, s.data, s.density, s.offset, support, s.rewire, s.projection, s.imp_round


def _count_operations(row: Row) -> int | None:
    """Count the multiply-adds of a run, or return None if its network cannot be built or loaded."""
    s = row.settings
    if s.data not in DATASETS or s.model not in models.MODELS or s.projection is not None:
        return None
    info = DATASETS[s.data]
    try:
        net = _build(s.model, s.width, s.hidden, info.classes, info.channels)
        if s.density is not None and s.imp_round != 0:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                load(row.folder / "best.safetensors", net)
        return count_ops(net, info.image_shape).performed
    except (ValueError, TypeError, RuntimeError, OSError):  # the file is missing, or not of this network
        return None
