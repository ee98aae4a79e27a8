"""Structural damage to plain files: valid JSON with wrong types, sizes, nesting and numbers, and text that is none."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

JUNK: list[Any] = [None, True, False, 0, 1, -1, 1.5, -0.5, 2**31, 2**63, -(2**63), 10**400, 1e308, 5e-324]
JUNK += [float("nan"), float("inf"), -float("inf"), "", "x", "1", "none", "\0", "\udcff", "é" * 300]
JUNK += [[], {}, [1], {"a": 1}, [[]], [None], ["x"] * 2000, {"": None}]
DEEP = "@deep@"  # stands for lists in lists, which json.dumps could not write


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every value inside nested dicts and lists, as its container and key."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [place for key, value in items for place in ((tree, key), *places(value))]


def mutated(rng: random.Random, tree: Any, junk: list[Any] = JUNK) -> Any:
    """A copy of nested dicts and lists in which one to three values are other ones."""
    holder = [copy.deepcopy(tree)]
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        container, key = rng.choice(places(holder))
        rng.choice(MUTATIONS)(rng, container, key, junk)
        if not holder:
            return {}
    return holder[0]


def _replace(rng: random.Random, container: Any, key: Any, junk: list[Any]) -> None:
    container[key] = copy.deepcopy(rng.choice(junk))


def _delete(rng: random.Random, container: Any, key: Any, junk: list[Any]) -> None:
    del container[key]


def _add(rng: random.Random, container: Any, key: Any, junk: list[Any]) -> None:
    if isinstance(container, list):
        container.insert(rng.randrange(len(container) + 1), copy.deepcopy(rng.choice([container[key], *junk])))
    else:
        container[f"{key}{rng.choice(['_', '2', chr(0xDCFF)])}"] = copy.deepcopy(container[key])


def _wrap(rng: random.Random, container: Any, key: Any, junk: list[Any]) -> None:
    value = container[key]
    container[key] = rng.choice([[value], {"value": value}, [value, value], str(value)[:100], DEEP])


def _nudge(rng: random.Random, container: Any, key: Any, junk: list[Any]) -> None:
    value = container[key]
    if type(value) in (int, float) and abs(value) < 1e300:
        container[key] = rng.choice([-value, value + 1, value - 1, value + 0.5, value * 1000, float(value), 1 - value])
    else:
        _replace(rng, container, key, junk)


MUTATIONS: list[Callable[[random.Random, Any, Any, list[Any]], None]] = [
    _replace,
    _replace,
    _delete,
    _add,
    _wrap,
    _nudge,
]


def as_bytes(rng: random.Random, tree: Any, line: bool = False) -> bytes:
    """The JSON of a tree; one time in eight it is spoilt as text too."""
    deep = rng.choice([39, 41, 900, 50_000])
    text = json.dumps(tree, indent=None if line else rng.choice([None, 1])).replace(
        f'"{DEEP}"', "[" * deep + "]" * deep
    )
    return text.encode() if rng.randrange(8) else spoilt(rng, text)


def spoilt(rng: random.Random, text: str) -> bytes:
    """Text that was cut, written in another encoding, or has other bytes in it."""
    at, content = rng.randrange(len(text) + 1), text.encode()
    return rng.choice(
        [
            content[:at],
            content[:at] + bytes(rng.randrange(256) for _ in range(3)) + content[at:],
            text.encode("utf-16"),
            b"\xef\xbb\xbf" + content,
            content + content,
            content.replace(b'"', b"'"),
            content.replace(b",", b",\n", 1),
            content[:at] + b"NaN" + content[at:],
            b"\0" * 50,
            b"",
        ]
    )
