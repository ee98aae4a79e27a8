"""What people see of a training: a live line on a terminal, plain lines elsewhere, nothing if they wish."""

import sys
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID

from dctps.base.progress import counting_bar
from dctps.base.words import duration


class Reporter:
    """Epoch, loss, accuracy, images per second and time left."""

    def __init__(self, quiet: bool) -> None:
        self.console = Console(quiet=quiet, highlight=False)
        self.live = not quiet and sys.stdout.isatty()
        self.bar: Progress | None = None
        self.task: TaskID | None = None

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def start(self, epochs: int, steps: int, done: int) -> None:
        """`epochs` of `steps` steps each, `done` steps of them in earlier sittings."""
        self.epochs = epochs
        if self.live:
            self.bar = counting_bar(console=self.console)
            self.bar.start()
            self.task = self.bar.add_task("", total=epochs * steps, completed=done)

    def step(self, epoch: int, loss: float, accuracy: float, rate: float) -> None:
        if self.bar is not None and self.task is not None:
            text = f"epoch {epoch + 1}/{self.epochs}  loss {loss:.4f}  accuracy {100 * accuracy:.1f} %"
            self.bar.update(self.task, advance=1, description=f"{text}  {rate:,.0f} images/s")

    def epoch(self, row: dict[str, Any], left: float) -> None:
        """The line that stays when an epoch is over."""
        self.say(
            f"epoch {row['epoch'] + 1:>3}/{self.epochs}  loss {row['loss']:.4f}  train {100 * row['train']:.2f} %  "
            f"validation {100 * row['validation']:.2f} %  {row['images_per_second']:,.0f} images/s  "
            f"{duration(left)} left"
        )

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
