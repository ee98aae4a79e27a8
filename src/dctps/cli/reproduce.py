"""`dctps reproduce NAME`: a table or figure of the paper, from its runs to the picture."""

import dataclasses
import typing
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from dctps.base.extras import require
from dctps.base.registry import lookup
from dctps.cli.flags import parse
from dctps.cli.sweep import Machines, Place, describe_outcome, exit_if_failed, run_missing

if TYPE_CHECKING:
    from dctps.experiments.cells import Cell
    from dctps.experiments.scales import Scale
    from dctps.experiments.tasks.task import SheetRow


SCALES = Literal["paper", "laptop", "smoke"]


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Reproduce a table or figure of the paper: execute the runs that are missing, then draw it.

    dctps reproduce --list                    all tables and figures
    dctps reproduce lenet --scale smoke       Figure 1 in a minute, on digits, to see that everything works
    """

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = ""
    """Name of the table or figure:
    params, table1, lenet, resnet50-vgg19, mobilenet-fixup, jacobian, layer-counts, tiny-imagenet, epl-epf-counts,
    epl-epf, sgd, fixed-alpha, allocations, synflow-counts, offsets, longer, scale, scale-longer, places, bytes, vgg19,
    vgg19-longer, resnet18. --list says more. NAME-SCALE, as files are named, stands for both: vgg19-laptop."""
    scale: SCALES = "laptop"
    """Size of the experiment: as in the paper, for an hour or two on two cores (laptop), or for a minute (smoke)."""
    list: bool = False
    """List all experiments with their runs, epochs, estimated hours on this machine, and how many runs are done.
    The hours come from a stored measurement."""
    measure: bool = False
    """Measure a training step of each network on this machine, which takes some minutes, store the times, and list."""
    densities: tuple[float, ...] = ()
    """Run only these densities of the experiment. Without this flag all densities are run."""
    seeds: tuple[int, ...] = ()
    """Run only these seeds of the experiment. Without this flag all are run."""
    lines: tuple[str, ...] = ()
    """Run only these methods of the experiment, by their names in the figure. Without this flag all are run."""
    panels: tuple[str, ...] = ()
    """Run only these panels of the experiment, by their names in the figure. Without this flag all are run."""
    only_draw: bool = False
    """Run nothing, and draw the results that there are."""
    keep: bool = False
    """Keep the rows of the tables in --out whose runs are on another machine, and do not execute these runs again.
    Tables of other experiments count too, for the runs that they share with this one.
    Without this flag the table has the results of the folder of runs alone."""
    out: Path = Path("results")
    """Folder of the tables (CSV) and figures (PNG, PDF), which show all results that there are."""
    machines: Annotated[Machines, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Machines)
    place: Annotated[Place, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Place)


def reproduce(arguments: list[str]) -> None:
    """Reproduce a table or figure of the paper, or list all of them."""
    given = parse(Arguments, "reproduce", arguments)
    if given.list or given.measure or not given.name:
        from dctps.cli.experiment_list import list_experiments
        from dctps.experiments.engines import default_local

        engine = default_local(given.machines.processes, given.machines.threads)
        list_experiments(given.scale, given.place.runs, engine, renew=given.measure, quiet=given.place.quiet)
        return
    from dctps.analysis.figures.draw import TABLES
    from dctps.experiments.catalogue import EXPERIMENTS

    given = _split_name(given, EXPERIMENTS)
    experiment = lookup(EXPERIMENTS, given.name, "experiment")
    if experiment.kind not in TABLES:
        require("matplotlib", "a figure")  # before the runs, not after them
    scale = experiment.scale(given.scale)
    cells = experiment.cells(scale)
    if given.only_draw:
        _draw(given, scale, cells)
        return
    outcome = run_missing(_not_kept(_asked_cells(cells, given), given, scale), given.machines, given.place)
    if not given.place.quiet:
        print(describe_outcome(outcome))
    _draw(given, scale, cells)
    exit_if_failed(outcome)


def _split_name(given: Arguments, known: Collection[str]) -> Arguments:
    """The arguments with NAME-SCALE, which is how files are named, taken apart."""
    name, _, scale = given.name.rpartition("-")
    if given.name in known or name not in known or scale not in typing.get_args(SCALES):
        return given
    return dataclasses.replace(given, name=name, scale=scale)  # type: ignore[arg-type]


def _asked_cells(cells: list["Cell"], given: Arguments) -> list["Cell"]:
    """The cells that the flags ask for; the dense network belongs to all densities."""
    filters: tuple[tuple[str, tuple[Any, ...], Callable[[Cell], Any]], ...] = (
        ("densities", given.densities, lambda cell: cell.settings.density),
        ("seeds", given.seeds, lambda cell: cell.settings.seed),
        ("lines", given.lines, lambda cell: cell.line),
        ("panels", given.panels, lambda cell: cell.panel),
    )
    found = cells
    for flag, asked, value_of in filters:
        have = [value for value in dict.fromkeys(map(value_of, cells)) if value is not None]
        if unknown := [value for value in asked if value not in have]:
            raise ValueError(f"{flag} {unknown} are not in this experiment; there are: {have}")
        wanted = (None, *asked) if flag == "densities" else asked
        found = [cell for cell in found if not asked or value_of(cell) in wanted]
    return found


def _not_kept(cells: list["Cell"], given: Arguments, scale: "Scale") -> list["Cell"]:
    """The cells without those whose rows in the tables of --out are kept."""
    kept = {row.id for row in _kept_rows(cells, given, scale)}
    if given.keep and not given.place.quiet:
        print(f"kept, not executed: {len(kept)} runs of the tables in {given.out}")
    return [cell for cell in cells if cell.id not in kept]


def _kept_rows(cells: list["Cell"], given: Arguments, scale: "Scale", suffix: str = "") -> list["SheetRow"]:
    """The results of these cells in the tables of --out, if they are to be kept.

    The experiment's own table comes first, and then that of the experiment that shares the most runs with it.
    """
    from dctps.experiments.catalogue import EXPERIMENTS
    from dctps.experiments.sheet import results_of

    names, runs = EXPERIMENTS if given.keep else (), {cell.id for cell in cells}
    tables = {name: results_of(given.out / f"{name}-{scale.name}{suffix}.csv") for name in names}
    shared = {name: [row for row in rows if row.id in runs] for name, rows in tables.items()}
    order = sorted(shared, key=lambda name: (name != given.name, -len(shared[name])))
    return [row for name in order for row in shared[name]]


def _draw(given: Arguments, scale: "Scale", cells: list["Cell"]) -> None:
    """Write the table of all results that there are, and draw the figure from it."""
    from dctps.analysis.figures.draw import draw
    from dctps.experiments.catalogue import EXPERIMENTS
    from dctps.experiments.results import read_cells
    from dctps.experiments.sheet import sheet_rows, write_sheet
    from dctps.experiments.tasks.training import EpochRow

    results = read_cells(cells, given.place.runs)
    for broken in results.broken:
        print(f"left out: {broken}")
    given.out.mkdir(parents=True, exist_ok=True)
    kinds = {"": None, "-epochs": EpochRow} if EXPERIMENTS[given.name].learning else {"": None}
    for suffix, kind in kinds.items():
        sheet = given.out / f"{given.name}-{scale.name}{suffix}.csv"
        lines = sheet_rows(given.name, scale.name, cells, results, kind, _kept_rows(cells, given, scale, suffix))
        write_sheet(lines, sheet)
        for path in (sheet, *draw(lines, given.out)):
            print(path)
