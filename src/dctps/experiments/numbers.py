"""Numbers from the files of runs, which may hold anything."""

from typing import Any

from dctps.base.records import LARGEST


def number(content: Any, *path: str) -> float | None:
    """The number at `path` in nested objects; None if there is none, or one too large to reckon with.

    >>> number({"bytes": {"file": 10}}, "bytes", "file"), number({"bytes": None}, "bytes", "file")
    (10, None)
    """
    for key in path:
        content = content.get(key) if isinstance(content, dict) else None
    good = type(content) in (int, float) and -LARGEST < content < LARGEST  # false for NaN
    return content if good else None
