"""Tables as Markdown for people and CSV for programs; the parameters of the networks (paper: Table E.1)."""

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dctps.analysis.figures import captions
from dctps.base.files import write_atomically
from dctps.experiments.status import DONE
from dctps.experiments.tasks.counts import LayerRow


@dataclasses.dataclass(frozen=True)
class Table:
    """A table as Markdown, and its numbers."""

    markdown: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def save(self, stem: Path) -> list[Path]:
        """Write the table as .md and .csv; return the paths."""
        markdown, numbers = (stem.with_name(f"{stem.name}.{ending}") for ending in ("md", "csv"))
        write_atomically(markdown, lambda file: file.write_text(self.markdown, encoding="utf-8"))
        write_atomically(numbers, self._write_csv)
        return [markdown, numbers]

    def _write_csv(self, path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows(self.rows)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose columns are padded, so that it reads as text too; all but the first are aligned right."""
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]

    def line(texts: Sequence[str]) -> str:
        padded = [t.rjust(w) if i else t.ljust(w) for i, (t, w) in enumerate(zip(texts, widths, strict=True))]
        return f"| {' | '.join(padded)} |"

    rule = "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths))
    return "\n".join([line(columns), f"|{rule}|", *map(line, rows)]) + "\n"


PARAMETER_COLUMNS = ("network", "weights", "bias and BatchNorm", "total", "alphas")


def params_table(sheet_rows: Sequence[LayerRow]) -> dict[str, Table]:
    """Count the weights of each network, which can be pruned, its other parameters, and the alphas of DCTpS."""
    rows = [_parameters(panel, group) for panel, group in captions.by_panel(sheet_rows).items()]
    texts = [[row[0], *("missing" if number is None else f"{number:,}" for number in row[1:])] for row in rows]
    return {"-table": Table(markdown(PARAMETER_COLUMNS, texts), PARAMETER_COLUMNS, rows)}


def _parameters(network: str, sheet_rows: Sequence[LayerRow]) -> list[Any]:
    layers = [row for row in sheet_rows if row.status == DONE]
    if not layers:
        return [network, None, None, None, None]
    weights, others = sum(layer.size or 0 for layer in layers), layers[0].others or 0
    return [network, weights, others, weights + others, len(layers)]
