"""The command `dctps`: one file per subcommand, which is imported when it runs."""

import dataclasses
import os
import sys

from dctps.base.command_start import interruptible
from dctps.base.registry import unknown
from dctps.base.user_code import find_function

DESCRIPTION = "Dense for the price of sparse: layers W = alpha D + S with a fast transform D that is never stored."
BROKEN_PIPE = 141  # the exit code of a program that the signal SIGPIPE ended


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
        from dctps.cli.flags import parse

        parse(call, name, arguments)


COMMANDS: dict[str, Command] = {
    "demo": Command("Show the paper's main claim in a minute, on small images of digits.", "demo:demo", has_flags=True),
    "train": Command("Train a network by the paper's protocol, or go on where it stopped.", "train:train"),
    "finetune": Command("Fine-tune a pretrained network on images or texts, resumably.", "finetune:finetune"),
    "sweep": Command("Run a grid of trainings from a file, on this machine or a Ray cluster.", "sweep:run_sweep"),
    "reproduce": Command("Reproduce a table or figure of the paper.", "reproduce:reproduce"),
    "report": Command("Write one HTML page of all runs in a folder.", "report:report", has_flags=True),
    "data": Command("Download a data set: dctps data get NAME.", "data:data"),
    "bench": Command("Measure speed and memory on this machine: layers, whole steps, scaling.", "bench:bench"),
    "export": Command("Write a network as an ONNX file of kilobytes.", "export:export", has_flags=True),
    "inspect": Command("Show what is in a file that dctps.save wrote.", "inspect:inspect", has_flags=True),
}


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand and return the exit code. A mistake of the user is one line on standard error and code 2."""
    try:
        try:
            return _main(sys.argv[1:] if arguments is None else arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # whoever reads the output has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
        return BROKEN_PIPE


def _main(arguments: list[str]) -> int:
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name == "--version":
        import dctps

        print(f"dctps {dctps.__version__}")
        return 0
    if name not in COMMANDS:
        print(f"dctps: {unknown('command', name, COMMANDS)}", file=sys.stderr)
        return 2
    try:
        with interruptible():
            return _run(name, rest)
    except KeyboardInterrupt:  # also in the middle of imports
        print("dctps: interrupted", file=sys.stderr)
        return 130


def _run(name: str, arguments: list[str]) -> int:
    from dctps.train.signals import Interrupted

    try:
        COMMANDS[name].run(name, arguments)
    except BrokenPipeError:
        raise
    except Interrupted as stop:
        print(f"dctps: {stop}", file=sys.stderr)
        return stop.code
    except Exception as error:
        if not _is_mistake(error):
            raise
        print(f"dctps: {error}", file=sys.stderr)
        return 2
    return 0


def _is_mistake(error: Exception) -> bool:
    """Return whether an error is one of the user, whose message says everything, and not one of this program."""
    if isinstance(error, ValueError | OSError | ModuleNotFoundError):
        return True
    from dctps.checkpoint.contents import CheckpointError
    from dctps.methods.pruning.collapse import CollapseError
    from dctps.train.runs import RunError

    return isinstance(error, CheckpointError | RunError | CollapseError)


def _help() -> str:
    lines = [f"  {name:10}{command.help}" for name, command in COMMANDS.items()]
    last = ["dctps COMMAND --help says more. dctps --version prints the version. The first steps:", "", *FIRST_STEPS]
    return "\n".join(["usage: dctps COMMAND ...", "", DESCRIPTION, "", *lines, "", *last])


FIRST_STEPS = (
    "  dctps demo",
    "  dctps train --model small_cnn --data digits --density 0.01 --epochs 5",
    "  dctps report runs",
)
