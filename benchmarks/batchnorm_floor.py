"""Where the bytes of a network with BatchNorm go, and what pruning its scales and shifts costs.

    python benchmarks/batchnorm_floor.py [--epochs 15] [--seeds 3]

Bytes: files of ResNet50 (10 classes, DCTpS) by density of the weights and of the scale-shift pairs, with and without
running statistics. Accuracy: a small network with BatchNorm on scikit-learn's digits, 5 % of the weights (EPL), Adam at
1e-3, test accuracy at the end, with the statistics of training and with those that `recalibrate` finds from eight
batches. Writes results/bench-batchnorm-bytes.csv and bench-batchnorm-digits.csv.
"""

import argparse
import itertools
import statistics
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from table import write
from torch import Tensor, nn

import dctps
from dctps.checkpoint.contents import read
from dctps.cli.inspect import part_bytes
from dctps.data import Batches, Dataset

PAIRS = (None, 0.1, 0.01, 0.001)  # densities of the scale-shift pairs; None: BatchNorm as it is


def file_bytes(density: float, pairs: float | None, kept: bool) -> dict[str, int]:
    """The parts of a file of ResNet50, and its total."""
    with torch.device("meta"):
        net = dctps.models.build("resnet50")
    dctps.sparsify(net, density)
    if pairs is not None:
        dctps.sparsify_norms(net, pairs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.safetensors"
        dctps.save(net, path, statistics=kept)
        total = path.stat().st_size
        return {**part_bytes(read(path), total), "total": total}


def small_network() -> nn.Module:
    widths = [1, 32, 32, 64, 64]
    layers: list[nn.Module] = []
    for n, m in itertools.pairwise(widths):
        layers += [nn.Conv2d(n, m, 3, 1 + (m > n > 1), 1, bias=False), nn.BatchNorm2d(m), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def batches(data: Dataset, part: str, seed: int) -> Batches:
    x, y = (getattr(data, f"{part}_{kind}") for kind in ("images", "labels"))
    return Batches(x, y, torch.arange(len(y)), 64, data.mean, data.std, shuffle=part == "train", seed=seed)


@torch.no_grad()
def accuracy(net: nn.Module, data: Dataset) -> float:
    net.eval()
    hits: list[Tensor] = [net(x).argmax(1) == y for x, y in batches(data, "test", 0).epoch(0)]
    return 100 * torch.cat(hits).float().mean().item()


def trained(data: Dataset, pairs: float | None, epochs: int, seed: int) -> tuple[float, float]:
    """Test accuracy in per cent, with the statistics of training and with new ones."""
    torch.manual_seed(seed)
    net = dctps.sparsify(small_network(), 0.05, seed=seed, backend="dense")
    if pairs is not None:
        dctps.sparsify_norms(net, pairs, seed=seed)
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(epochs):
        net.train()
        for x, y in batches(data, "train", seed).epoch(epoch):
            optimiser.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimiser.step()
    first = accuracy(net, data)
    some = (x for (x, _), _ in zip(batches(data, "train", seed).epoch(0), range(8), strict=False))
    return first, accuracy(dctps.recalibrate(net, some), data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    rows = []
    for density in (1e-2, 1e-3, 1e-4):
        for pairs, kept in [(p, k) for p in PAIRS for k in (True, False)]:
            parts = file_bytes(density, pairs, kept)
            rows.append(["resnet50", density, pairs or 1.0, kept, *parts.values()])
            print(*rows[-1])
    write("batchnorm-bytes", ["model", "density", "norm_density", "statistics", *parts], rows)
    data, rows = dctps.data.load("digits"), []
    for pairs in (None, 0.5, 0.1, 0.02):
        pairs_of_runs = [trained(data, pairs, options.epochs, seed) for seed in range(options.seeds)]
        for seed, (first, again) in enumerate(pairs_of_runs):
            rows.append([pairs or 1.0, seed, options.epochs, f"{first:.2f}", f"{again:.2f}"])
        means = [statistics.mean(column) for column in zip(*pairs_of_runs, strict=True)]
        print(f"{pairs or 1.0}: {means[0]:.1f} %, recalibrated {means[1]:.1f} %", [p[0] for p in pairs_of_runs])
    write("batchnorm-digits", ["norm_density", "seed", "epochs", "accuracy", "recalibrated_accuracy"], rows)


if __name__ == "__main__":
    main()
