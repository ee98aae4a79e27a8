"""How long an experiment takes here: a quick measurement of each of its networks, before anything is run.

A step of a few images is timed for each network that occurs, as dense and as a sparse one, and the rest is
multiplication: good to a factor of two or so, which is what one needs to know before saying yes.
"""

import dataclasses
import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from dctps.base.machine import flushed_denormals
from dctps.experiments.cells import TRAIN, Cell
from dctps.experiments.tasks import SHAPES
from dctps.methods.lottery import schedule
from dctps.methods.pruning.prune import METHODS
from dctps.models import MODELS, build
from dctps.nn.convert import sparsify
from dctps.ops import autotune
from dctps.train.settings import Settings

IMAGES = 8  # of a step that is timed
TRAINING = {"cifar10": 50_000, "cifar100": 50_000, "tiny_imagenet": 100_000}
TEST_SHARE = 0.1  # of the time of a training, for validation and test


@dataclasses.dataclass(frozen=True)
class Kind:
    """What the time of a step depends on."""

    model: str
    width: int | None
    side: int
    sparse: bool


class Clock:
    """Seconds per image, each kind of network measured once."""

    def __init__(self) -> None:
        self.seconds: dict[Kind, float] = {}

    def per_image(self, kind: Kind) -> float:
        if kind not in self.seconds:
            self.seconds[kind] = _measure(kind)
        return self.seconds[kind]

    def cell(self, cell: Cell) -> float:
        """Seconds of a cell with all cores of this machine."""
        settings = cell.settings
        if settings.model not in MODELS:
            return float("nan")
        _, side, _ = SHAPES.get(settings.data, (3, 32, 10))
        dense = Kind(settings.model, settings.width, side, False)
        scored = _scored(settings)
        seconds = scored * self.per_image(dense) if scored else 0.0
        if cell.task != TRAIN:
            return seconds
        sparse = settings.density is not None and settings.method != "imp" and settings.projection is None
        step = self.per_image(dataclasses.replace(dense, sparse=sparse))
        images = settings.images or TRAINING.get(settings.data, 50_000)
        return seconds + rounds(settings) * settings.epochs * images * step * (1 + TEST_SHARE)


def rounds(settings: Settings) -> int:
    """Trainings in one: lottery tickets train once per round."""
    if settings.method != "imp" or settings.density is None:
        return 1
    return len(schedule(1 << 20, settings.density, settings.method_steps)) + 1


def _scored(settings: Settings) -> int:
    """Images that pass the dense network while a method scores its weights."""
    if settings.method not in METHODS:
        return 0
    method = METHODS[settings.method]
    steps, batches = settings.method_steps or method.steps, settings.method_batches or method.batches
    return steps * batches * settings.batch_size if method.needs_data else 2 * steps  # ones, in double precision


def _measure(kind: Kind) -> float:
    options = {} if kind.width is None else {"width": kind.width}
    with torch.random.fork_rng(), flushed_denormals(), autotune.by_rule():
        model = build(kind.model, 10, **options)
        if kind.sparse:
            sparsify(model, 0.001)
        x, y = torch.randn(IMAGES, 3, kind.side, kind.side), torch.zeros(IMAGES, dtype=torch.int64)
        times = []
        for _ in range(2):
            started = time.perf_counter()
            F.cross_entropy(model(x), y).backward()
            times.append(time.perf_counter() - started)
    return min(times) / IMAGES


def total_seconds(cells: Sequence[Cell], clock: Clock) -> float:
    return sum(clock.cell(cell) for cell in cells)
