"""`dctps report RUNS`: a folder of runs as one HTML page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dctps.base.extras import require

if TYPE_CHECKING:
    from dctps.analysis.page.content import Page


def report(
    runs: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUNS")],
    out: Path = Path("report.html"),
    curves: int = 300,
    ops: bool = False,
) -> None:
    """Write one HTML page of all runs in a folder: charts, and a table that sorts and filters. It works offline.

      dctps report runs --out report.html

    Args:
        runs: Folder of the run folders.
        out: File of the page.
        curves: Number of runs whose accuracy over the epochs is on the page.
        ops: Also count the multiply-adds of each network, which takes some seconds for each kind of network.
    """
    if curves < 0:
        raise ValueError(f"curves must not be negative, but is {curves}; 0 shows none")
    require("plotly", "the page")
    from rich.console import Console

    from dctps.analysis.page.render import write_page
    from dctps.experiments.results import read

    results = read(runs)
    if not (results.rows or results.broken or results.unfinished):
        one = ": it is one run, which dctps inspect shows" if (runs / "config.json").exists() else ""
        raise ValueError(f"{runs} has no folders of runs{one}; {out} is left as it is")
    page = write_page(results, runs, out, curves=curves, ops=ops)
    Console(soft_wrap=True).print(_summary(page), highlight=False, markup=False)


def _summary(page: "Page") -> str:
    counts = {"broken": len(page.broken), "unfinished": page.unfinished}
    others = "".join(f", {number:,} {name}" for name, number in counts.items() if number)
    size = page.out.stat().st_size / 1e6
    return f"{page.out}: {len(page.rows):,} run{'s' if len(page.rows) != 1 else ''}{others}; {size:.1f} MB"
