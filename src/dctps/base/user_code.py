"""Networks and data of the user, named as package.module:function and found as `python -m` would find them."""

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from typing import Any


def names_function(name: str) -> bool:
    """Return whether a name means a function of the user, package.module:function, and not a registered name."""
    return ":" in name and not name.startswith("folder:")


def call(name: str, result: str, **offered: Any) -> Any:
    """Call the user's function `name` with those of the offered arguments that it takes, and return its result.

    Raise ValueError if it cannot be imported or called.

    result: what the function should return, in words, for the error.
    """
    try:
        with _current_folder():
            found = find_function(name)
            return found(**{key: value for key, value in offered.items() if _takes(found, key)})
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        hint = f"say package.module:function, where function() returns {result}"
        raise ValueError(f"cannot build {name!r} ({error}); {hint}") from error


def find_function(name: str) -> Any:
    """Import the function that package.module:function names."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


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
