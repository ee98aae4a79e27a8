"""Numbers out of the files of runs, which may hold anything: what a page cannot reckon with is no number at all."""

from collections.abc import Sequence
from typing import Any

from dctps.experiments.cells import TRAIN
from dctps.experiments.results import KEYS, Broken, Row
from dctps.experiments.status import COLLAPSED, DONE, FAILED

LARGEST = 1e200  # sums of many such numbers, and hundred times as many, are still finite


def number(content: Any, *path: str) -> float | None:
    """The number at `path` in nested objects; None if there is none, or one beyond all reason.

    >>> number({"bytes": {"file": 10}}, "bytes", "file"), number({"bytes": None}, "bytes", "file")
    (10, None)
    """
    for key in path:
        content = content.get(key) if isinstance(content, dict) else None
    good = type(content) in (int, float) and -LARGEST < content < LARGEST  # false for NaN
    return content if good else None


def accuracy(row: Row, kind: str) -> float | None:
    """kind: test or validation, at the epoch with the best validation accuracy."""
    value = number(row.content, "accuracy", {"test": "test_at_best", "validation": "best_validation"}[kind])
    return value if value is not None and 0 <= value <= 1 else None


def rounded(value: float | None, digits: int = 6) -> float | None:
    """To so many significant digits, which keeps the page small."""
    return None if value is None else float(f"{value:.{digits}g}")


def usable(rows: Sequence[Row]) -> tuple[list[Row], list[Broken]]:
    """The rows that can be shown, and by name those that cannot."""
    problems = [(row, _problem(row)) for row in rows]
    broken = [Broken(row.id, problem) for row, problem in problems if problem is not None]
    return [row for row, problem in problems if problem is None], broken


def _problem(row: Row) -> str | None:
    if row.status not in (DONE, COLLAPSED, FAILED):
        return f"failure.json: unknown status {row.status!r}"
    if row.task not in list(KEYS):
        return f"failure.json: unknown task {row.task!r}"
    damage = _damage(row) if row.status == DONE else None
    return damage and f"result.json: {damage}"


def _damage(row: Row) -> str | None:
    if row.task == TRAIN:
        missing = [kind for kind in ("test", "validation") if accuracy(row, kind) is None]
        return f"its {missing[0]} accuracy is not a number from 0 to 1" if missing else None
    if row.task == "counts":
        return None if _are_layers(row.content["layers"]) else "its layers are damaged"
    if row.task == "jacobian":
        return None if _is_matrix(row.content["singular_values"]) else "its singular values are damaged"
    return None


def _are_layers(layers: Any) -> bool:
    return isinstance(layers, list) and all(
        isinstance(layer, dict)
        and isinstance(layer.get("name"), str)
        and number(layer, "nnz") is not None
        and number(layer, "size") is not None
        for layer in layers
    )


def _is_matrix(values: Any) -> bool:
    if not isinstance(values, list) or not values or not all(isinstance(row, list) and row for row in values):
        return False
    numbers = [value for row in values for value in row]
    return len({len(row) for row in values}) == 1 and all(number({"": v}, "") is not None and v >= 0 for v in numbers)
