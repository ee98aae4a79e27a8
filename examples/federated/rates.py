"""The learning rates of the figure's lines: those that are best on the images that no client has.

    python examples/federated/rates.py [--lines build/federated-rates] [--rounds 100]

Tries learning rates three times as large as one another, until the best is neither the largest nor the smallest, or six
were tried. A rate counts by the mean of the last five measurements. Rows go to results/federated-rates.csv.
"""

import argparse
import csv
import statistics
from pathlib import Path
from typing import Any

import torch
from federation.line import Line
from federation.rounds import local_exchange, perform, write_rows

from dctps.base.files import write_atomically

TABLE = Path(__file__).parents[2] / "results" / "federated-rates.csv"
FIRST = (3e-3, 1e-2)
MOST = 6
CASES = [("dctps", 0.01), ("random", 0.01), ("dense", 1.0), ("dctps", 0.05), ("random", 0.05)]  # method, density


def rows_of(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def rate_of(method: str, density: float) -> float:
    """Return the best rate in the table; lines of other densities take that of 1 %."""
    if not TABLE.exists():
        raise SystemExit(f"{TABLE} is missing; run {Path(__file__).name} first")
    own = [row for row in rows_of(TABLE) if row["method"] == method]
    density = density if any(float(row["density"]) == density for row in own) else 0.01
    rows = [row for row in own if float(row["density"]) == density]
    return float(max(rows, key=lambda row: float(row["accuracy"]))["lr"])


def next_rate(tried: dict[float, float]) -> float | None:
    """Return the rate to try next, given the accuracies of those that were tried, or None if the best is known."""
    if len(tried) < len(FIRST):
        return FIRST[len(tried)]
    rates = sorted(tried)
    best = max(rates, key=lambda rate: tried[rate])
    if len(tried) >= MOST or best not in (rates[0], rates[-1]):
        return None
    return float(f"{best * 3 if best == rates[-1] else best / 3:.1g}")


def tried_rate(line: Line, folder: Path) -> dict[str, Any]:
    """Perform a line, unless it is there, and return its row of the table."""
    rows = rows_of(perform(line, local_exchange(line), folder / f"{line.lr:g}"))
    last = [float(row["accuracy"]) for row in rows if row["accuracy"]][-5:]
    same = {key: rows[0][key] for key in ("method", "density", "seed", "rounds", "lr")}
    return {**same, "accuracy": f"{statistics.mean(last):.2f}", "commit": rows[0]["commit"]}


def best_rates(method: str, density: float, rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all rates that are tried for a method and a density."""
    rows: list[dict[str, Any]] = []
    while (rate := next_rate({float(row["lr"]): float(row["accuracy"]) for row in rows})) is not None:
        line = Line(method, density, lr=rate, rounds=rounds, measured_on="validation", measured_every=rounds // 10)
        rows.append(tried_rate(line, folder))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=Path, default=Path("build/federated-rates"), help="where the lines are kept")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    torch.set_flush_denormal(True)
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for method, density in CASES:
        rows += best_rates(method, density, options.rounds, options.lines)
        write_atomically(TABLE, lambda part, rows=rows: write_rows(part, rows))
    for row in rows:
        print(*(f"{key}={value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
