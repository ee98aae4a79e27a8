"""Progress bars: the columns that all of them share, on the console where they are drawn."""

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn


def progress_bar(*columns: ProgressColumn, description: str = "{task.description}", **options: Any) -> Progress:
    """A bar with the description of its task before it and the given columns behind it.

    `description` is a format of rich's tasks and `options` are those of rich's `Progress`. The bar is drawn on stderr
    unless `options` name another console.
    """
    options.setdefault("console", Console(stderr=True))
    return Progress(TextColumn(description), BarColumn(), *columns, **options)


def counting_bar(*notes: str, **options: Any) -> Progress:
    """A progress bar that shows the steps done of all, the notes (formats of rich's tasks) and the time left."""
    return progress_bar(MofNCompleteColumn(), *map(TextColumn, notes), TimeRemainingColumn(), **options)
