"""Offsets that are not in the library, on the narrow ResNet18 of `dctps reproduce scale`: is one worth being added?

Each offset is trained like the line "DCT, channel order, signs, leverage" at 0.1 %: the same places, images, steps and
rule for alpha. D is held as a matrix, since nothing but the accuracy is asked here. A line that the table has already
is not trained again, so the command can be stopped and goes on where it was.

    python benchmarks/explore_offsets.py                   # one seed
    python benchmarks/explore_offsets.py --seeds 0 1 2 --offsets dct_signed taps
"""

import argparse
import csv
import itertools
import math
from collections.abc import Callable
from pathlib import Path

import table
import torch
from torch import Tensor

import dctps
from dctps.base.machine import flushed_denormals
from dctps.core.offsets import OffsetLike
from dctps.core.random import Stream
from dctps.data.batches import Batches
from dctps.experiments.beyond import SIGNED_LEVERAGE
from dctps.experiments.catalogue import EXPERIMENTS
from dctps.train.images import RunBatches, load
from dctps.train.optimise import build_optimiser
from dctps.train.processes import Processes
from dctps.train.settings import Settings
from dctps.train.setup import build

NAME, HEADER = "explore-offsets", ["offset", "density", "seed", "best validation", "best epoch", "test at best"]
CPU, DENSITY = torch.device("cpu"), 1e-3
Shape = tuple[int, ...]


class Stored:
    """An offset that is a function of the shape of a weight and is held as a matrix."""

    def __init__(self, weight: Tensor) -> None:  # of the shape of the weight
        self.dense = weight.flatten(1).float()
        self.shape = tuple(self.dense.shape)

    def apply(self, x: Tensor) -> Tensor:
        return x @ self.dense.T.to(x)

    def adjoint(self, v: Tensor) -> Tensor:
        return v @ self.dense.to(v)

    def matrix(self) -> Tensor:
        return self.dense


def signed_dct(shape: Shape) -> Tensor:
    return dctps.OFFSETS["dct_signed"].bind(shape).matrix().view(shape)


def gaussian(shape: Shape) -> Tensor:
    """Independent normal numbers, which would have to be stored."""
    return torch.from_numpy(Stream(0, f"gaussian/{shape}").normals(math.prod(shape))).view(shape)


def taps(shape: Shape) -> Tensor:
    """A signed DCT over the channels times one pattern over the kernel: a box, or (every second filter) dx or dy."""
    if len(shape) == 2 or shape[2:] == (1, 1):
        return signed_dct(shape)
    step, even = torch.tensor([-1.0, 0.0, 1.0]) / 2**0.5, torch.ones(3) / 3**0.5
    patterns = [torch.outer(even, even), torch.outer(even, step), torch.outer(even, even), torch.outer(step, even)]
    filters, channels = shape[:2]
    waves = signed_dct((channels, channels, 1, 1))[:, :, 0, 0]
    rows = [waves[(k // 2 if k % 2 == 0 else k // 4) % channels] for k in range(filters)]  # each pattern from 0 on
    return torch.stack([row[:, None, None] * patterns[k % 4] for k, row in enumerate(rows)])


def mirrored(shape: Shape) -> Tensor:
    """[[Q, -Q], [-Q, Q]] with a signed DCT Q of half the size: a pair of outputs is x and -x, so ReLU loses nothing."""
    filters, channels, *kernel = shape
    rows = filters // 2 if kernel and filters % 2 == 0 else filters  # classes are no pairs
    columns = channels // 2 if channels % 2 == 0 else channels
    q = signed_dct((rows, columns, *kernel))
    wide = q if columns == channels else torch.cat([q, -q], 1)
    return wide if rows == filters else torch.cat([wide, -wide])


def delta(shape: Shape) -> Tensor:
    """A signed DCT over the channels at the middle of the kernel, and zero elsewhere."""
    if len(shape) == 2:
        return signed_dct(shape)
    weight = torch.zeros(shape)
    weight[:, :, shape[2] // 2, shape[3] // 2] = signed_dct((*shape[:2], 1, 1))[:, :, 0, 0]
    return weight


def stored(make: Callable[[Shape], Tensor]) -> Callable[[Shape], Stored]:
    return lambda shape: Stored(make(shape))


OFFSETS: dict[str, OffsetLike] = {
    "dct_signed": "dct_signed",
    "taps": stored(taps),
    "mirrored": stored(mirrored),
    "delta": stored(delta),
    "gaussian": stored(gaussian),
    "rotation": "rotation",
    "hadamard/channel/channel/lowest/0": "hadamard/channel/channel/lowest/0",
}


def settings_of(seed: int) -> Settings:
    experiment = EXPERIMENTS["scale"]
    cells = experiment.cells(experiment.scale("laptop"))
    (found,) = [
        cell.settings
        for cell in cells
        if (cell.line, cell.settings.density, cell.settings.seed) == (SIGNED_LEVERAGE, DENSITY, seed)
    ]
    return found


@torch.no_grad()
def accuracy(model: torch.nn.Module, batches: Batches) -> float:
    model.eval()
    hits, count = 0, 0
    for images, labels in batches.epoch(0):
        hits, count = hits + int((model(images).argmax(1) == labels).sum()), count + len(labels)
    return hits / count


def train(offset: OffsetLike, settings: Settings) -> list[object]:
    """Best validation accuracy, its epoch, and the test accuracy there."""
    dataset = load(settings)
    batches = RunBatches.of(dataset, settings, CPU, Processes())
    options = {"alpha": settings.alpha, "allocation": settings.allocation, "seed": settings.seed, "backend": "dense"}
    model = dctps.sparsify(build(settings, dataset, CPU), settings.density, offset=offset, **options)
    optimiser, best = build_optimiser(model, settings), (-1.0, 0, 0.0)
    for epoch in range(settings.epochs):
        model.train()
        for images, labels in batches.training.epoch(epoch):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimiser.step()
        validation = accuracy(model, batches.validation)
        if validation > best[0]:
            best = validation, epoch + 1, accuracy(model, batches.test)
    return list(best)


def rows_of(path: Path) -> list[list[object]]:
    """The rows that the table has, without their origin."""
    return [row[: len(HEADER)] for row in list(csv.reader(path.open()))[1:]] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--offsets", nargs="+", choices=OFFSETS, default=list(OFFSETS))
    given = parser.parse_args()
    rows = rows_of(table.RESULTS / f"bench-{NAME}.csv")
    for seed, name in itertools.product(given.seeds, given.offsets):
        if [name, str(DENSITY), str(seed)] in [[str(cell) for cell in row[:3]] for row in rows]:
            continue
        with flushed_denormals():
            rows.append([name, DENSITY, seed, *train(OFFSETS[name], settings_of(seed))])
        print(*rows[-1], flush=True)
        table.write(NAME, HEADER, rows)


if __name__ == "__main__":
    main()
