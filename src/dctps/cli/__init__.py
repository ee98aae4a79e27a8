"""The command `dctps`: one file per subcommand, which is imported when it runs."""

import dataclasses
import sys

from dctps.base.user_code import find_function

DESCRIPTION = "Dense for the price of sparse: layers W = alpha D + S with a fast transform D that is never stored."


@dataclasses.dataclass(frozen=True)
class Command:
    """A subcommand: what it does, in one line, and the function that does it."""

    help: str
    function: str  # module of this package:function
    has_flags: bool = False  # the parameters of the function are the flags; else it takes the list of arguments

    def run(self, name: str, arguments: list[str]) -> None:
        """Import the function and call it."""
        call = find_function(f"{__name__}.{self.function}")
        if not self.has_flags:
            call(arguments)
            return
        import tyro

        tyro.cli(call, prog=f"dctps {name}", args=arguments)


COMMANDS: dict[str, Command] = {
    "demo": Command("Show the paper's main claim in a minute, on small images of digits.", "demo:demo", has_flags=True),
    "train": Command("Train a network by the paper's protocol, or go on where it stopped.", "train:train"),
    "sweep": Command("Run a grid of trainings from a file, on this machine or a Ray cluster.", "sweep:run_sweep"),
    "reproduce": Command("Reproduce a table or figure of the paper.", "reproduce:reproduce"),
    "report": Command("Write one HTML page of all runs in a folder.", "report:report", has_flags=True),
    "data": Command("Download a data set: dctps data get NAME.", "data:data"),
    "bench": Command("Measure speed and memory on this machine: layers, whole steps, scaling.", "bench:bench"),
    "inspect": Command("Show what is in a file that dctps.save wrote.", "inspect:inspect", has_flags=True),
}


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand and return the exit code. A mistake of the user is one line on standard error and code 2."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name not in COMMANDS:
        print(f"dctps: unknown command {name!r}; choose one of: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    return _run(name, rest)


def _run(name: str, arguments: list[str]) -> int:
    from dctps.checkpoint.contents import CheckpointError
    from dctps.methods.pruning.collapse import CollapseError
    from dctps.train.runs import RunError
    from dctps.train.signals import Interrupted

    try:
        COMMANDS[name].run(name, arguments)
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
    lines = [f"  {name:10}{command.help}" for name, command in COMMANDS.items()]
    return "\n".join(["usage: dctps COMMAND ...", "", DESCRIPTION, "", *lines, "", "dctps COMMAND --help says more."])
