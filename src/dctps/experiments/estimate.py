"""How long an experiment takes on this machine: a quick measurement of each of its networks, before anything is run.

One training step of a few images is timed for each network, dense and sparse, and multiplied by the number of images.
The result is good to a factor of about two, which is enough to decide whether to start.
"""

import dataclasses
import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from dctps.base.machine import flushed_denormals
from dctps.data import DATASETS
from dctps.experiments.cells import TRAIN, Cell
from dctps.methods.lottery import schedule
from dctps.methods.pruning import METHODS
from dctps.models import MODELS, build
from dctps.nn.convert import sparsify
from dctps.ops import autotune
from dctps.train.settings import Settings

IMAGES = 8  # in a step that is timed
TEST_SHARE = 0.1  # validation and test take this share of the time of a training
UNKNOWN_SHAPE, UNKNOWN_COUNT = (3, 32, 32), 50_000  # assumed for data sets that are not in DATASETS


@dataclasses.dataclass(frozen=True)
class Kind:
    """Everything that the time of a step depends on."""

    model: str
    width: int | None
    image_shape: tuple[int, int, int]
    sparse: bool


class Clock:
    """Seconds per image of each kind of network, which is measured once."""

    def __init__(self) -> None:
        self.seconds: dict[Kind, float] = {}

    def per_image(self, kind: Kind) -> float:
        """Return the seconds that a training step takes for each image."""
        if kind not in self.seconds:
            self.seconds[kind] = _measure(kind)
        return self.seconds[kind]

    def cell(self, cell: Cell) -> float:
        """Return the seconds that a cell takes with all cores of this machine; NaN for networks of users."""
        settings = cell.settings
        if settings.model not in MODELS:
            return float("nan")
        dense = Kind(settings.model, settings.width, image_shape(settings.data), False)
        scored = _scored_images(settings)
        seconds = scored * self.per_image(dense) if scored else 0.0
        if cell.task != TRAIN:
            return seconds
        sparse = settings.density is not None and settings.method != "imp" and settings.projection is None
        step = self.per_image(dataclasses.replace(dense, sparse=sparse))
        images = settings.epochs * (settings.images or training_images(settings.data))
        return seconds + trainings(settings) * images * step * (1 + TEST_SHARE)


def image_shape(data: str) -> tuple[int, int, int]:
    """Return channels, height and width of the images of a data set."""
    return DATASETS[data].image_shape if data in DATASETS else UNKNOWN_SHAPE


def training_images(data: str) -> int:
    """Return the number of training images of a data set."""
    return DATASETS[data].training_images if data in DATASETS else UNKNOWN_COUNT


def trainings(settings: Settings) -> int:
    """Return how often a run trains its network: lottery tickets are trained once in each round."""
    if settings.method != "imp" or settings.density is None:
        return 1
    return len(schedule(1 << 20, settings.density, settings.method_steps)) + 1


def _scored_images(settings: Settings) -> int:
    """Return how many images pass the dense network while a pruning method scores its weights."""
    if settings.method not in METHODS:
        return 0
    method = METHODS[settings.method]
    steps, batches = settings.method_steps or method.steps, settings.method_batches or method.batches
    if method.needs_data:
        return steps * batches * settings.batch_size
    return 2 * steps  # one image of ones in each step, in double precision, which takes twice the time


def _measure(kind: Kind) -> float:
    """Return the seconds per image of the faster of two training steps."""
    options = {} if kind.width is None else {"width": kind.width}
    with torch.random.fork_rng(), flushed_denormals(), autotune.by_rule():
        model = build(kind.model, 10, in_channels=kind.image_shape[0], **options)
        if kind.sparse:
            sparsify(model, 0.001)
        x, y = torch.randn(IMAGES, *kind.image_shape), torch.zeros(IMAGES, dtype=torch.int64)
        times = []
        for _ in range(2):
            started = time.perf_counter()
            F.cross_entropy(model(x), y).backward()
            times.append(time.perf_counter() - started)
    return min(times) / IMAGES


def total_seconds(cells: Sequence[Cell], clock: Clock) -> float:
    """Return the seconds that all cells take one after another."""
    return sum(clock.cell(cell) for cell in cells)
