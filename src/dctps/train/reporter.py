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
from dctps.train.runs import RunFolder
from dctps.train.settings import AnySettings, Runtime, Settings, non_defaults


class Reporter:
    """Says the epoch, loss, accuracy, images (or another unit) per second and time left."""

    def __init__(self, quiet: bool, unit: str = "images") -> None:
        self.unit = unit
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
            self.bar.update(self.task, advance=1, description=f"{text}  {rate:,.0f} {self.unit}/s")

    def epoch(self, row: dict[str, Any], left: float) -> None:
        """Print the line that stays when an epoch is over; `left` is the time left in seconds."""
        self.say(
            f"epoch {epoch_number(row['epoch']):>3}/{self.epochs}  loss {row['loss']:.4f}  "
            f"train {100 * row['train']:.2f} %  validation {100 * row['validation']:.2f} %  "
            f"{row[f'{self.unit}_per_second']:,.0f} {self.unit}/s  {duration(left)} left"
        )

    def stop(self) -> None:
        """End the live line."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def settings_line(settings: AnySettings) -> str:
    """The settings that differ from their defaults, in words."""
    changed = ", ".join(f"{name}={value}" for name, value in non_defaults(settings).items())
    return f"settings: {changed or 'all defaults (paper-adam)'}"


def introduction(settings: Settings, model: nn.Module, pruning: dict[str, Any] | None) -> list[str]:
    """What is trained: the settings that differ from their defaults, the sparse layers, and the cost of pruning."""
    lines, made = [settings_line(settings)], report(model)
    if made.layers or made.norms:
        lines.append(str(made))
    return lines + pruning_lines(settings.method, pruning)


def pruning_lines(method: str | None, pruning: dict[str, Any] | None) -> list[str]:
    """What the method has cost that has chosen the weights, if there is one."""
    if pruning is None:
        return []
    passes = f"{pruning['forward_passes']} forward and {pruning['backward_passes']} backward passes"
    return [f"{method} chose the weights: {passes} in {duration(pruning['seconds'])}"]


def tensorboard_writer(runtime: Runtime, run: RunFolder) -> Any:
    """The writer of TensorBoard events into the run folder; None if they are not asked for."""
    if not runtime.tensorboard:
        return None
    from torch.utils.tensorboard import SummaryWriter  # `fit` has found out whether tensorboard is installed

    return SummaryWriter(str(run.folder / "tensorboard"))
