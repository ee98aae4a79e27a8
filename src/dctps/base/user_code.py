"""A user's own networks and data by name: package.module:function, found as `python -m` would find it."""

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from typing import Any


def is_own(name: str) -> bool:
    """Whether a name means a user's function rather than an entry of ours."""
    return ":" in name and not name.startswith("folder:")


def call(name: str, what: str, **offered: Any) -> Any:
    """What the function called `name` returns, given those of the offered arguments that it takes.

    ValueError, with `what` it should have been, if it cannot be imported or called.
    """
    module, _, function = name.partition(":")
    try:
        with _current_folder():
            made = getattr(importlib.import_module(module), function)
            return made(**{key: value for key, value in offered.items() if _takes(made, key)})
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        hint = f"say package.module:function, where function() returns {what}"
        raise ValueError(f"cannot build {name!r} ({error}); {hint}") from error


def _takes(function: Any, name: str) -> bool:
    parameters = inspect.signature(function).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


@contextlib.contextmanager
def _current_folder() -> Iterator[None]:
    """Modules beside the user are found; a command on the path would not look there."""
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = before
