"""BatchNorm, residual and ReLU in one operation, against torch's operations one after the other.

    python benchmarks/normalisation.py [--repeats 9]

For each shape and memory format: the milliseconds of a forward and of a backward pass in training by torch and by the
kernels, measured in turn (medians), the ratio of the two, and the bytes per second of the kernels, counting what must
move: forwards x twice, y and the residual once; backwards x and the gradient twice, the gradient of x once; with a
residual y once more and its gradient twice. Writes results/bench-normalisation.csv.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from table import write
from torch import Tensor

from dctps.base.machine import keep_memory
from dctps.ops.normalise import composed, normalise

SHAPES = [
    (128, 64, 32, 32),
    (128, 256, 32, 32),
    (128, 144, 32, 32),
    (128, 128, 16, 16),
    (128, 512, 8, 8),
    (128, 512, 4, 4),
    (128, 2048, 4, 4),
]
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
Operation = Callable[..., Tensor]


def passes(operation: Operation, x: Tensor, residual: Tensor | None, grad: Tensor) -> tuple[float, float]:
    """The seconds of one forward and of one backward pass."""
    channels = x.shape[1]
    weight, bias = torch.ones(channels, requires_grad=True), torch.zeros(channels, requires_grad=True)
    running = torch.zeros(channels), torch.ones(channels)
    inputs = [t for t in (x, weight, bias, residual) if t is not None]
    start = time.perf_counter()
    y = operation(x, weight, bias, *running, True, 0.1, 1e-5, "relu", residual)
    middle = time.perf_counter()
    torch.autograd.grad(y, inputs, grad)
    return middle - start, time.perf_counter() - middle


def measure(shape: tuple[int, ...], memory_format: str, has_residual: bool, repeats: int) -> list[list[object]]:
    """A row for the forward and one for the backward pass."""
    x, residual, grad = (torch.randn(shape).contiguous(memory_format=FORMATS[memory_format]) for _ in range(3))
    x.requires_grad_()
    added = residual.requires_grad_() if has_residual else None
    runs = {operation: list[tuple[float, float]]() for operation in (composed, normalise)}
    for operation in runs:
        passes(operation, x, added, grad)
    for _ in range(repeats):
        for operation, times in runs.items():
            times.append(passes(operation, x, added, grad))
    rows: list[list[object]] = []
    for index, (direction, moved) in enumerate((("forward", 3 + has_residual), ("backward", 5 + 2 * has_residual))):
        theirs, ours = (statistics.median(t[index] for t in times) for times in runs.values())
        rate = moved * x.nbytes / ours / 1e9
        cell = ["x".join(map(str, shape)), memory_format, has_residual, torch.get_num_threads(), direction]
        rows.append([*cell, f"{1e3 * theirs:.4g}", f"{1e3 * ours:.4g}", f"{theirs / ours:.3g}", f"{rate:.3g}"])
        print(*(str(value).ljust(14) for value in rows[-1]))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--no-file", action="store_true", help="print only")
    options = parser.parse_args()
    keep_memory()
    header = ["shape", "memory_format", "residual", "threads", "direction", "torch_ms", "ours_ms", "ratio", "gb_s"]
    print(*(name.ljust(14) for name in header))
    rows = [
        row
        for shape in SHAPES
        for memory_format in FORMATS
        for has_residual in (False, True)
        for row in measure(shape, memory_format, has_residual, options.repeats)
    ]
    if not options.no_file:
        write("normalisation", header, rows)


if __name__ == "__main__":
    main()
