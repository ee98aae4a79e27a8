"""What people see of a training: a live line on a terminal, plain lines elsewhere, nothing if they wish."""

import sys
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID
from torch import nn

from dctps.base.progress import counting_bar
from dctps.base.words import duration, printable
from dctps.nn.report import report
from dctps.train.records import epoch_number
from dctps.train.runs import Run
from dctps.train.settings import Runtime, Settings, non_defaults


class Reporter:
    """Says the epoch, loss, accuracy, images per second and time left."""

    def __init__(self, quiet: bool) -> None:
        self.console = Console(quiet=quiet, highlight=False)
        self.live = not quiet and sys.stdout.isatty()
        self.bar: Progress | None = None
        self.task: TaskID | None = None

    def say(self, text: str) -> None:
        """Print one line, or a table."""
        self.console.print(printable(text), markup=False, soft_wrap=True)

    def start(self, epochs: int, steps: int, done: int) -> None:
        """Begin a training of `epochs` epochs of `steps` steps each, of which `done` steps were done earlier."""
        self.epochs = epochs
        if self.live:
            self.bar = counting_bar(console=self.console)
            self.bar.start()
            self.task = self.bar.add_task("", total=epochs * steps, completed=done)

    def step(self, epoch: int, loss: float, accuracy: float, rate: float) -> None:
        """Advance the live line by one step."""
        if self.bar is not None and self.task is not None:
            text = f"epoch {epoch_number(epoch)}/{self.epochs}  loss {loss:.4f}  accuracy {100 * accuracy:.1f} %"
            self.bar.update(self.task, advance=1, description=f"{text}  {rate:,.0f} images/s")

    def epoch(self, row: dict[str, Any], left: float) -> None:
        """Print the line that stays when an epoch is over; `left` is the time left in seconds."""
        self.say(
            f"epoch {epoch_number(row['epoch']):>3}/{self.epochs}  loss {row['loss']:.4f}  "
            f"train {100 * row['train']:.2f} %  validation {100 * row['validation']:.2f} %  "
            f"{row['images_per_second']:,.0f} images/s  {duration(left)} left"
        )

    def stop(self) -> None:
        """End the live line."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def introduction(settings: Settings, model: nn.Module, pruning: dict[str, Any] | None) -> list[str]:
    """What is trained: the settings that differ from their defaults, the sparse layers, and the cost of pruning."""
    changed = ", ".join(f"{name}={value}" for name, value in non_defaults(settings).items())
    lines, made = [f"settings: {changed or 'all defaults (paper-adam)'}"], report(model)
    if made.layers or made.norms:
        lines.append(str(made))
    if pruning is not None:
        passes = f"{pruning['forward_passes']} forward and {pruning['backward_passes']} backward passes"
        lines.append(f"{settings.method} chose the weights: {passes} in {duration(pruning['seconds'])}")
    return lines


def tensorboard_writer(runtime: Runtime, run: Run) -> Any:
    """The writer of TensorBoard events into the run folder; None if they are not asked for."""
    if not runtime.tensorboard:
        return None
    from torch.utils.tensorboard import SummaryWriter  # `fit` has found out whether tensorboard is installed

    return SummaryWriter(str(run.folder / "tensorboard"))
