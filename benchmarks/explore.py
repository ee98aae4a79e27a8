"""What the explorations share: trainings of the narrow ResNet18 of `dctps reproduce scale`, at 0.1 %.

They are made for what the trainer has no setting for. Images, steps, optimiser and the choice of the best epoch are
those of the line "DCT, channel order, signs, leverage" there. Each result is a row of a table. A row that is there
already is not made again, so an exploration can be stopped and goes on where it was.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import table
import torch
import torch.nn.functional as F
from torch import nn

from dctps.base.machine import flushed_denormals
from dctps.data.dataset import Dataset
from dctps.experiments.beyond import SIGNED_LEVERAGE
from dctps.experiments.catalogue import EXPERIMENTS
from dctps.train.images import AnyBatches, RunBatches, load
from dctps.train.optimise import build_optimiser
from dctps.train.processes import Processes
from dctps.train.settings import Settings
from dctps.train.setup import build

CPU, DENSITY = torch.device("cpu"), 1e-3
HEADER = ["line", "density", "seed", "best validation", "best epoch", "test at best"]


class Trained(NamedTuple):
    """What is trained, and what else is done with it.

    after_step: called after each step with the fraction of all steps that is done.
    watch: called before the first step with the optimiser and the number of all steps.
    whole_from: the fraction of all steps before which an epoch does not count.
    """

    model: nn.Module
    after_step: Callable[[float], object] = lambda done: None
    watch: Callable[[torch.optim.Optimizer, int], object] = lambda optimiser, steps: None
    whole_from: float = 0.0


def settings_of(seed: int) -> Settings:
    """Return the settings of the default of this library in the experiment `scale`."""
    experiment = EXPERIMENTS["scale"]
    cells = experiment.cells(experiment.scale("laptop"))
    asked = SIGNED_LEVERAGE, DENSITY
    found = next(c.settings for c in cells if (c.line, c.settings.density) == asked)
    return dataclasses.replace(found, seed=seed)


def network(settings: Settings, dataset: Dataset) -> nn.Module:
    """Return the dense network before its first step."""
    return build(settings, dataset, CPU)


def fit(settings: Settings, make: Callable[[Dataset], Trained]) -> list[object]:
    """Return the best validation accuracy, its epoch, and the test accuracy there."""
    dataset = load(settings)
    batches = RunBatches.of(dataset, settings, CPU, Processes())
    trained = make(dataset)
    model, optimiser = trained.model, build_optimiser(trained.model, settings)
    best, step, steps = (-1.0, 0, 0.0), 0, settings.epochs * len(batches.training)
    trained.watch(optimiser, steps)
    for epoch in range(settings.epochs):
        model.train()
        for images, labels in batches.training.epoch(epoch):
            optimiser.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimiser.step()
            step += 1
            trained.after_step(step / steps)
        validation = accuracy(model, batches.validation)
        if step >= trained.whole_from * steps and validation > best[0]:
            best = validation, epoch + 1, accuracy(model, batches.test)
    return list(best)


@torch.no_grad()
def accuracy(model: nn.Module, batches: AnyBatches) -> float:
    """Return the fraction of the images that a network gets right."""
    model.eval()
    hits, count = 0, 0
    for images, labels in batches.epoch(0):
        hits, count = hits + int((model(images).argmax(1) == labels).sum()), count + len(labels)
    return hits / count


def main(name: str, page: str | None, lines: Iterable[str], train: Callable[[str, Settings], Sequence[object]]) -> None:
    """Train the lines that the command asks for and the table has not."""
    lines = list(lines)
    parser = argparse.ArgumentParser(description=page, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--lines", nargs="+", choices=lines, default=lines)
    given = parser.parse_args()
    for seed, line in itertools.product(given.seeds, given.lines):
        case = [line, str(DENSITY), str(seed)]
        if case in [row[:3] for row in table.rows(name)]:
            continue
        with flushed_denormals():
            found = train(line, settings_of(seed))
        print(*case, *found, flush=True)
        table.add(name, HEADER, [*case, *found])
