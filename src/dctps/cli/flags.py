"""Reading the flags of a command, which are the fields of a dataclass or the parameters of a function, by tyro.

Help is what a newcomer reads first, so it has to come at once: a file of a command imports at its top only what needs
no torch, and everything else inside the functions that use it. A test runs each help and looks.
"""

import contextlib
import inspect
import io
import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

import tyro

T = TypeVar("T")
WIDEST = 100  # columns of a paragraph
HERE = "<description>"  # stands for the description in a page of help


def parse(flags: Callable[..., T], command: str, arguments: list[str], default: T | None = None) -> T:
    """Return the object that the arguments describe; for --help and for wrong flags the process ends.

    flags: a dataclass, or a function, which is called.
    default: the object whose values are kept where no flag changes them.
    """
    options: dict[str, Any] = {} if default is None else {"default": default}
    options |= {"prog": _program(command, arguments), "description": HERE, "args": arguments}
    page = _Page(io.BytesIO(), encoding=sys.stdout.encoding)  # tyro draws boxes if the encoding has them
    wants_help = not {"-h", "--help"}.isdisjoint(arguments)
    try:
        with contextlib.redirect_stdout(page) if wants_help else contextlib.nullcontext():
            given: T = tyro.cli(flags, **options)
    finally:  # help ends in SystemExit
        page.seek(0)
        print(page.read().replace(HERE, description(flags)), end="")
    return given


def _program(command: str, arguments: list[str]) -> str:
    """Return the name of the program: in a completion one word, because shells complete words, not subcommands."""
    completes = any(
        argument.startswith(("--tyro-print-completion", "--tyro-write-completion")) for argument in arguments
    )
    return f"dctps{'-' if completes else ' '}{command}"


class _Page(io.TextIOWrapper):
    """A page of help, kept to put in the description as it is: tyro would join the lines of a paragraph."""

    def isatty(self) -> bool:
        return sys.__stdout__ is not None and sys.__stdout__.isatty()  # pages on a terminal have colours


def description(documented: Any) -> str:
    """Return a docstring as the help shows it: paragraphs filled to the width of the terminal, examples as they are."""
    width = min(WIDEST, shutil.get_terminal_size().columns)
    text = inspect.cleandoc(documented.__doc__ or "").partition("\n\nArgs:")[0]
    return "\n\n".join(p if p.startswith(" ") else textwrap.fill(p, width) for p in text.split("\n\n"))
