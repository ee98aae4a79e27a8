"""Looking a name up in a registry, with an error that lists the names that it has."""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def lookup(registry: Mapping[str, T], name: str, kind: str) -> T:
    """Return the entry called `name`; raise ValueError with all names if there is none.

    kind: the noun for the entries of this registry in the error, such as "transform".
    """
    if name not in registry:
        raise ValueError(f"unknown {kind} {name!r}; choose one of: {', '.join(registry)}")
    return registry[name]
