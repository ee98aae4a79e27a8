"""`dctps reproduce NAME`: a table or figure of the paper, from its runs to the picture."""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from dctps.analysis.figures.draw import draw
from dctps.base.registry import lookup
from dctps.cli.sweep import Machines, Place, conclude, do, told
from dctps.experiments.cells import Cell, distinct
from dctps.experiments.estimate import Clock, total_seconds
from dctps.experiments.paper import EXPERIMENTS
from dctps.experiments.perform import is_over
from dctps.experiments.results import read_cells
from dctps.experiments.scales import Scale
from dctps.experiments.sheet import sheet_rows, write_sheet
from dctps.experiments.tasks.training import EpochRow


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Reproduce a table or figure of the paper: run what is missing, then draw it."""

    name: tyro.conf.Positional[str] = ""
    """Which; --list shows all."""
    scale: Literal["paper", "laptop", "smoke"] = "laptop"
    """paper: as published; laptop: reduced to an hour or two on two cores; smoke: a minute, on digits."""
    list: bool = False
    """Show all experiments: runs, epochs, estimated hours on this machine, and how much is done."""
    densities: tuple[float, ...] = ()
    """Run these of its densities only, and draw what there is of all; none given: all."""
    lines: tuple[str, ...] = ()
    """Run these of its methods only, by their names in the figure; none given: all."""
    panels: tuple[str, ...] = ()
    """Run these of its panels only, by their names in the figure; none given: all."""
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
    scale = experiment.scale(given.scale)
    cells = experiment.cells(scale)
    if given.only_draw:
        _draw(given, scale, cells)
        return
    outcome = do(_part(cells, given), given.machines, given.place)
    if not given.place.quiet:
        print(told(outcome))
    _draw(given, scale, cells)
    conclude(outcome)


def _part(cells: list[Cell], given: Arguments) -> list[Cell]:
    """The cells that are asked for; the dense network belongs to all densities."""
    parts: tuple[tuple[str, tuple[Any, ...], Callable[[Cell], Any]], ...] = (
        ("densities", given.densities, lambda cell: cell.settings.density),
        ("lines", given.lines, lambda cell: cell.line),
        ("panels", given.panels, lambda cell: cell.panel),
    )
    for what, asked, of in parts:
        have = _distinct(map(of, cells))
        if unknown := [one for one in asked if one not in have]:
            raise ValueError(f"{what} {unknown} are not in this experiment; there are: {have}")
        wanted = (None, *asked) if what == "densities" else asked
        cells = [cell for cell in cells if not asked or of(cell) in wanted]
    return cells


def _distinct(values: Iterable[Any]) -> list[Any]:
    return [value for value in dict.fromkeys(values) if value is not None]


def _draw(given: Arguments, scale: Scale, cells: list[Cell]) -> None:
    """The table of what there is, and the figure from it."""
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
