"""Looking a name up in a registry, with an error that lists what there is."""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def lookup(registry: Mapping[str, T], name: str, what: str) -> T:
    """The entry called `name`; `what` says in the error which kind of thing was asked for."""
    if name not in registry:
        raise ValueError(f"unknown {what} {name!r}; choose one of: {', '.join(registry)}")
    return registry[name]
