"""Augmented images per second that `Batches` makes on one thread: random crop, mirroring, normalisation.

    python benchmarks/input_pipeline.py [--count 50000] [--size 32] [--batch 128] [--seconds 3]

Writes results/bench-input-pipeline-<cpu>-<torch>.csv: images per second of random images of the size of CIFAR's,
with and without augmentation and in both memory formats; the median of several runs.
"""

import argparse
import csv
import platform
import statistics
import subprocess
import time
from pathlib import Path

import torch

from dctps.data import Batches

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


def cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor() or platform.machine()


def commit() -> str:
    run = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return run.stdout.strip() or "unknown"


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    measured_on = commit()  # before the table, a tracked file, is written
    rows = measure(options)
    name = f"bench-input-pipeline-{cpu().replace(' ', '_')}-torch{torch.__version__.split('+')[0]}.csv"
    path = Path(__file__).parents[1] / "results" / name
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["augmented", "channels_last", "images_per_s", "count", "size", "batch", "threads", "commit"])
        writer.writerows([*row, options.count, options.size, options.batch, 1, measured_on] for row in rows)
    print(f"written: {path}")


if __name__ == "__main__":
    main()
