"""Who is compared: the same network dense, in the published formulation, as ours and, without an offset, SparseProp's.

All start from the same numbers; the sparse ones share their supports. Ours is fused (`dctps.fuse`), and so that its
kernels and those of BatchNorm can be told apart, the dense network comes with and without fusing.
"""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from dctps.base.registry import is_none
from dctps.bench import sparseprop
from dctps.bench.published import published
from dctps.nn.convert import densify, sparsify
from dctps.nn.fuse import fuse

FORMATS: dict[str, torch.memory_format] = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
}


class Contender(NamedTuple):
    """A network ready to run in one memory format."""

    name: str
    memory_format: str
    model: nn.Module


MAKERS: dict[str, Callable[[nn.Module, nn.Module], nn.Module]] = {  # from the dense network and its sparse twin
    "dense": lambda dense, twin: copy.deepcopy(dense),
    "dense fused": lambda dense, twin: fuse(copy.deepcopy(dense)),
    "published": lambda dense, twin: published(copy.deepcopy(twin)),
    "ours": lambda dense, twin: fuse(copy.deepcopy(twin)),
}


def contenders(dense: nn.Module, density: float, offset: str, input_shape: tuple[int, ...]) -> list[Contender]:
    """Each contender in each memory format that images have (input_shape is with the batch)."""
    twin = sparsify(copy.deepcopy(dense), density, offset=offset, allocation="epl")
    formats = list(FORMATS) if len(input_shape) == 4 else ["contiguous"]
    made = [
        Contender(name, memory_format, in_format(make(dense, twin), memory_format))
        for name, make in MAKERS.items()
        for memory_format in formats
    ]
    if is_none(offset) and not sparseprop.why_not():
        made.append(Contender("sparseprop", "contiguous", sparseprop.replaced(densify(twin), input_shape)))
    return made


def in_format(model: nn.Module, memory_format: str) -> nn.Module:
    return model.to(memory_format=FORMATS[memory_format])  # type: ignore[call-overload, no-any-return]
