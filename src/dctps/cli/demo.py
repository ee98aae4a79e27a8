"""`dctps demo`: the paper's main claim in a minute, on the digits that come with scikit-learn.

A small convolutional network is trained with DCTpS layers (W = alpha DCT + S, S on an equal number of random places
per layer) and as its randomly pruned twin (W = S on the same places), at three extreme densities.
"""

import contextlib
import dataclasses
import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn

from dctps.checkpoint import save
from dctps.convert import sparsify
from dctps.report import percent, report

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
    """Train DCTpS and randomly pruned networks on the digits; a table and a figure at the end.

    Args:
        output: folder for the figure and the table.
        epochs: passes over the 1,437 training images, for each of the seven networks.
        seed: of the initialisation, the supports and the order of the images.
    """
    for package in ("sklearn", "matplotlib"):
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(f"the demo needs {package}; install it with: pip install 'dctps[demo]'")
    output.mkdir(parents=True, exist_ok=True)
    console = Console()
    console.print("Training a small network on 8 x 8 digits: dense, DCTpS and randomly pruned.")
    with _flushed_denormals():
        rows = _train_all(epochs, seed, console)
    console.print(_table(rows))
    _write_csv(rows, output / "demo.csv")
    _plot(rows, output / "demo.png")
    console.print(f"Figure and table: {output / 'demo.png'}, {output / 'demo.csv'}")


def network() -> nn.Module:
    """93,728 weights, four layers, no BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


@contextlib.contextmanager
def _flushed_denormals() -> Iterator[None]:
    """Pruned networks without BatchNorm underflow, and arithmetic on denormal numbers is several times slower."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _train_all(epochs: int, seed: int, console: Console) -> list[Row]:
    data = _digits()
    runs = [("dense", 1.0), *((method, density) for method in METHODS for density in DENSITIES)]
    columns = (
        TextColumn("{task.description:<14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
    )
    rows = []
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        for method, density in runs:
            label = method if method == "dense" else f"{method} {percent(density)}"
            task = progress.add_task(label, total=epochs, note="")
            torch.manual_seed(seed)
            net = network()
            if method != "dense":
                sparsify(net, density, offset=METHODS[method], seed=seed)
            for accuracy in _train(net, data, epochs):
                progress.update(task, advance=1, note=f"test accuracy {100 * accuracy:.1f} %")
            rows.append(_row(method, density, net, accuracy))
    return rows


def _digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images (n, 1, 8, 8) in [0, 1] and labels: the first 1,437 and the last 360."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    return images[:1437], labels[:1437], images[1437:], labels[1437:]


def _train(net: nn.Module, data: tuple[Tensor, Tensor, Tensor, Tensor], epochs: int) -> Iterator[float]:
    """Adam on batches of 64; the test accuracy after each epoch."""
    images, labels, test_images, test_labels = data
    optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimiser.step()
        with torch.no_grad():
            yield (net(test_images).argmax(1) == test_labels).float().mean().item()


def _row(method: str, density: float, net: nn.Module, accuracy: float) -> Row:
    if method == "dense":
        weights = sum(p.numel() for p in net.parameters() if p.dim() > 1)
        return Row(method, density, weights, accuracy, None)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "net.safetensors"
        save(net, file)
        return Row(method, density, report(net).nnz, accuracy, file.stat().st_size)


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


def _plot(rows: list[Row], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained", dpi=150)
    axes = figure.subplots()
    for method, marker, colour in (("DCTpS", "o", "#0072b2"), ("Random", "s", "#d55e00")):
        points = [(100 * row.density, 100 * row.accuracy) for row in rows if row.method == method]
        axes.plot(*zip(*points, strict=True), marker=marker, color=colour, label=method)
    axes.axhline(100 * rows[0].accuracy, color="black", linestyle="--", label="dense")
    axes.set(xscale="log", xlabel="trainable weights, % of the dense network", ylabel="test accuracy, %", ylim=(0, 102))
    axes.set_xticks([100 * d for d in DENSITIES], [percent(d) for d in DENSITIES], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_title("scikit-learn digits, four layers, one seed", fontsize=10)
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    figure.savefig(path)
