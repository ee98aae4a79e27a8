"""`dctps sweep FILE`: a grid of your own, from a JSON or TOML file."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from dctps.experiments.board import Board
from dctps.experiments.cells import Cell
from dctps.experiments.engines import Engine, default_local
from dctps.experiments.grids import read_grid
from dctps.experiments.perform import is_over
from dctps.experiments.sweep import Outcome, sweep
from dctps.train.settings import Runtime


@dataclasses.dataclass(frozen=True)
class Machines:
    """Where runs are done."""

    engine: Literal["local", "ray"] = "local"
    """local: processes of this machine; ray: a Ray cluster (needs the ray extra)."""
    processes: int | None = None
    """Of the local engine; None: as many as there are cores, at most eight."""
    threads: int | None = None
    """Threads of each process; None: its share of the cores."""
    address: str | None = None
    """Of a running Ray cluster; None starts one on this machine."""
    cpus: float = 1
    """Of a Ray cluster, for each run."""
    gpus: float = 0
    """Of a Ray cluster, for each run."""
    shared: bool = False
    """All nodes of the cluster see the folder of runs; otherwise results are sent back to this machine."""
    retry: bool = False
    """Also repeat runs that failed before. A method that collapsed is a result and is not repeated."""

    def build(self) -> Engine:
        if self.engine == "local":
            return default_local(self.processes, self.threads)
        from dctps.experiments.ray_engine import Ray

        return Ray(self.address, cpus=self.cpus, gpus=self.gpus, shared=self.shared, threads=self.threads)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where things are."""

    runs: Path = Path("runs")
    """Folder of the run folders."""
    data_root: Path | None = None
    """Folder of the data sets; default: $DCTPS_DATA, else the user's cache."""
    device: str = "auto"
    """cpu, cuda, mps, or auto: the best there is."""
    quiet: bool = False
    """No progress, only errors."""

    def runtime(self) -> Runtime:
        return Runtime(runs=self.runs.resolve(), data_root=self.data_root, device=self.device, quiet=True)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Run the missing cells of a grid. FILE has the settings of `dctps train`, lists where there are several:

    [settings]
    model = "lenet"
    data = "cifar10"
    density = [0.05, 0.01]
    seed = [0, 1, 2]
    """

    file: tyro.conf.Positional[Path]
    """The grid, as JSON or TOML."""
    machines: Annotated[Machines, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Machines)
    place: Annotated[Place, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Place)
    list: bool = False
    """Only say what there is to do."""


def run_sweep(arguments: list[str]) -> None:
    """Run a grid of your own (JSON or TOML), on this machine or a Ray cluster."""
    given = tyro.cli(Arguments, prog="dctps sweep", args=arguments)
    cells = read_grid(given.file)
    if given.list:
        _list(cells, given.place)
        return
    outcome = do(cells, given.machines, given.place)
    if not given.place.quiet:
        print(told(outcome))
        print(f"the page of all runs: dctps report {given.place.runs}")
    conclude(outcome)


def do(cells: list[Cell], machines: Machines, place: Place) -> Outcome:
    """Do what is missing, with a table of how far it is."""
    runtime, engine = place.runtime(), machines.build()
    with Board(cells, runtime.runs, place.quiet) as board:
        return sweep(cells, runtime, engine, board, retry=machines.retry)


def told(outcome: Outcome) -> str:
    """What became of a grid, with the reasons of what failed."""
    collapsed = f", {outcome.collapsed} collapsed" if outcome.collapsed else ""
    lines = [f"{outcome.done} runs done{collapsed}, {len(outcome.failed)} failed"]
    lines += [f"  {failure.name}: {failure.reason}" for failure in outcome.failed[:20]]
    return "\n".join(lines)


def conclude(outcome: Outcome) -> None:
    """Exit code 1 if runs failed, for scripts; a method that collapsed is a result and no failure."""
    if outcome.failed:
        print(f"dctps: {len(outcome.failed)} of {len(outcome.cells)} runs failed", file=sys.stderr)
        raise SystemExit(1)


def _list(cells: list[Cell], place: Place) -> None:
    over = [is_over(cell.run(place.runs)) for cell in cells]
    for cell, done in zip(cells, over, strict=True):
        print(f"{cell.id}  {'done   ' if done else 'missing'}  {cell.line}")
    print(f"{len(cells)} runs, {sum(over)} done")
