"""How close the native kernels come to what this machine can do: multiply-adds and bytes per second.

    python benchmarks/roofline.py [--batch 128]

The ceilings are measured, not read off a data sheet: multiply-adds of a large float32 matrix product, bytes of a copy
between two tensors that no cache holds. For each layer the forward and the backward pass of the kernels alone, with
the multiply-adds that they perform and the bytes that must at least move (x and y once; backwards x, y and both
gradients). A share near 100 % of either ceiling is the end of the road. Writes
results/bench-roofline.csv.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from table import write

from dctps import Support, TransformOffset
from dctps.base.machine import keep_memory
from dctps.core.geometry import Geometry
from dctps.ops.route import layout_of
from dctps.ops.routes import choose

REPEATS = 9


class Layer(NamedTuple):
    """A convolution (filters, channels, kernel, stride, side of the input) with its offset and number of values."""

    filters: int
    channels: int
    kernel: int
    stride: int
    side: int
    nnz: int
    offset: str


LAYERS = [
    Layer(64, 64, 3, 1, 32, 1200, "none"),
    Layer(64, 64, 3, 1, 32, 12000, "none"),
    Layer(64, 64, 3, 1, 32, 1200, "dct"),
    Layer(64, 64, 3, 1, 32, 1200, "dct_signed"),
    Layer(64, 64, 3, 1, 32, 1200, "hadamard"),
    Layer(128, 64, 3, 2, 32, 1200, "dct"),
    Layer(128, 128, 3, 1, 16, 1200, "dct"),
    Layer(256, 256, 3, 1, 8, 1200, "dct"),
    Layer(512, 512, 3, 1, 4, 1200, "dct"),
    Layer(512, 512, 3, 1, 4, 1200, "none"),
    Layer(256, 64, 1, 1, 32, 434, "dct"),
    Layer(64, 256, 1, 1, 32, 434, "dct"),
    Layer(1024, 256, 1, 1, 8, 434, "dct"),
    Layer(2048, 512, 1, 1, 4, 434, "dct"),
]


def seconds(run: Callable[[], object]) -> float:
    run()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def ceilings() -> tuple[float, float]:
    """Multiply-adds and bytes per second: a product of 2048 x 2048 matrices, a copy of 256 MB."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    source, target = torch.randn(1 << 26), torch.empty(1 << 26)
    return 2048**3 / seconds(lambda: a @ b), 2 * source.nbytes / seconds(lambda: target.copy_(source))


def measure(layer: Layer, batch: int) -> list[tuple[str, float, int, int]]:
    """(direction, seconds, multiply-adds, bytes) of the forward and the backward pass."""
    shape = layer.filters, layer.channels, layer.kernel, layer.kernel
    geometry = Geometry(shape, (layer.stride,) * 2, (layer.kernel // 2,) * 2, (1, 1))
    x = torch.randn(batch, layer.channels, layer.side, layer.side).contiguous(memory_format=torch.channels_last)
    size = layer.side // layer.stride
    y = torch.randn(batch, layer.filters, size, size).contiguous(memory_format=torch.channels_last)
    positions, values = Support.sample(shape, layer.nnz, 0).positions, torch.randn(layer.nnz)
    offset = None if layer.offset == "none" else TransformOffset.parse(layer.offset).bind(shape)
    alpha = None if offset is None else torch.tensor(1.0)
    route = choose(offset, geometry, layout_of(x, y), "native", layer.nnz)
    args, needs = (x, values, positions, alpha), (True, True, alpha is not None)
    once = route.multiply_adds(x, layer.nnz)
    gradient = y.numel() // layer.filters * layer.nnz
    return [
        ("forward", seconds(lambda: route.forward(*args)), once, x.nbytes + y.nbytes),
        ("backward", seconds(lambda: route.backward(y, *args, needs)), once + gradient, 2 * x.nbytes + y.nbytes),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    keep_memory()
    peak, bandwidth = ceilings()
    print(f"ceilings: {peak / 1e9:.0f} G multiply-adds/s, {bandwidth / 1e9:.1f} GB/s")
    rows = []
    for layer in LAYERS:
        for direction, time_, macs, moved in measure(layer, options.batch):
            share = macs / time_ / peak, moved / time_ / bandwidth
            name = f"{layer.channels} -> {layer.filters}, {layer.kernel}x{layer.kernel}/{layer.stride}, {layer.side}px"
            print(
                f"{name:30} {layer.offset:11} nnz {layer.nnz:6} {direction:8} {1e3 * time_:7.2f} ms"
                f" {macs / time_ / 1e9:6.1f} G/s = {share[0]:4.0%} of peak,"
                f" {moved / time_ / 1e9:5.1f} GB/s = {share[1]:4.0%} of bandwidth"
            )
            rows.append([*layer, options.batch, torch.get_num_threads(), direction, f"{1e3 * time_:.4g}"])
            rows[-1] += [macs, moved, f"{macs / time_ / 1e9:.4g}", f"{moved / time_ / 1e9:.4g}"]
            rows[-1] += [f"{share[0]:.3f}", f"{share[1]:.3f}", f"{peak / 1e9:.4g}", f"{bandwidth / 1e9:.4g}"]
    header = "filters channels kernel stride side nnz offset batch threads direction ms macs bytes gmacs_s gb_s"
    write("roofline", [*header.split(), "of_peak", "of_bandwidth", "peak_gmacs_s", "bandwidth_gb_s"], rows)


if __name__ == "__main__":
    main()
