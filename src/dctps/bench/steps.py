"""`dctps bench step`: whole steps of whole networks."""

import dataclasses
import gc
from collections.abc import Callable, Iterator, Mapping

import torch

from dctps.base.words import percent
from dctps.bench import networks
from dctps.bench.calls import Call, inference, training_step
from dctps.bench.contenders import FORMATS, Contender, contenders
from dctps.bench.footprint import memory
from dctps.bench.stopwatch import Times, interleaved
from dctps.bench.subjects import StepCell as Cell
from dctps.bench.subjects import Steps


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
    ratio_to_dense_fused: float
    ratio_to_published: float
    memory_bytes: int | None  # of weights, gradients and Adam's moments

    @property
    def cell(self) -> str:
        return f"{self.model}, {percent(self.density)}, {self.offset}"


def measure(asked: Steps, tick: Callable[[], object] = lambda: None) -> Iterator[list[StepRow]]:
    """The rows of each cell, as soon as they are known; the networks of one cell only are alive at a time."""
    asked.check()
    for cell in asked.cells:
        yield _measure_cell(asked, cell, tick)
        gc.collect()  # hooks and modules refer to each other


def _measure_cell(asked: Steps, cell: Cell, tick: Callable[[], object]) -> list[StepRow]:
    shape = (asked.batch, *asked.input_shape)
    made = contenders(networks.build(cell.model, asked.input_shape, asked.classes), cell.density, cell.offset, shape)
    x, target = torch.randn(shape), torch.randint(asked.classes, (asked.batch,))
    runs = {(one.name, one.memory_format): _call(asked, one, x, target) for one in made}
    times = interleaved(runs, asked.steps, asked.warmup, tick)
    sizes = {one.name: memory(one.model) for one in made if one.name != "sparseprop"}  # its indices are no buffers
    return rows(asked, cell, times, sizes)


def _call(asked: Steps, one: Contender, x: torch.Tensor, target: torch.Tensor) -> Call:
    images = x.contiguous(memory_format=FORMATS[one.memory_format])
    return inference(one.model, images) if asked.inference else training_step(one.model, images, target)


def rows(asked: Steps, cell: Cell, times: Mapping[tuple[str, str], Times], sizes: Mapping[str, int]) -> list[StepRow]:
    """One row per contender from the times by (contender, memory format)."""
    names = list(dict.fromkeys(name for name, _ in times))
    ranked = {n: sorted((t.median, fmt) for (own, fmt), t in times.items() if own == n) for n in names}
    found = []
    for name in names:
        (median, best), *others = ranked[name]
        found.append(
            StepRow(
                **cell._asdict(),
                batch=asked.batch,
                mode="inference" if asked.inference else "training",
                steps=asked.steps,
                contender=name,
                memory_format=best,
                median_ms=median,
                min_ms=times[name, best].least,
                other_format_ms=others[0][0] if others else None,
                ratio_to_dense=ranked["dense"][0][0] / median,
                ratio_to_dense_fused=ranked["dense fused"][0][0] / median,
                ratio_to_published=ranked["published"][0][0] / median,
                memory_bytes=sizes.get(name),
            )
        )
    return found
