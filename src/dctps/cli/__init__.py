"""The command `dctps`: one file per subcommand, its flags generated from a function or a dataclass."""

import sys
from collections.abc import Callable

import tyro

from dctps.checkpoint.contents import CheckpointError
from dctps.cli.bench import bench
from dctps.cli.data import data_get
from dctps.cli.demo import demo
from dctps.cli.inspect import inspect
from dctps.cli.report import report
from dctps.cli.reproduce import reproduce
from dctps.cli.sweep import run_sweep
from dctps.cli.train import train
from dctps.methods.pruning.prune import CollapseError
from dctps.train.runs import RunError
from dctps.train.signals import Interrupted

Command = Callable[[list[str]], object]


def _from(function: Callable[..., object], prog: str) -> Command:
    def run(arguments: list[str]) -> object:
        return tyro.cli(function, prog=f"dctps {prog}", args=arguments)

    run.__doc__ = function.__doc__
    return run


def _data(arguments: list[str]) -> object:
    """Get a data set: dctps data get NAME."""
    if arguments[:1] != ["get"]:
        print("usage: dctps data get NAME [--root PATH]; dctps data get --help says more")
        raise SystemExit(0 if arguments in ([], ["-h"], ["--help"]) else 2)
    return _from(data_get, "data get")(arguments[1:])


COMMANDS: dict[str, Command] = {
    "demo": _from(demo, "demo"),
    "train": train,
    "sweep": run_sweep,
    "reproduce": reproduce,
    "report": _from(report, "report"),
    "data": _data,
    "bench": bench,
    "inspect": _from(inspect, "inspect"),
}


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand; what a user got wrong is one line on standard error and exit code 2."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name not in COMMANDS:
        print(f"dctps: unknown command {name!r}; choose one of: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        COMMANDS[name](rest)
    except Interrupted as stop:
        print(f"dctps: {stop}", file=sys.stderr)
        return stop.code
    except (CheckpointError, RunError, CollapseError, ValueError, OSError, ModuleNotFoundError) as error:
        print(f"dctps: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("dctps: interrupted", file=sys.stderr)
        return 130
    return 0


def _help() -> str:
    lines = [f"  {name:10}{(run.__doc__ or '').strip().splitlines()[0]}" for name, run in COMMANDS.items()]
    return "\n".join(["usage: dctps COMMAND ...", "", DESCRIPTION, "", *lines, "", "dctps COMMAND --help says more."])


DESCRIPTION = "Dense for the price of sparse: layers W = alpha D + S with a fast transform D that is never stored."
