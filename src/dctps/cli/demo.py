"""`dctps demo`: the paper's main claim in a minute, on the digits that come with scikit-learn.

Seven runs of the trainer: a small convolutional network, dense, with DCTpS layers (W = alpha DCT + S, S on an equal
number of random places per layer) and as its randomly pruned twin (W = S on the same places), at three extreme
densities. Test accuracies are those of the epoch with the best validation accuracy.
"""

import csv
import dataclasses
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dctps.base.extras import require
from dctps.base.files import write_atomically
from dctps.base.progress import counting_bar
from dctps.base.words import percent
from dctps.train.settings import PUBLISHED, Runtime, Settings

DENSITIES = (0.05, 0.01, 0.002)
METHODS = {"DCTpS": "dct", "Random": None}  # name -> offset


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of one training."""

    method: str
    density: float
    weights: int
    accuracy: float
    file_bytes: int | None


def demo(output: Path = Path("demo"), epochs: int = 30, seed: int = 0) -> None:
    """Train DCTpS and randomly pruned networks on the digits, and write a table and a figure of their accuracy.

    Args:
        output: Folder of the runs, the figure and the table. Runs that are finished there are not trained again.
        epochs: Number of passes over the training images, for each of the seven networks.
        seed: Seed of the initialisation, the supports and the order of the images.
    """
    for module in ("sklearn", "matplotlib"):
        require(module, "the demo", extra="demo")
    output.mkdir(parents=True, exist_ok=True)
    console = Console()
    console.print("Training a small network on 8 x 8 digits: dense, DCTpS and randomly pruned.")
    rows = _train_all(epochs, seed, output / "runs", console)
    console.print(_table(rows))
    _write_csv(rows, output / "demo.csv")
    _plot(rows, output / "demo.png")
    console.print(f"Figure and table: {output / 'demo.png'}, {output / 'demo.csv'}")


def _settings(method: str, density: float, epochs: int, seed: int) -> Settings:
    base = dataclasses.replace(
        PUBLISHED, model="small_cnn", data="digits", lr=3e-3, weight_decay=0.0, batch_size=64, epochs=epochs, seed=seed
    )
    if method == "dense":
        return base
    return dataclasses.replace(base, density=density, offset=METHODS[method])


def _train_all(epochs: int, seed: int, runs: Path, console: Console) -> list[Row]:
    from dctps.train.records import epoch_number
    from dctps.train.session import fit

    trainings = [("dense", 1.0), *((method, density) for method in METHODS for density in DENSITIES)]
    rows = []
    with counting_bar("{task.fields[note]}", description="{task.description:<14}", console=console) as progress:
        for method, density in trainings:
            label = method if method == "dense" else f"{method} {percent(density)}"
            task = progress.add_task(label, total=epochs, note="")

            def show(row: dict[str, Any], task: Any = task) -> None:
                progress.update(
                    task, completed=epoch_number(row["epoch"]), note=f"validation {100 * row['validation']:.1f} %"
                )

            result = fit(_settings(method, density, epochs, seed), Runtime(runs=runs, quiet=True), show)
            progress.update(task, completed=epochs)
            rows.append(_row(method, density, result))
    return rows


def _row(method: str, density: float, result: dict[str, Any]) -> Row:
    size = None if method == "dense" else result["bytes"]["file"]
    return Row(method, density, result["weights"]["got"], result["accuracy"]["test_at_best"], size)


def _table(rows: list[Row]) -> Table:
    table = Table("method")
    for column in ("density", "trainable weights", "test accuracy", "file"):
        table.add_column(column, justify="right")
    for row in rows:
        size = "" if row.file_bytes is None else f"{row.file_bytes / 1000:.1f} kB"
        cells = percent(row.density), f"{row.weights:,}", f"{100 * row.accuracy:.1f} %", size
        table.add_row(row.method, *cells)
    return table


def _write_csv(rows: list[Row], path: Path) -> None:
    lines = [",".join(map(str, dataclasses.astuple(row))) for row in rows]
    names = ",".join(field.name for field in dataclasses.fields(Row))
    path.write_text("\n".join([names, *lines]) + "\n")


LOOK_NAMES = {"DCTpS": "DCTpS", "Random": "Random (EPL)"}  # the lines of the paper that the demo's methods look like
WORDS = "a network of four layers; test accuracy at the epoch with the best validation accuracy; one seed"


def _plot(rows: list[Row], path: Path) -> None:
    from dctps.analysis.figures import layout, style
    from dctps.analysis.figures.looks import chance_line, legend_handles, line_options
    from dctps.analysis.looks import LOOKS
    from dctps.experiments.paper import DENSE
    from dctps.experiments.summary import chance

    with style.styled():
        figure, (axes,) = layout.panel_grid(1, 1)
        for method, look in LOOK_NAMES.items():
            points = [(row.density, 100 * row.accuracy) for row in rows if row.method == method]
            axes.plot(*zip(*points, strict=True), label=method, zorder=3, **line_options(LOOKS[look]))
        axes.axhline(100 * rows[0].accuracy, label=DENSE, **line_options(LOOKS[DENSE]))
        chance_line(axes, chance("digits"))
        axes.set(
            xscale="log", xlabel="density: trainable share of the weights", ylabel="test accuracy, %", ylim=(0, 102)
        )
        axes.set_xticks(DENSITIES, [percent(d) for d in DENSITIES], minor=False)
        axes.set_xticks([], minor=True)
        looks = {DENSE: LOOKS[DENSE], **{method: LOOKS[look] for method, look in LOOK_NAMES.items()}}
        layout.finish(figure, "DCTpS and random pruning on 8 x 8 digits", WORDS, legend_handles([axes], looks))
        write_atomically(path, lambda file: layout.write(figure, file))


def redraw(table: Path, path: Path) -> None:
    """Draw the figure of a table that the demo wrote."""
    with table.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    _plot([Row(x["method"], float(x["density"]), int(x["weights"]), float(x["accuracy"]), None) for x in lines], path)
