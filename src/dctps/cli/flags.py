"""Reading the flags of a command, which are the fields of a dataclass or the parameters of a function, by tyro.

Help is what a newcomer reads first, so it has to come at once: a file of a command imports at its top only what needs
no torch, and everything else inside the functions that use it. A test runs each help and looks.
"""

import inspect
import shutil
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

import tyro

T = TypeVar("T")
WIDEST = 100  # columns of a paragraph


def parse(flags: Callable[..., T], command: str, arguments: list[str], default: T | None = None) -> T:
    """Return the object that the arguments describe; for --help and for wrong flags the process ends.

    flags: a dataclass, or a function, which is called.
    default: the object whose values are kept where no flag changes them.
    """
    options: dict[str, Any] = {} if default is None else {"default": default}
    given: T = tyro.cli(flags, prog=f"dctps {command}", description=description(flags), args=arguments, **options)
    return given


def description(documented: Any) -> str:
    """Return a docstring as the help shows it: paragraphs filled to the width of the terminal, examples as they are.

    tyro joins a line to the one before if it begins with a letter. So all lines after the first are indented.
    """
    width = min(WIDEST, shutil.get_terminal_size().columns)
    text = inspect.cleandoc(documented.__doc__ or "").partition("\n\nArgs:")[0]
    first, *others = text.split("\n\n")
    return "\n\n".join([textwrap.fill(first, width, subsequent_indent="  "), *(_indented(p, width) for p in others)])


def _indented(paragraph: str, width: int) -> str:
    if paragraph.startswith(" "):
        return paragraph
    return textwrap.fill(paragraph, width, initial_indent="  ", subsequent_indent="  ")
