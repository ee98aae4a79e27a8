"""The figure of docs/federated.md: accuracy against bytes, of federated trainings of LeNet-5 on CIFAR-10.

    python examples/federated/figure.py [--lines build/federated] [--rounds 200] [--seeds 0 1 2] [--finished]

Performs the lines one after the other in this process (or by Flower's simulation), each into a CSV file of its own in
the folder of lines; a line that is there is not repeated. After each line it writes all rows as results/federated.csv,
and the figure results/federated.png; at the end it prints a table. CIFAR-10 is found as by `dctps.data.load`. The
learning rates are those of results/federated-rates.csv, which rates.py makes.
"""

import argparse
import itertools
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import matplotlib.pyplot as plt
import torch
from federation.line import Line
from federation.rounds import local_exchange, perform, write_rows
from rates import rate_of, rows_of

import dctps
from dctps.base.files import write_atomically

RESULTS = Path(__file__).parents[2] / "results"
WHAT = [  # method, density, updates: the most telling ones first
    ("dctps", 0.01, "whole"),
    ("dense", 1.0, "whole"),
    ("random", 0.01, "whole"),
    ("dctps", 0.05, "whole"),
    ("random", 0.05, "whole"),
    ("dctps", 0.01, "int8"),
    ("dctps", 0.001, "whole"),
    ("random", 0.001, "whole"),
    ("dense", 1.0, "int8"),
]
NAMES = {"dctps": "DCTpS", "random": "random pruning", "dense": "dense FedAvg"}
COLOURS = {1.0: "black", 0.05: "#d95f02", 0.01: "#1b9e77", 0.001: "#7570b3"}
WEIGHTS = sum(p.numel() for p in dctps.models.build("lenet").parameters())
STYLES = {"dctps": "-", "random": "--", "dense": "-"}


def lines(rounds: int, seeds: list[int]) -> list[Line]:
    """Return the lines of the figure, all of the first seed first.

    Dense FedAvg is measured in every round: others have fewer bytes in all than it in a few rounds.
    """
    return [
        Line(
            method,
            density,
            updates,
            seed,
            rounds,
            lr=rate_of(method, density),
            measured_every=1 if method == "dense" else 5,
        )
        for seed, (method, density, updates) in itertools.product(seeds, WHAT)
    ]


def label(row: dict[str, Any]) -> str:
    density = "" if row["method"] == "dense" else f", {100 * float(row['density']):g} %"
    return NAMES[row["method"]] + density + ("" if row["updates"] == "whole" else f", {row['updates']} updates")


class Point(NamedTuple):
    """A measurement of the seeds of a line: bytes of all messages so far, mean and deviation of the accuracy."""

    size: float
    mean: float
    deviation: float


def by_line(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each line, those of all its seeds together."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(label(row), []).append(row)
    return found


def points(rows: list[dict[str, Any]]) -> list[Point]:
    """Return the measurements of a line, one for each round that was measured."""
    found: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if row["accuracy"]:
            found.setdefault(int(row["round"]), []).append(row)
    sizes = [statistics.mean(int(row["bytes_total"]) for row in own) for own in found.values()]
    return [Point(size, *spread(accuracies(own))) for size, own in zip(sizes, found.values(), strict=True)]


def accuracies(rows: list[dict[str, Any]]) -> list[float]:
    """Return the accuracies of those rows that were measured."""
    return [float(row["accuracy"]) for row in rows if row["accuracy"]]


def spread(numbers: list[float]) -> tuple[float, float]:
    """Return mean and deviation; that of a single number is 0."""
    return statistics.mean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else 0.0


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the accuracy of each line against the bytes of all messages so far, with a band of one deviation."""
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for name, own in by_line(rows).items():
        found, colour = points(own), COLOURS[float(own[0]["density"])]
        style = ":" if own[0]["updates"] != "whole" else STYLES[own[0]["method"]]
        sizes, means = [point.size for point in found], [point.mean for point in found]
        axes.semilogx(sizes, means, style, color=colour, label=name)
        low, high = zip(*((point.mean - point.deviation, point.mean + point.deviation) for point in found), strict=True)
        axes.fill_between(sizes, low, high, color=colour, alpha=0.12, linewidth=0)
    seeds, first = len({row["seed"] for row in rows}), rows[0]
    axes.axhline(10, color="grey", linewidth=0.8)
    axes.set_xlabel("bytes sent so far, to and from all clients")
    axes.set_ylabel("test accuracy in %")
    axes.set_title(
        f"LeNet-5 on CIFAR-10, {first['clients']} clients, {first['sampled']} in each round, {first['rounds']} rounds, "
        f"{seeds} seed{'s' * (seeds > 1)}"
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    write_atomically(path, lambda part: figure.savefig(part, format="png", dpi=120))
    plt.close(figure)


BUDGETS = (250_000, 1_250_000, 5_000_000, 20_000_000, 100_000_000)


def table(rows: list[dict[str, Any]]) -> str:
    """Return a table in Markdown: what each line sends, and its accuracy after equal bytes and at the end.

    An accuracy is mean and deviation of the seeds; at the end it is first averaged over the last ten rounds.
    """
    after = [f"after {size / 1e6:g} MB" for size in BUDGETS]
    head = ["line", "seeds", "bytes down, up", "bits per weight down, up", *after, "last ten rounds"]
    body = [head, ["---", *["--:"] * (len(head) - 1)]]
    for name, own in by_line(rows).items():
        sent, seeds = [int(own[0][key]) for key in ("bytes_down", "bytes_up")], len({row["seed"] for row in own})
        bits = ", ".join(f"{8 * size / WEIGHTS:.3g}" for size in sent)
        reached = [reached_by(points(own), size) for size in BUDGETS]
        body.append([name, str(seeds), ", ".join(f"{size:,}" for size in sent), bits, *reached, at_the_end(own)])
    return "\n".join("| " + " | ".join(row) + " |" for row in body)


def reached_by(found: list[Point], size: int) -> str:
    """Return the last accuracy of a line within a number of bytes, or nothing if there is none or it ended before."""
    within = [point for point in found if point.size <= size]
    ended = len(within) == len(found) and size > 1.5 * found[-1].size
    return "" if ended or not within else said(*within[-1][1:])


def at_the_end(rows: list[dict[str, Any]]) -> str:
    last = max(int(row["round"]) for row in rows) - 10
    ends = itertools.groupby((row for row in rows if int(row["round"]) > last), key=lambda row: row["seed"])
    return said(*spread([statistics.mean(accuracies(list(own))) for _, own in ends]))


def said(mean: float, deviation: float) -> str:
    return f"{mean:.1f}" + (f" ± {deviation:.1f}" if deviation else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=Path, default=Path("build/federated"), help="where the lines are kept")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--simulation", action="store_true", help="perform the lines by Flower's simulation")
    parser.add_argument("--finished", action="store_true", help="perform no line; show those that are finished")
    options = parser.parse_args()
    matplotlib.use("Agg")
    torch.set_flush_denormal(True)
    torch.set_num_threads(1)
    paths = []
    for line in lines(options.rounds, options.seeds):
        if options.finished and not (options.lines / f"{line.name}.csv").exists():
            continue
        if options.simulation:
            from federation.simulation import simulate

            simulate(line, options.lines)
        else:
            perform(line, local_exchange(line), options.lines)
        paths.append(options.lines / f"{line.name}.csv")
        rows = [row for path in paths for row in rows_of(path)]
        write_atomically(RESULTS / "federated.csv", lambda part, rows=rows: write_rows(part, rows))
        draw(rows, RESULTS / "federated.png")
    print(table(rows))


if __name__ == "__main__":
    main()
