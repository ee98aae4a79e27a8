"""Numbers of runs for a page, and which runs cannot be shown because their files are damaged."""

from collections.abc import Sequence

from dctps.experiments.results import Broken, Row
from dctps.experiments.status import COLLAPSED, DONE, FAILED
from dctps.experiments.tasks import TASKS, training


def accuracy(row: Row, kind: str) -> float | None:
    """Return the accuracy at the epoch with the best validation accuracy; kind: test or validation."""
    return training.accuracy(row.content, kind)


def rounded(value: float | None, digits: int = 6) -> float | None:
    """Return a number with so many significant digits, which keeps the page small."""
    return None if value is None else float(f"{value:.{digits}g}")


def usable(rows: Sequence[Row]) -> tuple[list[Row], list[Broken]]:
    """Return the rows that can be shown, and by name the runs that cannot."""
    problems = [(row, _problem(row)) for row in rows]
    broken = [Broken(row.id, problem) for row, problem in problems if problem is not None]
    return [row for row, problem in problems if problem is None], broken


def _problem(row: Row) -> str | None:
    """Return why a row cannot be shown, or None if it can."""
    if row.status not in (DONE, COLLAPSED, FAILED):
        return f"failure.json: unknown status {row.status!r}"
    if row.task not in list(TASKS):
        return f"failure.json: unknown task {row.task!r}"
    damage = TASKS[row.task].damage(row.content) if row.status == DONE else None
    return damage and f"result.json: {damage}"
