"""What memory one RigL update needs beyond an ordinary backward pass: ResNet50 at 0.1 %, on this CPU.

    python benchmarks/rewiring_memory.py [--batch 32] [--offset dct]

Counts every allocation and release of torch during a forward and backward pass, as its profiler reports them, with and
without an update, and prints the difference of the peaks; the most that any layer's dense gradient had at work by
itself; and what numpy had beside it. The bound to compare with is the largest layer's dense gradient and a tenth more.
"""

import argparse
import bisect
import tracemalloc
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile, record_function

import dctps
from dctps.methods.rewiring.dense_gradient import Watch

MARK = "dense gradient"


class Peaks(NamedTuple):
    """Bytes."""

    whole: int  # of the pass, above its start
    own: int  # of any one layer's dense gradient, above its start; 0 without an update


def peaks(run: Callable[[], None]) -> Peaks:
    """Of torch's live bytes during a pass."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    times = [time for time, _ in changes]
    spans = [(e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if e.name() == MARK]
    own = [highest(changes[bisect.bisect_left(times, a) : bisect.bisect_right(times, b)]) for a, b in spans]
    return Peaks(highest(changes), max(own, default=0))


def highest(changes: list[tuple[int, int]]) -> int:
    live = peak = 0
    for _, bytes_more in changes:
        live += bytes_more
        peak = max(peak, live)
    return peak


def measure(batch: int, offset: str | None) -> dict[str, int]:
    torch.manual_seed(0)
    net = dctps.sparsify(dctps.models.build("resnet50"), 1e-3, offset=offset)
    rewire = dctps.RigL(net, torch.optim.Adam(net.parameters()), stop=1000, every=2)
    x, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    largest, numpy_peaks = Watch._largest, []

    def marked(watch: Watch, part_of: Callable[[slice], torch.Tensor]) -> object:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        with record_function(MARK):
            result = largest(watch, part_of)
        numpy_peaks.append(tracemalloc.get_traced_memory()[1] - before)
        return result

    def run() -> None:
        F.cross_entropy(net(x), labels).backward()

    found = {}
    Watch._largest = marked
    tracemalloc.start()
    try:
        for iteration in range(1, 5):  # the first two make caches and the optimiser's state
            rewire.zero_grad()
            found["update" if iteration % 2 == 0 else "ordinary"] = peaks(run)
            rewire.step()
    finally:
        Watch._largest = largest
        tracemalloc.stop()
    return {
        "ordinary": found["ordinary"].whole,
        "update": found["update"].whole,
        "extra": found["update"].whole - found["ordinary"].whole,
        "own": found["update"].own,
        "numpy": max(numpy_peaks),
        "bound": round(1.1 * 4 * max(layer.size for layer in dctps.report(net).layers)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--offset", default="dct")
    options = parser.parse_args()
    result = measure(options.batch, None if options.offset == "none" else options.offset)
    print(f"peak of a forward and backward pass: {result['ordinary']:>13,} bytes")
    print(f"with an update:                      {result['update']:>13,} bytes, {result['extra']:,} more")
    print(f"at work for one dense gradient:      {result['own']:>13,} bytes, and {result['numpy']:,} of numpy's")
    print(f"bound:                               {result['bound']:>13,} bytes")


if __name__ == "__main__":
    main()
