"""Progress bars show the description, the bar and their columns in this order."""

import io
import re

from rich.console import Console
from rich.progress import DownloadColumn

from dctps.base.progress import counting_bar, progress_bar


def last_line(bar, **task):
    """What a bar shows when it is stopped."""
    with bar:
        bar.add_task(**task)
    return re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", bar.console.file.getvalue()).strip().splitlines()[-1]


def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=80)


def test_a_counting_bar_shows_steps_notes_and_the_time_left():
    bar = counting_bar("{task.fields[note]}", description="{task.description:<9}", console=terminal())
    line = last_line(bar, description="training", total=7, completed=3, note="90 %")
    assert re.fullmatch(r"training  +━.*━ 3/7 90 % -:--:--", line)


def test_other_columns_take_the_place_of_the_count():
    line = last_line(
        progress_bar(DownloadColumn(), console=terminal()), description="cifar", total=4000, completed=1000
    )
    assert re.fullmatch(r"cifar ━.*━ 1.0/4.0 kB", line)


def test_bars_are_drawn_on_stderr_by_default(capsys):
    with counting_bar() as bar:
        bar.add_task("pruning", total=2, completed=2)
    captured = capsys.readouterr()
    assert "pruning" in captured.err
    assert captured.out == ""
