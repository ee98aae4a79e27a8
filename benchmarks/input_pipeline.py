"""Augmented images per second that `Batches` makes on one thread: random crop, mirroring, normalisation.

    python benchmarks/input_pipeline.py [--count 50000] [--size 32] [--batch 128] [--seconds 3] [--step]

Writes results/bench-input-pipeline.csv: images per second of random images of the size of CIFAR's,
with and without augmentation and in both memory formats; the median of several runs.
"""

import argparse
import statistics
import time

import torch
from table import write

from dctps.data import Batches
from dctps.models import build

RUNS = 5


def images_per_second(batches: Batches, seconds: float) -> float:
    """One run: whole batches, epoch after epoch with the drawing at its start, until the time is over."""
    count, epoch, start = 0, 0, time.perf_counter()
    while True:
        for _, labels in batches.epoch(epoch):
            count += len(labels)
            elapsed = time.perf_counter() - start
            if elapsed > seconds:
                return count / elapsed
        epoch += 1


def measure(options: argparse.Namespace) -> list[tuple[bool, bool, int]]:
    images = torch.randint(256, (options.count, 3, options.size, options.size), dtype=torch.uint8)
    labels = torch.randint(10, (options.count,))
    rows = []
    for augmented in (True, False):
        for channels_last in (False, True):
            settings = {"padding": 4, "flip": True, "shuffle": True} if augmented else {}
            data = (images, labels, range(options.count), options.batch, (0.5,) * 3, (0.25,) * 3)
            batches = Batches(*data, channels_last=channels_last, **settings)
            speed = statistics.median(images_per_second(batches, options.seconds / RUNS) for _ in range(RUNS))
            rows.append((augmented, channels_last, round(speed)))
            print(f"augmented {augmented!s:>5}, channels_last {channels_last!s:>5}: {speed:>9,.0f} images/s")
    return rows


def resnet18_step(batch: int) -> float:
    """Seconds of one training step of the dense network with Adam: the median of three."""
    net = build("resnet18")
    optimiser = torch.optim.Adam(net.parameters())
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    times = []
    for _ in range(4):
        start = time.perf_counter()
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--step", action="store_true", help="also time a ResNet18 step, for the share of the input")
    options = parser.parse_args()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = measure(options)
    header = ["augmented", "channels_last", "images_per_s", "count", "size", "batch", "threads"]
    write("input-pipeline", header, [[*row, options.count, options.size, options.batch, 1] for row in rows])
    if options.step:
        torch.set_num_threads(threads)
        step = resnet18_step(options.batch)
        share = options.batch / rows[0][2] / step
        print(
            f"ResNet18 step, batch {options.batch}, {threads} threads: {step:.2f} s; its batch takes {share:.2%} of it"
        )
        write("input-share", ["batch", "threads", "step_s", "share"], [[options.batch, threads, round(step, 3), share]])


if __name__ == "__main__":
    main()
