"""What the files of runs do not say, computed once for each network: bytes without BatchNorm, multiply-adds.

Only networks of `dctps.models` are built. One of a user's own would have to be imported by a name that stands in a
file, and reading a report must not run whatever a file names.
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
    "Multiply-adds of one forward pass of one image, as this library performs it (dctps.count_ops), of one run for "
    "each network, density and method. Empty for networks of your own and for projections."
)


# --- bytes ----------------------------------------------------------------------------------------------------------


def weight_bytes(row: Row) -> int | None:
    """Of the values and alphas of a trained network, as its file holds them."""
    got = number(row.content, "weights", "got")
    layers = _alphas(row.settings)
    return None if got is None or layers is None else FLOAT * int(got) + ALPHA * layers


def _alphas(settings: Settings) -> int | None:
    """How many layers have one; None if that cannot be known."""
    sparse = settings.density is not None and settings.projection is None
    if not sparse or settings.offset is None:
        return 0
    return _layers(settings.model, settings.width, settings.hidden)


@functools.cache
def _layers(model: str, width: int | None, hidden: int | None) -> int | None:
    try:
        with torch.device("meta"):
            return len(prunable(_build(model, width, hidden, 10, 3)))
    except (ValueError, TypeError, RuntimeError):  # a network of a user's own, of another version, or far too wide
        return None


def _build(model: str, width: int | None, hidden: int | None, classes: int, channels: int) -> nn.Module:
    options = {name: value for name, value in (("width", width), ("hidden", hidden)) if value is not None}
    return models.build(model, classes, in_channels=channels, **options)


# --- multiply-adds --------------------------------------------------------------------------------------------------


def operations(rows: Iterable[Row]) -> list[int | None]:
    """Of each row, from the file of the first run that is like it."""
    known: dict[tuple[Any, ...], int | None] = {}
    found = []
    for row in rows:
        alike = _alike(row.settings)
        if row.status == DONE and known.get(alike) is None:
            known[alike] = _operations(row)
        found.append(known[alike] if row.status == DONE else None)
    return found


def _alike(s: Settings) -> tuple[Any, ...]:
    support = s.allocation if s.method is None else s.method
    return s.model, s.width, s.hidden, s.data, s.density, s.offset, support, s.rewire, s.projection, s.imp_round


def _operations(row: Row) -> int | None:
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
    except (ValueError, TypeError, RuntimeError, OSError):  # a file that does not fit has no such number
        return None
