"""How far do the values of S get from zero? The law |s| = C lr sqrt(T k) of docs/offsets.md, in trained networks.

Each training by Adam in a folder of runs that has a sparse network with an offset, whose values train and stay at their
places, gives a row: the root mean square of its values at the epoch of the best validation accuracy, the square root of
the sum of lr^2 over the steps until then (lr sqrt(T) for a constant learning rate lr of the values), and their quotient
C.

    python benchmarks/reach.py --runs runs
"""

import argparse
import math
from pathlib import Path

import table
import torch
from safetensors.torch import load_file

from dctps.experiments.cells import TRAIN
from dctps.experiments.results import Row, read
from dctps.experiments.status import DONE
from dctps.train.images import RunBatches, load
from dctps.train.optimise import learning_rate
from dctps.train.processes import Processes
from dctps.train.runs import Run
from dctps.train.settings import Settings

NAME = "reach"
HEADER = [
    "run",
    "model",
    "width",
    "offset",
    "alpha",
    "density",
    "seed",
    "epochs",
    "steps",
    "root of summed lr^2",
    "rms",
    "C",
]


def steps_per_epoch(settings: Settings) -> int:
    """Return the number of steps in an epoch."""
    return len(RunBatches.of(load(settings), settings, torch.device("cpu"), Processes()).training)


def root_mean_square(file: Path) -> float:
    """Return the root mean square of all values in the file of a network."""
    values = torch.cat([t for name, t in load_file(file).items() if name.startswith("dctps/values")])
    return float(values.double().square().mean().sqrt())


def is_meant(found: Row) -> bool:
    """Return whether the law is about a run."""
    s = found.settings
    if found.status != DONE or found.task != TRAIN or not s.density or not s.offset:
        return False
    return s.optimizer == "adam" and s.projection is None and s.frozen is None and s.rewire is None


def row_of(found: Row) -> list[object]:
    """Return the row of a run."""
    run, s = Run(found.folder), found.settings
    epochs, steps = found.content["accuracy"]["best_epoch"] + 1, steps_per_epoch(s)
    factor = (s.values_lr or s.lr) / s.lr
    travelled = factor * math.sqrt(steps * sum(learning_rate(s, epoch) ** 2 for epoch in range(epochs)))
    rms = root_mean_square(run.best)
    shown = [f"{number:.4g}" for number in (travelled, rms, rms / travelled)]
    return [found.id, s.model, s.width, s.offset, s.alpha, s.density, s.seed, epochs, epochs * steps, *shown]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    rows = [row_of(row) for row in read(parser.parse_args().runs).rows if is_meant(row)]
    rows.sort(key=lambda row: [str(cell) for cell in row[1:7]])
    for row in rows:
        print(*row)
    table.write(NAME, HEADER, rows)


if __name__ == "__main__":
    main()
