"""`dctps bench step`: whole steps of whole networks."""

import dataclasses
import functools
import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import torch

from dctps.base.words import percent
from dctps.bench import networks
from dctps.bench.calls import Call, inference, training_step
from dctps.bench.contenders import CONTENDERS, FORMATS, Contender, contenders, default_peers, matched
from dctps.bench.footprint import memory, peak
from dctps.bench.stopwatch import SETTLE, Times, interleaved
from dctps.bench.subjects import StepCell as Cell
from dctps.bench.subjects import Steps

Say = Callable[[str], object]


@dataclasses.dataclass(frozen=True)
class StepRow:
    """One contender in one cell, in the faster of its memory formats."""

    model: str
    density: float
    offset: str
    batch: int
    mode: str
    steps: int
    contender: str
    memory_format: str
    median_ms: float
    min_ms: float
    other_format_ms: float | None  # median in the slower memory format
    ratio_to_dense: float  # above 1: faster
    ratio_to_published: float | None  # None where the published formulation does not take part
    memory_bytes: int | None  # of weights, gradients and Adam's moments
    ratio_to_best_dense: float | None = None  # to the fastest that computes the dense network, by whatever package
    ratio_to_dense_fused: float | None = None
    width: int | None = None  # channels of the first stage; None is the usual width
    peak_bytes: int | None = None  # of the tensors that a step adds to those before it; see `footprint.peak`

    @property
    def network(self) -> str:
        return self.model if self.width is None else f"{self.model} of width {self.width}"

    @property
    def cell(self) -> str:
        return f"{self.network}, {percent(self.density)}, {self.offset}"


def measure(
    asked: Steps, tick: Callable[[], object] = lambda: None, say: Say = lambda why: None
) -> Iterator[list[StepRow]]:
    """The rows of each cell, as soon as they are known; the networks of one cell only are alive at a time.

    say: is told once why a peer is left out.
    """
    asked.check()
    once = functools.cache(say)
    for cell in asked.cells:
        yield _measure_cell(asked, cell, tick, once)
        gc.collect()  # hooks and modules refer to each other
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()  # it would compile only a limited number of networks of one class


def _measure_cell(asked: Steps, cell: Cell, tick: Callable[[], object], say: Say) -> list[StepRow]:
    shape = (asked.batch, *asked.input_shape)
    dense = networks.build(cell.model, asked.input_shape, asked.classes, asked.width)
    peers = default_peers(cell.offset) if asked.peers is None else asked.peers
    made = contenders(matched(dense, cell.density, cell.offset, shape, asked.inference), peers, say)
    x, target = torch.randn(shape), torch.randint(asked.classes, (asked.batch,))
    runs = {(one.name, one.memory_format): _call(asked, one, x, target) for one in made}
    pause = SETTLE if any(CONTENDERS[one.name].own_threads for one in made) else 0.0
    times = interleaved(runs, asked.steps, asked.warmup, tick, pause)
    sizes = {one.name: memory(one.model) for one in made if CONTENDERS[one.name].counted}
    peaks = {one[:2]: peak(one.model, runs[one[:2]]) for one in made if CONTENDERS[one.name].counted}
    return rows(asked, cell, times, sizes, peaks)


def _call(asked: Steps, one: Contender, x: torch.Tensor, target: torch.Tensor) -> Call:
    images = x.contiguous(memory_format=FORMATS[one.memory_format])
    return inference(one.model, images) if asked.inference else training_step(one.model, images, target)


def rows(
    asked: Steps,
    cell: Cell,
    times: Mapping[tuple[str, str], Times],
    sizes: Mapping[str, int],
    peaks: Mapping[tuple[str, str], int] = MappingProxyType({}),
) -> list[StepRow]:
    """One row per contender from the times and the peaks by (contender, memory format)."""
    names = list(dict.fromkeys(name for name, _ in times))
    ranked = {n: sorted((t.median, fmt) for (own, fmt), t in times.items() if own == n) for n in names}
    best = min(ranked[name][0][0] for name in names if CONTENDERS[name].is_dense)
    found = []
    for name in names:
        (median, fastest), *others = ranked[name]
        found.append(
            StepRow(
                **cell._asdict(),
                batch=asked.batch,
                mode="inference" if asked.inference else "training",
                steps=asked.steps,
                contender=name,
                memory_format=fastest,
                median_ms=median,
                min_ms=times[name, fastest].least,
                other_format_ms=others[0][0] if others else None,
                ratio_to_dense=ranked["dense"][0][0] / median,
                ratio_to_published=ranked["published"][0][0] / median if "published" in ranked else None,
                memory_bytes=sizes.get(name),
                ratio_to_best_dense=best / median,
                ratio_to_dense_fused=ranked["dense_fused"][0][0] / median,
                width=asked.width,
                peak_bytes=peaks.get((name, fastest)),
            )
        )
    return found
