"""Small layers against torch's own: a training step (forward, backward) and inference, on this CPU, on one thread.

    python benchmarks/small_layers.py [--sizes 64 128 256 512 1024] [--rows 8 64 512 4096] [--density 0.01]

Writes results/bench-small-layers.csv: medians in microseconds and the ratio of torch's layer to ours, both measured in
turn in one run. A last row has the floor of a training step: a node of autograd's graph written in Python that computes
nothing, with as many parameters as our layer, and the same with torch's view of a tensor in its place.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from table import write
from torch import Tensor, nn

import dctps

SECONDS = 0.4  # of a measurement
CONVOLUTIONS = ((16, 16, 8), (32, 32, 16), (64, 64, 8))  # channels, filters, pixels along an axis; kernels 3 x 3


class Nothing(torch.autograd.Function):
    """A node of autograd's graph that computes nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, alpha: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, values, alpha)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        _, values, alpha = ctx.saved_tensors
        return grad, torch.empty_like(values), torch.empty_like(alpha), grad[0]


def training(layer: Callable[[Tensor], Tensor], x: Tensor, parameters: list[Tensor]) -> Callable[[], None]:
    gradient = torch.randn_like(layer(x))

    def run() -> None:
        for p in parameters:
            p.grad = None
        layer(x).backward(gradient)

    return run


def inference(layer: nn.Module, x: Tensor) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            layer(x)

    return run


def microseconds(runs: list[Callable[[], None]]) -> list[float]:
    """The median of each run; the runs take turns."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(5):
        for run in runs:
            run()
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times[0]) < 5:
        for run, own in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            own.append(time.perf_counter() - start)
    return [1e6 * statistics.median(own) for own in times]


def measure(name: str, dense: nn.Module, sparse: Any, x: Tensor) -> list[list[object]]:
    """A row for each kind of pass: training without and with the gradient of x, and inference."""
    rows: list[list[object]] = []
    for kind in ("training", "training, input gradient", "inference"):
        own = x.clone().requires_grad_(kind == "training, input gradient")
        if kind == "inference":
            runs = [inference(layer, own) for layer in (dense, sparse)]
        else:
            runs = [training(layer, own, [*layer.parameters(), own]) for layer in (dense, sparse)]
        theirs, ours = microseconds(runs)
        with torch.set_grad_enabled(kind != "inference"):
            backend = sparse.chosen_backend(own)
        rows.append(
            [name, len(x), kind, sparse.nnz, backend, round(theirs, 1), round(ours, 1), round(theirs / ours, 2)]
        )
        print(f"{name:>16} {len(x):>5} {kind:<25} {backend:<7} {theirs:9.1f} {ours:9.1f} us {theirs / ours:6.2f}x")
    return rows


def floor() -> list[object]:
    """The microseconds of a training step that computes nothing, by torch's view and by a node written in Python."""
    x = torch.randn(8, 64, requires_grad=True)
    own = [torch.randn(size, requires_grad=True) for size in (41, 1, 64)]
    view, node = microseconds(
        [training(lambda x: x.view_as(x), x, [x]), training(lambda x: Nothing.apply(x, *own), x, [x, *own])]
    )
    print(
        f"a step that computes nothing: {view:.1f} us, by a node written in Python with three parameters {node:.1f} us"
    )
    return ["nothing", 8, "training", 0, "", round(view, 1), round(node, 1), round(view / node, 2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 128, 256, 512, 1024])
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 64, 512, 4096])
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--dry", action="store_true", help="print the table and write nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rows = []
    for size in options.sizes:
        for batch in options.rows:
            sparse = dctps.DpsLinear(size, size, density=options.density)
            rows += measure(f"{size} x {size}", nn.Linear(size, size), sparse, torch.randn(batch, size))
    for channels, filters, pixels in CONVOLUTIONS:
        pair = [
            nn.Conv2d(channels, filters, 3, padding=1),
            dctps.DpsConv2d(channels, filters, 3, padding=1, density=options.density),
        ]
        rows += measure(f"{channels}x{filters}x3x3, {pixels}x{pixels}", *pair, torch.randn(8, channels, pixels, pixels))
    rows.append(floor())
    header = ["layer", "rows", "pass", "nnz", "backend", "torch_us", "ours_us", "ratio", "threads"]
    if not options.dry:
        write("small-layers", header, [[*row, 1] for row in rows])


if __name__ == "__main__":
    main()
