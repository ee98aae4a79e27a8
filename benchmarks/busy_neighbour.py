"""Training steps of a network, dense and ours, alone and beside one other busy process, on this CPU.

    python benchmarks/busy_neighbour.py [--model vgg19] [--batch 128] [--spins default 10000 1000 passive]

The neighbour is a loop that does nothing but compute. For each way in which idle threads wait (--spins: a value of
GOMP_SPINCOUNT, `passive` for OMP_WAIT_POLICY=passive, or `default` for the OpenMP library's own), one process holds the
dense network and ours. OpenMP reads the setting when it is loaded, so each needs a process of its own; only one
computes at a time, in turn. It takes at least two cores to mean something. Writes results/bench-busy-neighbour.csv.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from table import write

from dctps.bench import against

SETTINGS = {"default": {}, "passive": {"OMP_WAIT_POLICY": "passive"}}  # else: GOMP_SPINCOUNT


@contextmanager
def neighbour(busy: bool) -> Iterator[None]:
    """A process that computes all the time, or none."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    try:
        time.sleep(0.2)
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def start(spins: str, task: dict[str, object]) -> against.Worker:
    """A process whose idle threads wait like this, with its networks ready."""
    plain = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    worker = against.Worker(sys.executable, spins, plain | SETTINGS.get(spins, {"GOMP_SPINCOUNT": spins}))
    worker.ask(json.dumps(task))
    return worker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vgg19")
    parser.add_argument("--density", type=float, default=1e-3)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--spins", nargs="+", default=["default", "10000", "1000", "passive"])
    options = parser.parse_args()
    task = {"model": options.model, "density": options.density, "batch": options.batch, "offset": "dct"}
    task |= {"inference": False, "input_shape": [3, 32, 32], "classes": 10, "width": None, "keep_memory": True}
    task |= {"threads": torch.get_num_threads()}
    contenders = ["dense/channels_last", "ours/channels_last"]
    workers = {spins: start(spins, task) for spins in options.spins}
    try:
        rows = []
        for busy in (False, True):
            with neighbour(busy):
                times = against.in_turn(
                    {(s, c): lambda s=s, c=c: workers[s].run(c) for s in workers for c in contenders},
                    options.steps,
                    warmup=2,
                    pause=against.SETTLE,
                )
            for (spins, contender), own in times.items():
                median, name = statistics.median(own.all), contender.partition("/")[0]
                beside = "busy" if busy else "alone"
                speed = 1e3 * options.batch / median
                print(f"{beside:5} spins {spins:8} {name:5} {median:8.1f} ms, {speed:7.1f} images/s")
                rows.append([options.model, options.density, options.batch, options.steps, beside, spins, name])
                rows[-1] += [f"{median:.5g}", f"{own.least:.5g}", f"{speed:.4g}"]
                rows[-1] += [os.cpu_count(), torch.get_num_threads()]
    finally:
        for worker in workers.values():
            worker.close()
    header = "model density batch steps neighbour spins contender median_ms min_ms images_s cores threads"
    write("busy-neighbour", header.split(), rows)


if __name__ == "__main__":
    main()
