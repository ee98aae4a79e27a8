"""Draw the figures of results/ and docs/ again from their tables; nothing is measured or trained.

python benchmarks/redraw.py
"""

import shutil
from pathlib import Path

from dctps.analysis.figures.draw import redraw as redraw_experiment
from dctps.bench.figures import redraw as redraw_bench
from dctps.cli.demo import redraw as redraw_demo

ROOT = Path(__file__).parents[1]
RESULTS, DOCS = ROOT / "results", ROOT / "docs"


def main() -> None:
    """Draw each figure whose table is in results/."""
    for table in sorted(RESULTS.glob("*.csv")):
        if table.with_suffix(".png").exists() and table.name.startswith("bench-"):
            print(redraw_bench(table))
        elif table.with_suffix(".pdf").exists() or any(RESULTS.glob(f"{table.stem}-*.pdf")):
            print(*redraw_experiment(table), sep="\n")
    shutil.copyfile(RESULTS / "bench-scaling-dct.png", DOCS / "scaling.png")
    redraw_demo(RESULTS / "demo.csv", DOCS / "demo.png")


if __name__ == "__main__":
    main()
