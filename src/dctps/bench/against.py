"""`dctps bench step --against`: whole steps of two versions of dctps.

Each version has a process of its own, which holds its networks and runs one step when it is asked. Both are alive all
the time, and only one computes at a time, in turn. The dense network takes part in both: its ratio says how far two
processes that compute the same differ.
"""

import contextlib
import dataclasses
import functools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from dctps.base.words import percent
from dctps.bench import versions
from dctps.bench.stopwatch import SETTLE, Times, in_turn
from dctps.bench.subjects import StepCell as Cell
from dctps.bench.subjects import Steps

WORKER = Path(__file__).with_name("version_worker.py")


@dataclasses.dataclass(frozen=True)
class AgainstRow:
    """A contender in one cell, each version in the faster of its memory formats."""

    model: str
    density: float
    offset: str
    width: int | None
    batch: int
    mode: str
    steps: int
    contender: str
    other_version: str
    median_ms: float  # of this version
    other_ms: float
    ratio: float  # of the medians; above 1: this version is faster
    least_ratio: float  # the least and the largest ratio of two steps that were taken one after the other
    largest_ratio: float

    @property
    def cell(self) -> str:
        width = "" if self.width is None else f" of width {self.width}"
        return f"{self.model}{width}, {percent(self.density)}, {self.offset}"


class Worker:
    """A process that runs steps of one version."""

    def __init__(self, python: str, name: str, variables: Mapping[str, str] = os.environ) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [python, "-P", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**variables, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        )

    def ask(self, line: str) -> str:
        """Its answer to a line; ValueError if it has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
            if answer := self.process.stdout.readline():
                return answer
        said = [text for text in self.process.communicate()[1].splitlines() if text.strip()]
        raise ValueError(f"{self.name} cannot be measured: {said[-1] if said else 'its process has ended'}")

    def run(self, name: str) -> float:
        """The milliseconds of one step of a network."""
        return float(self.ask(name))

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def measure(asked: Steps, keep_memory: bool, tick: Callable[[], object] = lambda: None) -> Iterator[list[AgainstRow]]:
    """The rows of each cell, as soon as they are known."""
    asked.check()
    assert asked.against is not None
    with versions.installed(asked.against) as other:
        for cell in asked.cells:
            workers = {"this": Worker(sys.executable, "this version")}
            workers["other"] = Worker(other.python, other.name, versions.variables())
            try:
                yield _measure_cell(asked, cell, workers, other.name, keep_memory, tick)
            finally:
                for worker in workers.values():
                    worker.close()


def _measure_cell(
    asked: Steps, cell: Cell, workers: Mapping[str, Worker], other: str, keep_memory: bool, tick: Callable[[], object]
) -> list[AgainstRow]:
    fields = ("batch", "inference", "input_shape", "classes", "width")
    task = cell._asdict() | {field: getattr(asked, field) for field in fields}
    task |= {"threads": torch.get_num_threads(), "keep_memory": keep_memory}
    names = {which: json.loads(worker.ask(json.dumps(task)))["names"] for which, worker in workers.items()}
    runs = {(which, name): functools.partial(workers[which].run, name) for name in names["this"] for which in workers}
    return rows(asked, cell, other, in_turn(runs, asked.steps, asked.warmup, tick, SETTLE))


def rows(asked: Steps, cell: Cell, other: str, times: Mapping[tuple[str, str], Times]) -> list[AgainstRow]:
    """One row per contender, from the times by (this or other, contender/memory format)."""
    found = []
    for contender in dict.fromkeys(name.partition("/")[0] for _, name in times):
        both = [_fastest(times, which, contender) for which in ("this", "other")]
        this_ms, other_ms = (own.median for own in both)
        ratios = [theirs / ours for ours, theirs in zip(both[0].all, both[1].all, strict=True)]
        found.append(
            AgainstRow(
                **cell._asdict(),
                width=asked.width,
                batch=asked.batch,
                mode="inference" if asked.inference else "training",
                steps=asked.steps,
                contender=contender,
                other_version=other,
                median_ms=this_ms,
                other_ms=other_ms,
                ratio=other_ms / this_ms,
                least_ratio=min(ratios),
                largest_ratio=max(ratios),
            )
        )
    return found


def _fastest(times: Mapping[tuple[str, str], Times], which: str, contender: str) -> Times:
    """The times in the memory format with the least median."""
    own = [t for (version, name), t in times.items() if version == which and name.partition("/")[0] == contender]
    return min(own, key=lambda t: statistics.median(t.all))
