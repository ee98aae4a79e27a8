"""What `dctps bench` does once its flags are read: measure, show the table, write it and draw the figure."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from dctps.base.machine import flushed_denormals, keep_memory
from dctps.base.progress import counting_bar
from dctps.bench import against, figures, layers, limits, names, scaling, steps, tables
from dctps.bench.sheet import Sheet
from dctps.bench.stopwatch import check_counts
from dctps.cli.bench import LayersArguments, Machine, ScalingArguments, StepArguments
from dctps.ops import native

WIDE = 200  # columns of a table that is not on a terminal

# --- the subjects ---------------------------------------------------------------------------------------------------


def measure_layers(given: LayersArguments) -> None:
    """Measure the layers of a network one by one."""
    asked, console = given.asked, _console()
    asked.check()
    with _measuring(given.machine) as kept:
        cases = layers.find_cases(asked)
        rounds = len(cases) * (layers.WARMUP + asked.repeats)
        sheet = Sheet(names.layers_name(asked, given.machine.instruction_set), given.machine.out, kept)
        rows = _collect(console, sheet, rounds, lambda tick: layers.measure(asked, cases, tick))
    _finish(console, sheet, tables.layer_table(rows))
    if native.kernels is None:
        _say(console, native.WHY_NOT)


def measure_step(given: StepArguments) -> None:
    """Measure whole training steps or inferences."""
    asked, console = given.asked, _console()
    asked.check()
    say = functools.partial(_say, console)
    measured = asked if given.machine.instruction_set is None else limits.limited_steps(asked, say)
    if asked.against is not None:
        _measure_against(given, console)
        return
    with _measuring(given.machine) as kept:
        sheet = Sheet(names.step_name(asked, given.machine.instruction_set), given.machine.out, kept)
        rows = _collect(console, sheet, asked.rounds, lambda tick: steps.measure(measured, tick, say))
    _finish(console, sheet, tables.step_table(rows), lambda path: figures.step_figure(rows, path))
    _say(console, "memory: weights, gradients and Adam's two moments; peak: tensors that a step adds, at their most")


def _measure_against(given: StepArguments, console: Console) -> None:
    """Measure this version of dctps against another one."""
    asked = given.asked
    with _measuring(given.machine) as kept:
        sheet = Sheet(names.step_name(asked), given.machine.out, kept)
        _say(console, f"installing {asked.against} into a temporary folder")
        rows = _collect(console, sheet, asked.rounds, lambda tick: against.measure(asked, kept, tick))
    _finish(console, sheet, tables.against_table(rows))


def measure_scaling(given: ScalingArguments) -> None:
    """Measure one layer against its size and against its density."""
    asked, console = given.asked, _console()
    asked.check()
    with _measuring(given.machine) as kept:
        sheet = Sheet(names.scaling_name(asked, given.machine.instruction_set), given.machine.out, kept)
        rows = _collect(console, sheet, asked.rounds, lambda tick: scaling.measure(asked, tick))
    _finish(console, sheet, tables.scaling_table(rows), lambda path: figures.scaling_figure(rows, path))


# --- what they share ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _measuring(machine: Machine) -> Iterator[bool]:
    """The process as the trainer has it; says whether freed memory stays with it. Threads are set back at the end."""
    limits.check(machine.instruction_set)
    threads = torch.get_num_threads()
    if machine.threads is not None:
        check_counts(threads=machine.threads)
        torch.set_num_threads(machine.threads)
    kept = machine.keep_memory and keep_memory()
    try:
        with flushed_denormals(), torch.random.fork_rng(devices=[]):
            yield kept
    finally:
        torch.set_num_threads(threads)


Measure = Callable[[Callable[[], object]], Iterator[list[Any]]]


def _collect(console: Console, sheet: Sheet, rounds: int, measure: Measure) -> list[Any]:
    """All rows; each group of them is in the file before the next one is measured."""
    rows: list[Any] = []
    with counting_bar(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=rounds)
        try:
            for group in measure(lambda: progress.advance(task)):
                sheet.add(group)
                rows += group
                _tell(console, progress, task, group)
        except KeyboardInterrupt:
            _say(console, f"stopped; what was measured is in {sheet.path}" if rows else "stopped")
            raise
    return rows


def _tell(console: Console, progress: Progress, task: TaskID, group: list[Any]) -> None:
    """What was measured last: beside the bar on a terminal, as a line elsewhere."""
    text = ", ".join(f"{row.contender} {tables.milliseconds(row.median_ms)}" for row in group)
    if console.is_terminal:
        progress.update(task, description=group[0].cell)
    else:
        _say(console, f"{group[0].cell}: {text} ms")


def _finish(console: Console, sheet: Sheet, table: Table, draw: Callable[[Path], None] | None = None) -> None:
    console.print(table)
    if draw is not None and figures.available():
        sheet.draw(draw)
        _say(console, f"figure: {sheet.figure}")
    elif draw is not None:
        _say(console, figures.WHY_NOT)
    _say(console, f"table: {sheet.path}")


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)
