"""Which network, offset and density are measured, from what a user writes."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dctps import models
from dctps.base import user_code
from dctps.base.registry import is_none, unknown
from dctps.core.allocation import check_density
from dctps.core.offsets import TransformOffset
from dctps.models import MODELS
from dctps.nn.diagnose import check_input


def check(names: Sequence[str], densities: Sequence[float], offsets: Sequence[str]) -> None:
    """ValueError for whatever cannot be measured, before anything is."""
    for what, given in (("model", names), ("density", densities), ("offset", offsets)):
        if not given:
            raise ValueError(f"name at least one {what}")
    for name in names:
        if ":" not in name and name not in MODELS:
            raise ValueError(unknown("model", name, MODELS, ", or say package.module:function"))
    check_densities(densities)
    check_offsets(offsets)


def check_width(names: Sequence[str], width: int | None) -> None:
    """ValueError unless all networks have a width that can be given, where one is."""
    fixed = [name for name in names if not name.startswith(("resnet", "vgg"))]
    if width is not None and fixed:
        raise ValueError(f"--width is for the ResNets and VGGs of dctps.models, not for {', '.join(fixed)}")


def check_densities(densities: Sequence[float]) -> None:
    """ValueError unless all densities are in (0, 1]."""
    for density in densities:
        check_density(density)


def check_offsets(offsets: Sequence[str]) -> None:
    """ValueError unless all are names of offsets, or stand for none."""
    for offset in offsets:
        if not is_none(offset):
            TransformOffset.parse(offset)


def build(name: str, input_shape: tuple[int, ...], classes: int, width: int | None = None, seed: int = 0) -> nn.Module:
    """A network of `dctps.models` or, as package.module:function, a user's own; the same numbers at each call."""
    torch.manual_seed(seed)
    options = {} if width is None else {"width": width}
    model = _own(name) if ":" in name else models.build(name, classes, in_channels=input_shape[0], **options)
    _check_fit(name, model, input_shape, classes)
    return model


def _own(name: str) -> nn.Module:
    made = user_code.call(name, "a network")
    if not isinstance(made, nn.Module):
        raise ValueError(f"{name} returned a {type(made).__name__}, not an nn.Module")
    return made


def _check_fit(name: str, model: nn.Module, input_shape: tuple[int, ...], classes: int) -> None:
    """Raise ValueError unless the network takes the images and knows the classes."""
    said = f"{name} does not take inputs of {' x '.join(map(str, input_shape))}"
    y = check_input(model, torch.zeros(2, *input_shape), lambda reason: f"{said} ({reason}); see --input-shape")
    if not isinstance(y, Tensor) or y.dim() != 2 or y.shape[1] < classes:
        given = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise ValueError(f"{name} gives {given} for two inputs, not (2, {classes}); see --classes")
