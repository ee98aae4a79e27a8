"""Who is compared: the same network dense, as ours, in the published formulation, and as other packages compute it.

All start from the same numbers; the sparse ones share their supports. `CONTENDERS` lists them: to add one, write a
function that makes a network from a `Match`, and enter it. `--peers` names those that take part beside the dense
network and ours. Ours is fused (`dctps.fuse`), and for inferences streamlined (`dctps.streamline`): other packages
compute a graph that was made beforehand, too. So that its layers and its fused BatchNorm can be told apart, the dense
network comes with and without fusing. `ours_fused` is ours without streamlining.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from dctps.base.registry import is_none, lookup
from dctps.bench import exported, sparselab, sparseprop
from dctps.bench.published import published
from dctps.nn.convert import densify, sparsify
from dctps.nn.fuse import fuse
from dctps.nn.streamline import streamline

FORMATS: dict[str, torch.memory_format] = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
}
ALWAYS = "dense", "dense_fused", "ours"  # contenders that always take part


class Match(NamedTuple):
    """What contenders are made from: a dense network, its sparse twin, and the input."""

    dense: nn.Module
    twin: nn.Module
    offset: str
    input_shape: tuple[int, ...]  # with the batch
    inference: bool


def _always(match: Match) -> str:
    return ""


@dataclasses.dataclass(frozen=True)
class Maker:
    """How a contender is made."""

    make: Callable[[Match], nn.Module]
    why_not: Callable[[Match], str] = _always  # why it cannot take part in a match; empty where it can
    formats: tuple[str, ...] = tuple(FORMATS)  # memory formats in which it is measured
    is_dense: bool = False  # whether it computes the dense network
    own_threads: bool = False  # whether it brings threads that may still spin when the next contender begins
    counted: bool = True  # whether `memory` knows what it holds, and torch allocates what a step needs
    obeys_limit: bool = False  # whether `--instruction-set` limits it, as it limits torch and our kernels


CONTENDERS: dict[str, Maker] = {
    "dense": Maker(lambda match: copy.deepcopy(match.dense), is_dense=True, obeys_limit=True),
    "dense_fused": Maker(lambda match: fuse(copy.deepcopy(match.dense)), is_dense=True, obeys_limit=True),
    "published": Maker(lambda match: published(copy.deepcopy(match.twin)), obeys_limit=True),
    "ours": Maker(lambda match: _ours(match), obeys_limit=True),
    "ours_fused": Maker(lambda match: fuse(copy.deepcopy(match.twin)), obeys_limit=True),
    "dense_compiled": Maker(lambda match: exported.compiled(match.dense), is_dense=True),  # for the machine's processor
    "sparseprop": Maker(
        lambda match: sparseprop.replaced(densify(copy.deepcopy(match.twin)), match.input_shape),
        lambda match: _without_offset("sparseprop", match) or sparseprop.why_not(),
        formats=("contiguous",),
        counted=False,  # its indices are no buffers
    ),
    "sparselab": Maker(
        lambda match: sparselab.replaced(densify(copy.deepcopy(match.twin))),
        lambda match: _without_offset("sparselab", match) or sparselab.why_not(match.dense),
        formats=("contiguous",),
        own_threads=True,
        counted=False,
    ),
    "onnxruntime": Maker(
        lambda match: exported.OnnxRuntime(match.dense, match.input_shape),
        lambda match: exported.why_not("onnxruntime", match.inference),
        formats=("contiguous",),
        is_dense=True,
        own_threads=True,
        counted=False,
    ),
    "openvino": Maker(
        lambda match: exported.OpenVino(match.dense, match.input_shape),
        lambda match: exported.why_not("openvino", match.inference),
        formats=("contiguous",),
        is_dense=True,
        own_threads=True,
        counted=False,
    ),
}


def _ours(match: Match) -> nn.Module:
    net = fuse(copy.deepcopy(match.twin))
    return streamline(net) if match.inference else net


def _without_offset(name: str, match: Match) -> str:
    return "" if is_none(match.offset) else f"{name} is left out: it has no offset; it takes part with --offset none"


class Contender(NamedTuple):
    """A network ready to run in one memory format."""

    name: str
    memory_format: str
    model: nn.Module


def check_peers(names: Sequence[str]) -> None:
    """ValueError unless all are names of contenders."""
    for name in names:
        lookup(CONTENDERS, name, "peer")


def default_peers(offset: str) -> list[str]:
    """The peers that take part unless others are named: those that are quick to make and that the offset allows."""
    return ["published", *(["sparseprop"] if is_none(offset) else [])]


def matched(dense: nn.Module, density: float, offset: str, input_shape: tuple[int, ...], inference: bool) -> Match:
    """The networks that all contenders of one match are made from."""
    twin = sparsify(copy.deepcopy(dense), density, offset=offset, allocation="epl")
    return Match(dense, twin, offset, input_shape, inference)


def contenders(match: Match, peers: Sequence[str], say: Callable[[str], object] = lambda why: None) -> list[Contender]:
    """The dense network, ours and the peers, in each memory format that they and the images have.

    say: is told why a peer does not take part.
    """
    formats = list(FORMATS) if len(match.input_shape) == 4 else ["contiguous"]
    made = []
    for name, maker in CONTENDERS.items():
        if name not in (*ALWAYS, *peers):
            continue
        if why := maker.why_not(match):
            say(why)
            continue
        made += [Contender(name, fmt, in_format(maker.make(match), fmt)) for fmt in maker.formats if fmt in formats]
    return made


def in_format(model: nn.Module, memory_format: str) -> nn.Module:
    return model.to(memory_format=FORMATS[memory_format])  # type: ignore[call-overload, no-any-return]
