"""One training step (forward, backward, Adam) of a large linear layer, sparse against dense, on this CPU.

    python benchmarks/linear_step.py [--sizes 4096 16384] [--batch 32] [--density 1e-4]

Writes results/bench-linear-step.csv: medians in milliseconds and their ratio, both layers measured in
turn in one run. Dense layers of 16384 x 16384 need 4.3 GB for weight, gradient and Adam's two moments.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable

import torch
from table import write
from torch import nn

import dctps


def step(layer: nn.Module, batch: int, size: int) -> Callable[[], None]:
    optimiser = torch.optim.Adam(layer.parameters(), lr=1e-3)
    x, target = torch.randn(batch, size), torch.randn(batch, size)

    def run() -> None:
        optimiser.zero_grad()
        (layer(x) - target).square().mean().backward()
        optimiser.step()

    return run


def median_ms(run: Callable[[], None], repeats: int) -> float:
    for _ in range(2):
        run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--density", type=float, default=1e-4)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_flush_denormal(True)
    rows = []
    for size in options.sizes:
        layer = dctps.DpsLinear(size, size, density=options.density)
        sparse = median_ms(step(layer, options.batch, size), options.repeats)
        dense = median_ms(step(nn.Linear(size, size), options.batch, size), options.repeats)
        gc.collect()
        ratio = dense / sparse
        rows.append([size, options.batch, options.density, layer.nnz, *(round(n, 2) for n in (dense, sparse, ratio))])
        print(
            f"{size:>6} x {size:<6} nnz {layer.nnz:>6}: dense {dense:9.2f} ms, sparse {sparse:7.2f} ms, {ratio:6.1f}x"
        )
    header = ["size", "batch", "density", "nnz", "dense_ms", "sparse_ms", "ratio", "threads"]
    write("linear-step", header, [[*row, torch.get_num_threads()] for row in rows])


if __name__ == "__main__":
    main()
