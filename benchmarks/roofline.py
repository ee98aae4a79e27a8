"""How close the native kernels come to what this machine can do: multiply-adds and bytes per second.

    python benchmarks/roofline.py [--batch 128]

The ceilings are measured, not read off a data sheet. The peak is the most multiply-adds per second that were seen in a
large float32 matrix product, in a convolution of torch or in any of the kernels: the libraries of torch do not use the
widest vectors of every processor. The bandwidth is that of a copy between two tensors that no cache holds.

For each layer the forward and the backward pass of the kernels alone are measured, with the multiply-adds that they
perform and the bytes that must at least move (x and y once; backwards x, y and both gradients). What bounds a kernel is
the ceiling that would take longer for this work alone, and `of_bound` is the share of that ceiling which it reaches;
near 100 % is the end of the road. Every native route is among the layers. Writes results/bench-roofline.csv.
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
    groups: int = 1


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
    Layer(64, 3, 3, 1, 32, 200, "dct"),
    Layer(192, 192, 3, 1, 32, 200, "dct", groups=192),
    Layer(64, 64, 1, 1, 32, 100, "dct"),
    Layer(32, 32, 1, 1, 32, 200, "dct"),
    Layer(256, 256, 1, 1, 8, 434, "hadamard"),
    Layer(4096, 4096, 1, 1, 1, 1678, "dct"),
]
ROUTES = {"sparse", "filters", "depthwise", "pixels", "matrix", "line", "spectrum", "product", "hadamard"}  # all native


def seconds(run: Callable[[], object]) -> float:
    run()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def ceilings() -> tuple[float, float]:
    """Multiply-adds per second of the faster of torch's products and its convolutions; bytes per second of a copy.

    The matrices are 2048 x 2048, the convolution is 256 -> 256, 3x3, 32px, the copy has 256 MB. On some processors the
    library of the products does not use the widest vectors, and that of the convolutions does.
    """
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    x = torch.randn(8, 256, 32, 32).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(256, 256, 3, 3).contiguous(memory_format=torch.channels_last)
    product = 2048**3 / seconds(lambda: a @ b)
    convolution = 8 * 32 * 32 * weight.numel() / seconds(lambda: torch.conv2d(x, weight, padding=1))
    source, target = torch.randn(1 << 26), torch.empty(1 << 26)
    return max(product, convolution), 2 * source.nbytes / seconds(lambda: target.copy_(source))


def measure(layer: Layer, batch: int) -> list[tuple[str, str, float, int, int]]:
    """(route, direction, seconds, multiply-adds, bytes) of the forward and the backward pass."""
    shape = layer.filters, layer.channels // layer.groups, layer.kernel, layer.kernel
    geometry = Geometry(shape, (layer.stride,) * 2, (layer.kernel // 2,) * 2, (1, 1), layer.groups)
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
        (route.name, "forward", seconds(lambda: route.forward(*args)), once, x.nbytes + y.nbytes),
        (
            *(route.name, "backward", seconds(lambda: route.backward(y, *args, needs))),
            *(once + gradient, 2 * x.nbytes + y.nbytes),
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    keep_memory()
    peak, bandwidth = ceilings()
    measured = [(layer, *row) for layer in LAYERS for row in measure(layer, options.batch)]
    peak = max(peak, *(macs / time_ for *_, time_, macs, _ in measured))
    print(f"ceilings: {peak / 1e9:.0f} G multiply-adds/s, {bandwidth / 1e9:.1f} GB/s")
    rows = []
    for layer, route, direction, time_, macs, moved in measured:
        share = macs / time_ / peak, moved / time_ / bandwidth
        bound = "peak" if share[0] > share[1] else "bandwidth"  # the ceiling that would take longer is the nearer one
        name = f"{layer.channels} -> {layer.filters}, {layer.kernel}x{layer.kernel}/{layer.stride}, {layer.side}px"
        print(
            f"{name:30} {layer.offset:11} nnz {layer.nnz:6} {route:9} {direction:8} {1e3 * time_:7.2f} ms"
            f" {macs / time_ / 1e9:6.1f} G/s, {moved / time_ / 1e9:5.1f} GB/s: {max(share):4.0%} of the {bound}"
        )
        rows.append([*layer, route, options.batch, torch.get_num_threads(), direction, f"{1e3 * time_:.4g}"])
        rows[-1] += [macs, moved, f"{macs / time_ / 1e9:.4g}", f"{moved / time_ / 1e9:.4g}"]
        rows[-1] += [f"{share[0]:.3f}", f"{share[1]:.3f}", bound, f"{max(share):.3f}"]
        rows[-1] += [f"{peak / 1e9:.4g}", f"{bandwidth / 1e9:.4g}"]
    print(f"routes without a layer here: {', '.join(ROUTES - {row[8] for row in rows}) or 'none'}")
    header = "filters channels kernel stride side nnz offset groups route batch threads direction ms macs bytes gmacs_s"
    shares = "gb_s of_peak of_bandwidth bound of_bound peak_gmacs_s bandwidth_gb_s"
    write("roofline", [*header.split(), *shares.split()], rows)


if __name__ == "__main__":
    main()
