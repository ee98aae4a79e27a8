"""Looking a name up in a registry, with an error that lists the names that it has; the word for no entry at all."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

NONE = "none"  # how people write None on a command line and in a file


def is_none(value: Any) -> bool:
    """Return whether a user's value means no entry: None itself, "none" or "None"."""
    return value is None or (isinstance(value, str) and value in (NONE, "None"))


def lookup(registry: Mapping[str, T], name: str, kind: str) -> T:
    """Return the entry called `name`; raise ValueError with all names if there is none.

    kind: the noun for the entries of this registry in the error, such as "transform".
    """
    if name not in registry:
        raise ValueError(unknown(kind, name, registry))
    return registry[name]


def unknown(kind: str, name: Any, choices: Iterable[str], others: str = "") -> str:
    """Return the error for a name that is not among the choices, with the nearest of them.

    others: what else is possible beside the names, such as ", or folder:PATH".

    >>> unknown("model", "lenet5", ["lenet", "vgg11"])
    "unknown model 'lenet5'; choose one of: lenet, vgg11; the nearest is lenet"
    """
    choices = list(choices)
    near = difflib.get_close_matches(str(name), choices, n=3)
    hint = f"; the nearest {'are' if len(near) > 1 else 'is'} {', '.join(near)}" if near else ""
    return f"unknown {kind} {name!r}; choose one of: {', '.join(choices)}{others}{hint}"
