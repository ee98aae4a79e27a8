"""The command `dctps`: one file per subcommand, its flags generated from the arguments of a function."""

import sys
from collections.abc import Callable

import tyro

from dctps.checkpoint import CheckpointError
from dctps.cli.demo import demo
from dctps.cli.inspect import inspect

COMMANDS: dict[str, Callable[..., object]] = {"demo": demo, "inspect": inspect}


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand; what a user got wrong is one line on standard error and exit code 2."""
    try:
        tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="dctps", description=DESCRIPTION, args=arguments)
    except (CheckpointError, FileNotFoundError, PermissionError, ModuleNotFoundError) as error:
        print(f"dctps: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("dctps: interrupted", file=sys.stderr)
        return 130
    return 0


DESCRIPTION = (
    "Dense for the price of sparse: network layers W = alpha D + S with a fast transform D that is never stored."
)
