"""What is on a page: the runs that can be shown, and the numbers that its script draws."""

import dataclasses
import os
import urllib.parse
from pathlib import Path
from typing import Any

from dctps.analysis.page.curves import curves, examples
from dctps.analysis.page.layers import count_panels, spectrum_panels
from dctps.analysis.page.looks import assign_looks, spare_looks
from dctps.analysis.page.panels import accuracy_panels
from dctps.analysis.page.table import table
from dctps.experiments.cells import TRAIN
from dctps.experiments.glossary import meanings
from dctps.experiments.naming import method_name
from dctps.experiments.results import Broken, Row
from dctps.experiments.status import DONE

CURVES = 300  # the default number of runs whose metrics a page holds


@dataclasses.dataclass(frozen=True)
class Page:
    """The runs of a folder: rows that can be shown, runs that cannot, and how many are not over."""

    runs: Path
    out: Path
    rows: list[Row]
    broken: list[Broken]
    unfinished: int
    curves: int = CURVES  # the largest number of runs whose metrics the page holds
    ops: bool = False  # whether the table has multiply-adds

    def count(self, status: str) -> int:
        """Return how many rows have a status."""
        return sum(row.status == status for row in self.rows)


def payload(page: Page) -> dict[str, Any]:
    """Return everything that the script of a page draws, as JSON can hold it."""
    of_task = {task: [row for row in page.rows if row.task == task] for task in (TRAIN, "counts", "jacobian")}
    panels, embedded = accuracy_panels(of_task[TRAIN]), curves(page.rows, page.curves)
    layers, spectra = count_panels(of_task["counts"]), spectrum_panels(of_task["jacobian"])
    lines = [line["name"] for panel in panels for line in panel["lines"]]
    lines += [line["name"] for panel in (*layers, *spectra) for part in panel["densities"] for line in part["lines"]]
    return {
        "looks": assign_looks(lines),
        "names": meanings({*lines, *(method_name(row.settings) for row in page.rows)}),
        "spare": spare_looks(),
        "panels": panels,
        "first": max(range(len(panels)), key=lambda i: panels[i]["runs"], default=0),
        "layers": layers,
        "spectra": spectra,
        "curves": embedded,
        "examples": examples(page.rows, list(embedded)),
        "table": table(page.rows, page.ops),
        "ids": [row.id for row in page.rows],
        "links": _links(page.rows),
        "base": _relative(page.runs, page.out),
        "reasons": {index: row.reason for index, row in enumerate(page.rows) if row.status != DONE},
    }


def _links(rows: list[Row]) -> dict[int, str]:
    """Return the quoted name of each run folder whose name cannot stand in a link as it is, by the index of its row."""
    quoted = {index: urllib.parse.quote(os.fsencode(row.id), safe="") for index, row in enumerate(rows)}
    return {index: link for index, link in quoted.items() if link != rows[index].id}


def _relative(runs: Path, out: Path) -> str:
    """Return the link from the page to the folder of runs."""
    try:
        path = os.path.relpath(runs.resolve(), out.resolve().parent)
    except ValueError:  # on Windows the two may lie on different drives
        return runs.resolve().as_uri() + "/"
    return f"./{urllib.parse.quote(os.fsencode(path.replace(os.sep, '/')))}/"
