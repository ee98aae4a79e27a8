"""Networks and data of the user, named as package.module:function and found as `python -m` would find them."""

import contextlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def names_function(name: str) -> bool:
    """Return whether a name means a function of the user, package.module:function, and not a registered name."""
    return ":" in name and not name.startswith("folder:")


def call(name: str, result: str, **offered: Any) -> Any:
    """Call the user's function `name` with those of the offered arguments that it takes, and return its result.

    Raise ValueError if it cannot be imported or called, or raises an error itself.

    result: what the function should return, in words, for the error.
    """
    hint = f"say package.module:function, where function() returns {result}"
    with _current_folder():
        try:
            found = find_function(name)
            given = {key: value for key, value in offered.items() if _takes(found, key)}
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"cannot build {name!r} ({error}); {hint}") from error
        except Exception as error:
            raise ValueError(f"cannot import {name!r}: {_described(error)}") from error
        try:
            inspect.signature(found).bind(**given)
        except TypeError as error:
            raise ValueError(f"cannot build {name!r} ({error}); {hint}") from error
        try:
            return found(**given)
        except Exception as error:  # the user's code may raise anything
            raise ValueError(f"cannot build {name!r}: it raised {_described(error)}") from error


def find_function(name: str) -> Any:
    """Import the function that package.module:function names."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _described(error: Exception) -> str:
    """Return an error in one line: its kind, its message, and the user's line of code that led to it."""
    message = " ".join(str(error).split()) or "without a message"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not {"site-packages", "importlib"} & set(Path(frame.filename).parts)]
    place = own[-1] if own else frames[-1]  # the user's line, even if a library that it called raised the error
    return f"{type(error).__name__}: {message} ({Path(place.filename).name}, line {place.lineno})"


def _takes(function: Any, name: str) -> bool:
    """Return whether a function takes an argument of this name."""
    parameters = inspect.signature(function).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


@contextlib.contextmanager
def _current_folder() -> Iterator[None]:
    """Let Python import modules from the current folder, where an installed command would not look."""
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = before
