"""`dctps inspect FILE`: what is in a file, and where its bytes go."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from dctps.base.words import percent

if TYPE_CHECKING:
    from dctps.checkpoint.contents import Contents


def inspect(file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]) -> None:
    """Show the layers of a file, and how many of its bytes each part takes.

    Args:
        file: File that dctps.save wrote.
    """
    from dctps.checkpoint.contents import read

    contents = read(file)
    console = Console()
    console.print(_layers(contents))
    console.print(_bytes(contents, file.stat().st_size))


def _layers(contents: "Contents") -> Table:
    table = Table("layer", box=SIMPLE_HEAD)
    table.add_column("shape", no_wrap=True)
    for column in ("values", "density"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("offset", "alpha", "support"):
        table.add_column(column)
    for entry in contents.entries:
        support, alpha = contents.supports[entry.name], contents.alphas.get(entry.name)
        shown = "-" if alpha is None else f"{alpha.item():.4g}{'' if entry.train_alpha else ' (fixed)'}"
        places = "positions" if entry.seed is None else f"seed {entry.seed}"
        shape = " x ".join(map(str, entry.shape))
        row = (entry.name or "(itself)", shape, f"{entry.nnz:,}", percent(support.density), entry.offset or "none")
        table.add_row(*row, shown, places)
    return table


def _bytes(contents: "Contents", total: int) -> Table:
    parts = part_bytes(contents, total)
    table = Table("part", box=SIMPLE_HEAD, show_footer=True)
    table.add_column("bytes", f"{total:,}", justify="right")
    table.columns[0].footer = "total"
    for name, size in parts.items():
        table.add_row(name, f"{size:,}")
    return table


def part_bytes(contents: "Contents", total: int) -> dict[str, int]:
    """Bytes of the values, positions, alphas, biases of sparse layers, BatchNorm, the rest and the header."""
    from dctps.checkpoint.manifest import POSITIONS

    sparse = {f"{entry.name}." if entry.name else "" for entry in contents.entries}
    normed = {n.removesuffix("running_mean") for n in contents.tensors if n.endswith(".running_mean")}
    parts = dict.fromkeys(("values", "positions", "alpha", "bias", "BatchNorm", "other parameters and buffers"), 0)
    for name, tensor in contents.tensors.items():
        prefix = name[: name.rfind(".") + 1]
        if name == POSITIONS or name.startswith("dctps/"):
            part = name.split("/")[1]
        elif prefix in normed:
            part = "BatchNorm"
        else:
            part = "bias" if prefix in sparse else "other parameters and buffers"
        parts[part] += tensor.numel() * tensor.element_size()
    return {**parts, "header": total - sum(parts.values())}
