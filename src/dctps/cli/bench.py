"""`dctps bench`: speed and memory on this machine, against dense layers, the published formulation and SparseProp."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from dctps.base.machine import flushed_denormals, keep_memory
from dctps.base.progress import counting_bar
from dctps.base.registry import lookup
from dctps.bench import figures, layers, names, scaling, sparseprop, steps, tables
from dctps.bench.networks import NONE
from dctps.bench.sheet import Sheet
from dctps.bench.stopwatch import check_counts
from dctps.ops import native

WIDE = 200  # columns of a table that is not on a terminal


@dataclasses.dataclass(frozen=True)
class Machine:
    """How the process runs and where the results go."""

    out: Path = Path("results")
    """Folder of the table (CSV) and the figure (PNG, with matplotlib). Their name says what was measured; files of the
    same name are replaced."""
    threads: int | None = None
    """Threads of torch; None leaves torch's own choice."""
    keep_memory: bool = True
    """Keep freed memory with the process, as the trainer does."""


@dataclasses.dataclass(frozen=True)
class LayersArguments:
    __doc__ = layers.Layers.__doc__
    asked: Annotated[layers.Layers, tyro.conf.arg(name="")] = dataclasses.field(default_factory=layers.Layers)
    machine: Annotated[Machine, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Machine)


@dataclasses.dataclass(frozen=True)
class StepArguments:
    __doc__ = steps.Steps.__doc__
    asked: Annotated[steps.Steps, tyro.conf.arg(name="")] = dataclasses.field(default_factory=steps.Steps)
    machine: Annotated[Machine, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Machine)


@dataclasses.dataclass(frozen=True)
class ScalingArguments:
    __doc__ = scaling.Scaling.__doc__
    asked: Annotated[scaling.Scaling, tyro.conf.arg(name="")] = dataclasses.field(default_factory=scaling.Scaling)
    machine: Annotated[Machine, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Machine)


def bench(arguments: list[str]) -> None:
    """Measure speed and memory on this machine: layers, whole steps, scaling."""
    subject, *rest = arguments or ["--help"]
    if subject in ("-h", "--help"):
        print(HELP)
        raise SystemExit(0)
    lookup(SUBJECTS, subject, "subject")(rest)


HELP = """usage: dctps bench SUBJECT ...

Speed and memory on this machine. Everything that is compared runs in one process, in turn, so that whatever else the
machine does hits all alike; medians are reported, on the screen and as a table in results/. The name of the table says
what was measured, as bench-step-vgg19-dct-1e-3-b128.csv does; a later run with the same name replaces it.

  layers    the layers of a network one by one: torch's layer against each way ours can take
  step      whole training steps or inferences: dense, the published formulation, ours, SparseProp if installed
  scaling   one layer: time against its size and against its density

  dctps bench layers --model lenet                    seconds
  dctps bench step --models resnet18 --densities 1e-3 minutes

dctps bench SUBJECT --help says more."""


# --- the subjects ---------------------------------------------------------------------------------------------------


def _layers(arguments: list[str]) -> None:
    given = tyro.cli(LayersArguments, prog="dctps bench layers", args=arguments)
    asked, console = given.asked, _console()
    asked.check()
    with _measuring(given.machine) as kept:
        cases = layers.find_cases(asked)
        rounds = len(cases) * (layers.WARMUP + asked.repeats)
        sheet = Sheet(names.layers_name(asked), given.machine.out, kept)
        rows = _collect(console, sheet, rounds, lambda tick: layers.measure(asked, cases, tick))
    _finish(console, sheet, tables.layer_table(rows))
    if native.kernels is None:
        _say(console, native.WHY_NOT)


def _step(arguments: list[str]) -> None:
    given = tyro.cli(StepArguments, prog="dctps bench step", args=arguments)
    asked, console = given.asked, _console()
    asked.check()
    with _measuring(given.machine) as kept:
        sheet = Sheet(names.step_name(asked), given.machine.out, kept)
        if NONE in asked.offsets and sparseprop.why_not():
            _say(console, sparseprop.why_not())
        rows = _collect(console, sheet, asked.rounds, lambda tick: steps.measure(asked, tick))
    _finish(console, sheet, tables.step_table(rows), lambda path: figures.step_figure(rows, path))
    _say(console, "memory: weights, gradients and Adam's two moments")


def _scaling(arguments: list[str]) -> None:
    given = tyro.cli(ScalingArguments, prog="dctps bench scaling", args=arguments)
    asked, console = given.asked, _console()
    asked.check()
    with _measuring(given.machine) as kept:
        sheet = Sheet(names.scaling_name(asked), given.machine.out, kept)
        rows = _collect(console, sheet, asked.rounds, lambda tick: scaling.measure(asked, tick))
    _finish(console, sheet, tables.scaling_table(rows), lambda path: figures.scaling_figure(rows, path))


SUBJECTS: dict[str, Callable[[list[str]], None]] = {"layers": _layers, "step": _step, "scaling": _scaling}


# --- what they share ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _measuring(machine: Machine) -> Iterator[bool]:
    """The process as the trainer has it; says whether freed memory stays with it. Threads are set back at the end."""
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
