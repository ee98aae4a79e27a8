"""How long an experiment takes on this machine, from a stored measurement of one training step of each network.

Networks are measured by `step_times.py`. The measurement is kept in a file, with the machine, the versions and the
commit that it belongs to. On another machine or another version it is not used.

    seconds of a run = trainings * epochs * (steps + evaluation) + scoring

The estimate leaves out what little the figures need besides: reading images, rewiring, counting weights, Jacobians.
"""

import dataclasses
import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dctps.base.files import cache_folder, write_atomically
from dctps.base.machine import cpu
from dctps.base.provenance import commit
from dctps.data import DATASETS
from dctps.experiments.cells import TRAIN, Cell
from dctps.methods.lottery import schedule
from dctps.methods.pruning import METHODS
from dctps.models import MODELS
from dctps.train.settings import Settings, non_defaults

DENSITY = 0.01  # of the sparse networks that are measured: the mean of the densities in the paper's figures
VALIDATION = 0.1  # share of a run's images that are kept for validation
TEST = 0.2  # images of a test set for each training image of its data set, as in CIFAR-10
IMPROVING = 0.5  # share of the epochs whose validation accuracy is the best so far; only these are tested
FORWARD = 1 / 3  # share of a training step's time that its forward pass takes
UNKNOWN_SHAPE, UNKNOWN_COUNT = (3, 32, 32), 50_000  # assumed for data sets that are not in DATASETS

Identity = dict[str, Any]  # what a measurement belongs to


# --- what is measured -----------------------------------------------------------------------------------------------


def measured_settings(settings: Settings) -> Settings:
    """Return the settings of the network whose step stands for a step of this run.

    All settings that the time of a step hardly depends on are those of one run for all: sparse networks have the mean
    density, and data sets with images of one shape are the same.
    """
    dense = settings.density is None or settings.method == "imp"  # the rounds of imp begin with dense networks
    shape = image_shape(settings.data)
    return Settings(
        model=settings.model,
        width=settings.width,
        hidden=settings.hidden,
        data=next((name for name in DATASETS if image_shape(name) == shape), settings.data),
        density=None if dense else DENSITY,
        offset="dct" if dense or settings.projection else settings.offset,
        projection=None if dense else settings.projection,
        optimizer=settings.optimizer,
        batch_size=settings.batch_size,
    )


def needed_settings(cells: Iterable[Cell]) -> list[Settings]:
    """Return what has to be measured for an estimate of these cells, each once."""
    needed: dict[str, Settings] = {}
    for cell in cells:
        for settings in _scored(cell.settings), _trained(cell):
            if settings is not None and settings.model in MODELS:
                needed.setdefault(key_of(settings), settings)
    return list(needed.values())


def _trained(cell: Cell) -> Settings | None:
    return measured_settings(cell.settings) if cell.task == TRAIN else None


def _scored(settings: Settings) -> Settings | None:
    """Return the settings of the dense network that a pruning method scores, if there is one."""
    scores = settings.method in METHODS and METHODS[settings.method].needs_input
    return measured_settings(dataclasses.replace(settings, density=None, offset="dct", method=None)) if scores else None


def key_of(settings: Settings) -> str:
    """Return the name of measured settings in the file."""
    return json.dumps(non_defaults(settings), sort_keys=True)


# --- the measurement in its file ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Seconds of one training step on a whole batch, by `key_of` the settings, and what they belong to."""

    identity: Identity
    measured: str = ""  # the day
    took: float = 0.0  # seconds that it took
    spread: float = 1.0  # slowest round divided by the fastest, the median of all networks; large on a busy machine
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def store(self) -> None:
        """Write the file of this machine; what it holds of other networks stays, if it belongs to the same."""
        path = measurement_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        old = read_measurement()
        kept = old.seconds if old is not None and old.identity == self.identity else {}
        text = json.dumps(dataclasses.asdict(dataclasses.replace(self, seconds={**kept, **self.seconds})), indent=1)
        write_atomically(path, lambda temporary: temporary.write_text(text))


def identity_of(processes: int, threads: int) -> Identity:
    """Return all that a measurement belongs to: the machine, how runs share it, and the versions."""
    versions = {name: importlib.metadata.version(name) for name in ("dctps", "torch")}
    machine = {"machine": platform.node(), "processor": cpu(), "cores": os.cpu_count()}
    return {**machine, "processes": processes, "threads": threads, **versions, "commit": commit()}


def measurement_file() -> Path:
    """Return the path of the measurement of this machine; machines may share the user's folders."""
    return cache_folder() / f"steps-{''.join(c if c.isalnum() else '_' for c in platform.node())}.json"


def read_measurement() -> Measurement | None:
    """Return the measurement in the file, or None if there is none that can be read."""
    try:
        content = json.loads(measurement_file().read_text())
        seconds = {str(key): float(value) for key, value in content["seconds"].items()}
        took, spread = float(content["took"]), float(content["spread"])
        return Measurement(dict(content["identity"]), str(content["measured"]), took, spread, seconds)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None  # a missing or damaged file means that there is no measurement


def difference(found: Identity, own: Identity) -> str:
    """Say in what an identity differs from one's own; an empty string if it does not."""
    return ", ".join(f"{key} {found.get(key)} instead of {own[key]}" for key in own if found.get(key) != own[key])


# --- the estimate ---------------------------------------------------------------------------------------------------


def total_seconds(cells: Sequence[Cell], seconds: Mapping[str, float]) -> float:
    """Return the seconds of all cells, one after another; NaN if a network of them was not measured."""
    return sum(cell_seconds(cell, seconds) for cell in cells)


def cell_seconds(cell: Cell, seconds: Mapping[str, float]) -> float:
    """Return the seconds that one process takes for a cell; `seconds` are those of `Measurement`."""
    settings, total = cell.settings, 0.0
    if (dense := _scored(settings)) is not None:
        total += _scored_images(settings) * seconds.get(key_of(dense), math.nan) / settings.batch_size
    if (trained := _trained(cell)) is not None:
        images = trainings(settings) * settings.epochs * _images_of_an_epoch(settings)
        total += images * seconds.get(key_of(trained), math.nan) / settings.batch_size
    return total


def _images_of_an_epoch(settings: Settings) -> float:
    """Return how many images an epoch has; one of validation or test counts as the share that a forward pass takes."""
    everything = training_images(settings.data)
    images = settings.images or everything
    return images * (1 - VALIDATION) + FORWARD * (VALIDATION * images + IMPROVING * TEST * everything)


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
    assert settings.method is not None
    method = METHODS[settings.method]
    steps, batches = settings.method_steps or method.steps, settings.method_batches or method.batches
    if method.needs_data:
        return steps * batches * settings.batch_size
    return 2 * steps  # one image of ones in each step, in double precision, which takes twice the time
