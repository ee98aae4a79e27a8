"""`dctps reproduce NAME`: a table or figure of the paper, from its runs to the picture."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table

from dctps.cli.sweep import Machines, Place, do, told
from dctps.experiments.cells import distinct
from dctps.experiments.estimate import Clock, total_seconds
from dctps.experiments.paper import EXPERIMENTS
from dctps.experiments.tasks import is_over
from dctps.registry import lookup


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Reproduce a table or figure of the paper: run what is missing, then draw it."""

    name: tyro.conf.Positional[str] = ""
    """Which; --list shows all."""
    scale: Literal["paper", "laptop", "smoke"] = "laptop"
    """paper: as published; laptop: reduced to about an hour on two cores; smoke: a minute, on digits."""
    list: bool = False
    """Show all experiments: runs, epochs, estimated hours on this machine, and how much is done."""
    only_draw: bool = False
    """Run nothing; draw what there is."""
    out: Path = Path("results")
    """Folder of the tables (CSV) and figures (PNG, PDF)."""
    machines: Annotated[Machines, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Machines)
    place: Annotated[Place, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Place)


def reproduce(arguments: list[str]) -> None:
    """Reproduce a table or figure of the paper: run what is missing, then draw it."""
    given = tyro.cli(Arguments, prog="dctps reproduce", args=arguments)
    if given.list or not given.name:
        _list(given)
        return
    experiment = lookup(EXPERIMENTS, given.name, "experiment")
    cells = experiment.cells(experiment.scale(given.scale))
    if not given.only_draw:
        outcome = do(cells, given.machines, given.place)
        if not given.place.quiet:
            print(told(outcome))
    _draw(given)


def _draw(given: Arguments) -> None:
    try:
        from dctps.analysis.figures import draw
    except ModuleNotFoundError:
        return
    for path in draw(given.name, given.scale, given.place.runs, given.out):
        print(path)


def _list(given: Arguments) -> None:
    clock, console = Clock(), Console(highlight=False)
    table = Table("experiment", "in the paper", title=f"scale {given.scale}; hours: a rough estimate for this machine")
    for column in ("runs", "epochs", "hours", "done"):
        table.add_column(column, justify="right")
    with console.status("measuring a step of each network"):
        for name, experiment in EXPERIMENTS.items():
            cells = distinct(experiment.cells(experiment.scale(given.scale)))
            epochs = sum(cell.settings.epochs for cell in cells if cell.task == "train")
            done = sum(is_over(cell.run(given.place.runs)) for cell in cells)
            hours = total_seconds(cells, clock) / 3600
            table.add_row(
                name, experiment.where, f"{len(cells):,}", f"{epochs:,}", f"{hours:,.1f}", f"{done}/{len(cells)}"
            )
    console.print(table)
