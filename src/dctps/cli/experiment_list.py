"""The list of `dctps reproduce --list`: all experiments, their runs, and the hours they take on this machine."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dctps.base.progress import counting_bar
from dctps.base.words import duration
from dctps.experiments.catalogue import EXPERIMENTS
from dctps.experiments.cells import TRAIN, Cell, distinct
from dctps.experiments.engines import Local
from dctps.experiments.estimate import (
    difference,
    identity_of,
    measurement_file,
    needed_settings,
    read_measurement,
    total_seconds,
)
from dctps.experiments.perform import is_over

BUSY = 1.5  # rounds of a measurement that differ by this factor were disturbed


def list_experiments(scale: str, runs: Path, engine: Local, *, renew: bool, quiet: bool) -> None:
    """Print all experiments at a scale; `runs` has those that are done, and `renew` measures this machine first."""
    cells = {name: distinct(each.cells(each.scale(scale))) for name, each in EXPERIMENTS.items()}
    if renew:
        _measure(cells, engine, quiet)
    seconds, words = _stored_seconds(scale, engine)
    table = Table("experiment", "in the paper", title=f"scale {scale}")
    for column in ("runs", "epochs", "hours", "done"):
        table.add_column(column, justify="right")
    for name, own in cells.items():
        epochs = sum(cell.settings.epochs for cell in own if cell.task == TRAIN)
        done = sum(is_over(cell.run(runs)) for cell in own)
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
