"""Tables as Markdown for people and CSV for programs; the parameters of the networks (paper: Table E.1)."""

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dctps.analysis.figures import style
from dctps.base.files import write_atomically
from dctps.experiments.results import DONE
from dctps.experiments.sheet import Layer


@dataclasses.dataclass(frozen=True)
class Table:
    """The Markdown, and the numbers behind it."""

    markdown: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def save(self, stem: Path) -> list[Path]:
        """As .md and .csv."""
        markdown, numbers = (stem.with_name(f"{stem.name}.{ending}") for ending in ("md", "csv"))
        write_atomically(markdown, lambda file: file.write_text(self.markdown, encoding="utf-8"))
        write_atomically(numbers, self._write)
        return [markdown, numbers]

    def _write(self, path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows(self.rows)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell, so that it reads as text too; all but the first to the right."""
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        padded = [c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return f"| {' | '.join(padded)} |"

    rule = "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths))
    return "\n".join([line(columns), f"|{rule}|", *map(line, rows)]) + "\n"


COLUMNS = ("network", "weights", "bias and BatchNorm", "total", "alphas")


def params_table(lines: Sequence[Layer]) -> dict[str, Table]:
    """Weights (which are pruned), other parameters (which are not), and the alphas that DCTpS adds, one per layer."""
    rows: list[list[Any]] = []
    for panel, own in style.by_panel(lines).items():
        layers = [one for one in own if one.status == DONE]
        if layers:
            weights, others = sum(one.size for one in layers), layers[0].others
            rows.append([panel, weights, others, weights + others, len(layers)])
        else:
            rows.append([panel, None, None, None, None])
    texts = [[row[0], *("missing" if number is None else f"{number:,}" for number in row[1:])] for row in rows]
    return {"-table": Table(markdown(COLUMNS, texts), COLUMNS, rows)}
