"""Why a spectrum of the paper's Figure 4 is zero: no path from inputs to outputs, or ReLUs that are off.

For each ResNet50 without an offset of `dctps reproduce jacobian --scale paper`, at 0.1 % and below: whether any path of
weights is left (in the network of absolute values the outputs depend on the inputs), and for how many of 64 test images
they do, with BatchNorm as at initialisation, where the Jacobian is taken, and with the statistics of the batch, as in
training.

    python benchmarks/zero_spectra.py --runs runs      # takes the supports that `reproduce` has found, if there are any
"""

import argparse
import copy
from collections.abc import Callable
from pathlib import Path

import table
import torch
from torch import Tensor, nn

from dctps.experiments.catalogue import EXPERIMENTS
from dctps.experiments.cells import Cell
from dctps.experiments.performers import at_initialisation
from dctps.ops import autotune
from dctps.train.settings import Runtime

IMAGES = 64
LOW = 1e-3  # density, from which on down spectra are zero


def has_path(network: nn.Module, x: Tensor) -> bool:
    positive = copy.deepcopy(network).eval()
    for parameter in positive.parameters():
        parameter.data.abs_()
    return answering(positive, torch.ones_like(x[:1]), torch.ones) == 1


def answering(network: nn.Module, x: Tensor, draw: Callable[..., Tensor] = torch.randn) -> int:
    """For how many images the outputs depend on the input: a combination of the outputs has a gradient there."""
    inputs = x.clone().requires_grad_()
    outputs = network(inputs)
    (gradient,) = torch.autograd.grad((draw(outputs.shape, dtype=outputs.dtype) * outputs).sum(), inputs)
    return int((gradient.flatten(1).abs().sum(1) > 0).sum())


def row(cell: Cell, runs: Path) -> list[object]:
    model, x, _ = at_initialisation(cell.settings, Runtime(runs=runs, device="cpu"), IMAGES)
    network, x = model.double(), x.double()
    counts = [answering(copy.deepcopy(network).train(mode), x) for mode in (False, True)]
    return [cell.line, cell.settings.density, has_path(network, x), *counts, IMAGES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    given = parser.parse_args()
    experiment = EXPERIMENTS["jacobian"]
    cells = [c for c in experiment.cells(experiment.scale("paper")) if c.settings.model == "resnet50"]
    rows = []
    for cell in cells:
        if cell.settings.offset is None and (cell.settings.density or 1) <= LOW:
            with autotune.by_rule():
                rows.append(row(cell, given.runs))
            print(*rows[-1], flush=True)
    header = ["line", "density", "has_path", "answering_at_initialisation", "answering_in_training", "images"]
    table.write("zero-spectra", header, rows)


if __name__ == "__main__":
    main()
