"""Progress bars that look alike and are drawn on stderr."""

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn


def progress_bar(*columns: ProgressColumn, description: str = "{task.description}", **options: Any) -> Progress:
    """Return a progress bar with the description of its task before it and the given columns behind it.

    description: the text before the bar, a format string of rich's tasks.
    options: the arguments of rich's `Progress`; the bar is drawn on stderr unless they name another console.
    """
    options.setdefault("console", Console(stderr=True))
    return Progress(TextColumn(description), BarColumn(), *columns, **options)


def counting_bar(*notes: str, **options: Any) -> Progress:
    """Return a progress bar with the count of steps, the notes (format strings of rich's tasks) and the time left."""
    return progress_bar(MofNCompleteColumn(), *map(TextColumn, notes), TimeRemainingColumn(), **options)
