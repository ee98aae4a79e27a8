"""Numbers of runs for a page."""

from dctps.experiments.results import Row
from dctps.experiments.tasks import training


def accuracy(row: Row, kind: str) -> float | None:
    """Return the accuracy at the epoch with the best validation accuracy; kind: test or validation."""
    return training.accuracy(row.content, kind)


def rounded(value: float | None, digits: int = 6) -> float | None:
    """Return a number with so many significant digits, which keeps the page small."""
    return None if value is None else float(f"{value:.{digits}g}")
