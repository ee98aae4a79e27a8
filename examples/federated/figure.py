"""The figure of docs/federated.md: accuracy against bytes, of federated trainings of LeNet-5 on CIFAR-10.

    python examples/federated/figure.py [--lines build/federated] [--rounds 50] [--seeds 0] [--simulation] [--finished]

Performs the lines one after the other in this process (or by Flower's simulation), each into a CSV file of its own in
the folder of lines; a line that is there is not repeated. After each line it writes all rows as results/federated.csv,
and the figure results/federated.png; at the end it prints a table. CIFAR-10 is found as by `dctps.data.load`.
"""

import argparse
import csv
import itertools
import statistics
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import torch
from federation.line import Line
from federation.rounds import local_exchange, perform, write_rows

import dctps
from dctps.base.files import write_atomically

RESULTS = Path(__file__).parents[2] / "results"
LRS = {"dctps": 3e-2, "random": 3e-2, "dense": 3e-3}  # chosen on validation images, see docs/federated.md
WHAT = [  # method, density, updates: the most telling ones first
    ("dctps", 0.01, "whole"),
    ("dense", 1.0, "whole"),
    ("random", 0.01, "whole"),
    ("dctps", 0.05, "whole"),
    ("random", 0.05, "whole"),
    ("dctps", 0.01, "int8"),
    ("dctps", 0.001, "whole"),
    ("random", 0.001, "whole"),
]
NAMES = {"dctps": "DCTpS", "random": "random pruning", "dense": "dense FedAvg"}
COLOURS = {1.0: "black", 0.05: "#d95f02", 0.01: "#1b9e77", 0.001: "#7570b3"}
WEIGHTS = sum(p.numel() for p in dctps.models.build("lenet").parameters())
STYLES = {"dctps": "-", "random": "--", "dense": "-"}


def lines(rounds: int, seeds: list[int]) -> list[Line]:
    """Return the lines of the figure, all of the first seed first.

    Dense FedAvg is measured in every round: others have fewer bytes in all than it in two rounds.
    """
    return [
        Line(method, density, updates, seed, rounds, lr=LRS[method], measured_every=1 if method == "dense" else 5)
        for seed, (method, density, updates) in itertools.product(seeds, WHAT)
    ]


def rows_of(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def label(row: dict[str, Any]) -> str:
    density = "" if row["method"] == "dense" else f", {100 * float(row['density']):g} %"
    return NAMES[row["method"]] + density + ("" if row["updates"] == "whole" else f", {row['updates']} updates")


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the accuracy of each line against the bytes of all messages so far."""
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for key, group in itertools.groupby(rows, key=lambda row: (label(row), row["seed"])):
        own = [row for row in group if row["accuracy"]]
        style = ":" if own[0]["updates"] != "whole" else STYLES[own[0]["method"]]
        axes.semilogx(
            [int(row["bytes_total"]) for row in own],
            [float(row["accuracy"]) for row in own],
            style,
            color=COLOURS[float(own[0]["density"])],
            marker="o",
            markersize=3,
            label=key[0] if key[1] == rows[0]["seed"] else None,
        )
    axes.axhline(10, color="grey", linewidth=0.8)
    axes.set_xlabel("bytes sent so far, to and from all clients")
    axes.set_ylabel("test accuracy in %")
    axes.set_title(f"LeNet-5 on CIFAR-10, {rows[0]['clients']} clients, {rows[0]['sampled']} in each round")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    write_atomically(path, lambda part: figure.savefig(part, format="png", dpi=120))
    plt.close(figure)


def table(rows: list[dict[str, Any]]) -> str:
    """Return a table in Markdown: what each line sends, and its accuracy after equal bytes and at the end (a mean)."""
    budgets = (250_000, 1_250_000, 5_000_000, 12_500_000)
    sizes = [f"{size / 1e6:g} MB" for size in budgets]
    head = [
        "line",
        "bytes down, up",
        "bits per weight down, up",
        *(f"after {size}" for size in sizes),
        "last ten rounds",
    ]
    body = [head, ["---", *["--:"] * (len(head) - 1)]]
    for name, group in itertools.groupby(rows, key=lambda row: f"{label(row)}, seed {row['seed']}"):
        own = list(group)
        sent = [int(own[0][key]) for key in ("bytes_down", "bytes_up")]
        bits = ", ".join(f"{8 * size / WEIGHTS:.3g}" for size in sent)
        last = [float(row["accuracy"]) for row in own[-10:] if row["accuracy"]]
        reached = [*(reached_by(own, size) for size in budgets), f"{statistics.mean(last):.1f}"]
        body.append([name, ", ".join(f"{size:,}" for size in sent), bits, *reached])
    return "\n".join("| " + " | ".join(row) + " |" for row in body)


def reached_by(rows: list[dict[str, Any]], size: int) -> str:
    """Return the last accuracy of a line within a number of bytes, or nothing if there is none."""
    within = [row["accuracy"] for row in rows if row["accuracy"] and int(row["bytes_total"]) <= size]
    return within[-1] if within else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=Path, default=Path("build/federated"), help="where the lines are kept")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
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
