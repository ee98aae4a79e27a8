"""`dctps sweep FILE`: a grid of trainings of your own, from a JSON or TOML file."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from dctps.base.extras import require
from dctps.base.words import printable
from dctps.cli.flags import parse
from dctps.train.settings import Runtime

if TYPE_CHECKING:
    from dctps.experiments.cells import Cell
    from dctps.experiments.engines import Engine
    from dctps.experiments.sweep import Outcome


@dataclasses.dataclass(frozen=True)
class Machines:
    """Which machines execute the runs, and how many at once."""

    engine: Literal["local", "ray"] = "local"
    """Where runs are executed: by processes of this machine, or on a Ray cluster (needs the ray extra)."""
    processes: int | None = None
    """Number of processes of the local engine. None starts one for each core, but at most eight."""
    threads: int | None = None
    """Number of threads of each run. None shares the cores of this machine out, or takes the CPUs of a run on Ray."""
    address: str | None = None
    """Address of a running Ray cluster. None starts a cluster on this machine."""
    cpus: float = 1
    """Number of CPUs that each run takes of a Ray cluster."""
    gpus: float = 0
    """Number of GPUs that each run takes of a Ray cluster."""
    shared: bool = False
    """All nodes of the Ray cluster see the folder of runs. Otherwise results are sent back to this machine."""
    retry: bool = False
    """Also repeat the runs that failed before. A pruning method that collapsed is a result and is not repeated."""

    def build(self) -> "Engine":
        """The engine that these flags ask for."""
        if self.engine == "local":
            from dctps.experiments.engines import default_local

            return default_local(self.processes, self.threads)
        require("ray", "a sweep on a cluster")
        from dctps.experiments.ray_engine import Ray

        return Ray(self.address, cpus=self.cpus, gpus=self.gpus, shared=self.shared, threads=self.threads)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where runs and data are, and on which device runs compute."""

    runs: Path = Path("runs")
    """Folder in which every run has a folder of its own."""
    data_root: Path | None = None
    """Folder of the data sets. None takes $DCTPS_DATA if it is set, else ~/.cache/dctps."""
    device: str = "auto"
    """Device that computes: cpu, cuda, mps, or auto for the best there is."""
    quiet: bool = False
    """Print errors only, and no progress."""

    def runtime(self) -> Runtime:
        """The runtime of the runs, which say nothing themselves."""
        return Runtime(runs=self.runs.resolve(), data_root=self.data_root, device=self.device, quiet=True)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Run the trainings of a grid that are not finished yet.

    FILE has the settings of `dctps train` under [settings], with a list where there are several values. All
    combinations of the values are run. Optional [[lines]] are variants by name. This grid.toml has eight runs:

      [settings]
      model = "small_cnn"
      data = "digits"
      epochs = 5
      density = [0.05, 0.01]
      seed = [0, 1]

      [[lines]]
      name = "DCTpS"

      [[lines]]
      name = "Random"
      offset = "none"

    The same command goes on where a sweep stopped.

      dctps sweep grid.toml --list
      dctps sweep grid.toml
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """File of the grid, in JSON or TOML."""
    machines: Annotated[Machines, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Machines)
    place: Annotated[Place, tyro.conf.arg(name="")] = dataclasses.field(default_factory=Place)
    list: bool = False
    """Only list the runs of the grid, and say which of them are done."""


def run_sweep(arguments: list[str]) -> None:
    """Run the trainings of a grid, or list them."""
    given = parse(Arguments, "sweep", arguments)
    from dctps.experiments.grids import read_grid

    cells = read_grid(given.file)
    if given.list:
        _list(cells, given.place)
        return
    outcome = run_missing(cells, given.machines, given.place)
    if not given.place.quiet:
        print(describe_outcome(outcome))
        print(f"the page of all runs: dctps report {given.place.runs}")
    exit_if_failed(outcome)


def run_missing(cells: list["Cell"], machines: Machines, place: Place) -> "Outcome":
    """Run the cells that are not over, with a table that shows how far they are.

    What is known to be wrong with one of them is an error before the first of them is run.
    """
    from dctps.experiments.board import Board
    from dctps.experiments.perform import is_over
    from dctps.experiments.sweep import sweep
    from dctps.train.beforehand import check_beforehand

    runtime, engine = place.runtime(), machines.build()
    for cell in cells:
        if not is_over(cell.run(runtime.runs)):
            check_beforehand(cell.settings, runtime)
    with Board(cells, runtime.runs, place.quiet) as board:
        return sweep(cells, runtime, engine, board, retry=machines.retry)


def describe_outcome(outcome: "Outcome") -> str:
    """How many runs are done, collapsed and failed, and why the first of them failed."""
    collapsed = f", {outcome.collapsed} collapsed" if outcome.collapsed else ""
    lines = [f"{outcome.done} runs done{collapsed}, {len(outcome.failed)} failed"]
    lines += [f"  {failure.name}: {failure.reason}" for failure in outcome.failed[:20]]
    return "\n".join(lines)


def exit_if_failed(outcome: "Outcome") -> None:
    """Exit with code 1 if runs failed, so that scripts see it; a method that collapsed is a result and no failure."""
    if outcome.failed:
        failed = f"{len(outcome.failed)} of {len(outcome.cells)} runs failed"
        hint = "when the cause is mended, run them again by the same command with --retry"
        print(f"dctps: {failed}; {hint}", file=sys.stderr)
        raise SystemExit(1)


def _list(cells: list["Cell"], place: Place) -> None:
    from dctps.experiments.perform import is_over

    over = [is_over(cell.run(place.runs)) for cell in cells]
    for cell, done in zip(cells, over, strict=True):
        print(f"{cell.id}  {'done   ' if done else 'missing'}  {printable(cell.line)}")
    print(f"{len(cells)} runs, {sum(over)} done")
