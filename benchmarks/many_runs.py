"""How long a folder of very many runs takes: reading it, the page of `dctps report`, a figure.

    python benchmarks/many_runs.py [--counts 1000 3000 10000] [--epochs 200] [--folder FOLDER]

One tiny network is trained; its run folder is the template of all others, which get the settings of ResNet50 and VGG19
on CIFAR-10 and CIFAR-100 by the paper's methods, at its densities, with as many seeds as it takes, and accuracies drawn
at random. Files are read as they lie in the system's cache. Each time is the least of three. Writes
results/bench-many-runs.csv.
"""

import argparse
import dataclasses
import itertools
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from table import write

from dctps.analysis.figures import draw as figures
from dctps.analysis.page.render import write_page
from dctps.experiments.cells import Cell
from dctps.experiments.paper import ADAM, BOTH, DENSE, DENSITIES, OURS, PRUNING, RANDOM, configured, panel
from dctps.experiments.results import read
from dctps.experiments.sheet import sheet_rows
from dctps.train.session import fit
from dctps.train.settings import Runtime, Settings, run_id, to_json

TINY = Settings(model="small_cnn", data="digits", images=60, epochs=1, batch_size=30, density=0.05)
EXPERIMENT, REPEATS = "resnet50-vgg19", 3
HEADER = [
    "runs",
    "bytes_read",
    "read_s",
    "page_s",
    "figure_s",
    "page_bytes",
    "epochs",
    "read_us_per_run",
    "page_us_per_run",
]


def grid() -> Iterator[Cell]:
    """Cells without end, seed after seed."""
    for seed in itertools.count():
        for model, data in BOTH:
            base = dataclasses.replace(ADAM, model=model, data=data, seed=seed)
            yield Cell(base, panel=panel(base), line=DENSE)
            for method, density in itertools.product((*RANDOM, *PRUNING, *OURS), DENSITIES):
                yield Cell(configured(base, method, density=density), panel=panel(base), line=method)


def template(folder: Path) -> Path:
    """The folder of a run that was really made."""
    fit(TINY, Runtime(runs=folder, device="cpu", quiet=True))
    return folder / run_id(TINY)


def make_runs(cells: list[Cell], runs: Path, like: Path, epochs: int) -> int:
    """Finished runs of these cells; returns the bytes of their results."""
    result, draw, total = json.loads((like / "result.json").read_text()), random.Random(0), 0
    metrics = json.loads((like / "metrics.jsonl").read_text().splitlines()[0])
    lines = "".join(json.dumps({**metrics, "epoch": epoch}) + "\n" for epoch in range(epochs))
    runs.mkdir()
    for cell in cells:
        folder, accuracy = runs / cell.id, draw.uniform(0.1, 0.95)
        found = {**result["accuracy"], "test_at_best": accuracy, "best_validation": accuracy}
        content = {**result, "id": cell.id, "settings": to_json(cell.settings), "accuracy": found}
        folder.mkdir()
        text = json.dumps(content, indent=1) + "\n"
        total += len(text)
        (folder / "result.json").write_text(text)
        (folder / "metrics.jsonl").write_text(lines)
        os.link(like / "best.safetensors", folder / "best.safetensors")
    return total


def timed(do: Callable[[], Any]) -> tuple[float, Any]:
    """The least of some times in seconds, and what came of the last."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        result = do()
        times.append(time.perf_counter() - start)
    return min(times), result


def measure(count: int, folder: Path, like: Path, epochs: int) -> list[object]:
    """A row of the table."""
    runs, out = folder / f"runs-{count}", folder / f"page-{count}.html"
    cells = list(itertools.islice(grid(), count))
    size = make_runs(cells, runs, like, epochs)
    reading, results = timed(lambda: read(runs))
    if len(results.rows) != count or results.broken or results.unfinished:
        raise RuntimeError(f"of {count} runs {len(results.rows)} were read: {results.broken[:1]}")
    paging, _ = timed(lambda: write_page(results, runs, out))
    drawing = _figure(cells, results, folder / f"figure-{count}")
    per_run = [round(1e6 * seconds / count) for seconds in (reading, paging)]
    page = out.stat().st_size
    return [count, size, f"{reading:.2f}", f"{paging:.2f}", f"{drawing:.2f}" if drawing else "", page, epochs, *per_run]


def _figure(cells: list[Cell], results: Any, folder: Path) -> float | None:
    """Seconds of an experiment's figure, from the rows to its files; None without matplotlib."""
    if not figures.available():
        return None
    return timed(lambda: figures.draw(sheet_rows(EXPERIMENT, "paper", cells, results), folder))[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[1000, 3000, 10_000])
    parser.add_argument("--epochs", type=int, default=200, help="lines of the metrics of each run")
    parser.add_argument("--folder", type=Path, help="where to make the runs, to keep; a temporary folder if not given")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        like, rows = template(folder / "template"), []
        print(*HEADER)
        for count in options.counts:
            rows.append(measure(count, folder, like, options.epochs))
            print(*rows[-1], flush=True)
    write("many-runs", HEADER, rows)


if __name__ == "__main__":
    main()
