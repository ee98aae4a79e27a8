"""`dctps reproduce NAME`: a table or figure of the paper, from its runs to the picture."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from dctps.base.progress import counting_bar
from dctps.base.registry import lookup
from dctps.base.words import duration
from dctps.cli.sweep import Machines, Place, describe_outcome, exit_if_failed, run_missing
from dctps.experiments.cells import TRAIN, Cell, distinct
from dctps.experiments.engines import Local, default_local
from dctps.experiments.estimate import (
    difference,
    identity_of,
    measurement_file,
    needed_settings,
    read_measurement,
    total_seconds,
)
from dctps.experiments.paper import EXPERIMENTS
from dctps.experiments.perform import is_over
from dctps.experiments.results import read_cells
from dctps.experiments.scales import Scale
from dctps.experiments.sheet import sheet_rows, write_sheet
from dctps.experiments.tasks.training import EpochRow

BUSY = 1.5  # rounds of a measurement that differ by this factor were disturbed


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Reproduce a table or figure of the paper: execute the runs that are missing, then draw it."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = ""
    """Name of the table or figure. --list shows all names."""
    scale: Literal["paper", "laptop", "smoke"] = "laptop"
    """Size of the experiment: as in the paper, for an hour or two on two cores (laptop), or for a minute (smoke)."""
    list: bool = False
    """List all experiments with their runs, epochs, estimated hours on this machine, and how many runs are done.
    The hours come from a stored measurement."""
    measure: bool = False
    """Measure a training step of each network on this machine, which takes some minutes, store the times, and list."""
    densities: tuple[float, ...] = ()
    """Run only these densities of the experiment. Without this flag all densities are run."""
    lines: tuple[str, ...] = ()
    """Run only these methods of the experiment, by their names in the figure. Without this flag all are run."""
    panels: tuple[str, ...] = ()
    """Run only these panels of the experiment, by their names in the figure. Without this flag all are run."""
    only_draw: bool = False
    """Run nothing, and draw the results that there are."""
    out: Path = Path("results")
    """Folder of the tables (CSV) and figures (PNG, PDF), which show all results that there are."""
    machines: Annotated[Machines, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Machines)
    place: Annotated[Place, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Place)


def reproduce(arguments: list[str]) -> None:
    """Reproduce a table or figure of the paper, or list all of them."""
    given = tyro.cli(Arguments, prog="dctps reproduce", args=arguments)
    if given.list or given.measure or not given.name:
        _list(given)
        return
    experiment = lookup(EXPERIMENTS, given.name, "experiment")
    scale = experiment.scale(given.scale)
    cells = experiment.cells(scale)
    if given.only_draw:
        _draw(given, scale, cells)
        return
    outcome = run_missing(_asked_cells(cells, given), given.machines, given.place)
    if not given.place.quiet:
        print(describe_outcome(outcome))
    _draw(given, scale, cells)
    exit_if_failed(outcome)


def _asked_cells(cells: list[Cell], given: Arguments) -> list[Cell]:
    """The cells that the flags ask for; the dense network belongs to all densities."""
    filters: tuple[tuple[str, tuple[Any, ...], Callable[[Cell], Any]], ...] = (
        ("densities", given.densities, lambda cell: cell.settings.density),
        ("lines", given.lines, lambda cell: cell.line),
        ("panels", given.panels, lambda cell: cell.panel),
    )
    for flag, asked, value_of in filters:
        have = [value for value in dict.fromkeys(map(value_of, cells)) if value is not None]
        if unknown := [value for value in asked if value not in have]:
            raise ValueError(f"{flag} {unknown} are not in this experiment; there are: {have}")
        wanted = (None, *asked) if flag == "densities" else asked
        cells = [cell for cell in cells if not asked or value_of(cell) in wanted]
    return cells


def _draw(given: Arguments, scale: Scale, cells: list[Cell]) -> None:
    """Write the table of all results that there are, and draw the figure from it."""
    from dctps.analysis.figures.draw import draw

    results = read_cells(cells, given.place.runs)
    for broken in results.broken:
        print(f"left out: {broken}")
    given.out.mkdir(parents=True, exist_ok=True)
    kinds = {"": None, "-epochs": EpochRow} if EXPERIMENTS[given.name].learning else {"": None}
    for suffix, kind in kinds.items():
        lines = sheet_rows(given.name, scale.name, cells, results, kind)
        sheet = given.out / f"{given.name}-{scale.name}{suffix}.csv"
        write_sheet(lines, sheet)
        for path in (sheet, *draw(lines, given.out)):
            print(path)


# --- the list -------------------------------------------------------------------------------------------------------


def _list(given: Arguments) -> None:
    engine = default_local(given.machines.processes, given.machines.threads)
    cells = {name: distinct(each.cells(each.scale(given.scale))) for name, each in EXPERIMENTS.items()}
    if given.measure:
        _measure(cells, engine, given.place.quiet)
    seconds, words = _stored_seconds(given.scale, engine)
    table = Table("experiment", "in the paper", title=f"scale {given.scale}")
    for column in ("runs", "epochs", "hours", "done"):
        table.add_column(column, justify="right")
    for name, own in cells.items():
        epochs = sum(cell.settings.epochs for cell in own if cell.task == TRAIN)
        done = sum(is_over(cell.run(given.place.runs)) for cell in own)
        hours = _hours(total_seconds(own, seconds) / engine.processes) if seconds else "-"
        table.add_row(name, EXPERIMENTS[name].where, f"{len(own):,}", f"{epochs:,}", hours, f"{done}/{len(own)}")
    Console(highlight=False).print(table)
    print(words)


def _hours(seconds: float) -> str:
    if math.isnan(seconds):
        return "-"
    return f"{seconds / 3600:,.1f}" if seconds >= 360 else "< 0.1"


def _stored_seconds(scale: str, engine: Local) -> tuple[Mapping[str, float], str]:
    """The measurement that the hours are estimated from, and what to say of it."""
    stored, own = read_measurement(), identity_of(engine.processes, engine.threads)
    how = f"`dctps reproduce --list --measure --scale {scale}`"
    if stored is None:
        return {}, f"no hours: this machine has not been measured, which {how} does in some minutes"
    if unlike := difference(stored.identity, own):
        return {}, f"no hours: the stored measurement has {unlike}; {how} measures again, in some minutes"
    return stored.seconds, (
        f"hours: an estimate for {engine.processes} processes from the measurement of {stored.measured} "
        f"({_steadiness(stored.spread)}); {how} measures again"
    )


def _steadiness(spread: float) -> str:
    busy = ": the machine was busy" if spread >= BUSY else ""
    return f"its rounds differ by a factor of {spread:.1f}{busy}"


def _measure(cells: Mapping[str, Sequence[Cell]], engine: Local, quiet: bool) -> None:
    """Measure a step of each network at this scale, and store the times."""
    from dctps.experiments.step_times import ROUNDS, measure

    needed = needed_settings(itertools.chain.from_iterable(cells.values()))
    with counting_bar(disable=quiet) as bar:
        task = bar.add_task(f"measuring steps of {len(needed)} networks, {ROUNDS} rounds", total=ROUNDS * len(needed))
        measured = measure(needed, engine.processes, engine.threads, lambda: bar.advance(task))
    measured.store()
    if not quiet:
        print(f"measured in {duration(measured.took)}; the times are in {measurement_file()}")
