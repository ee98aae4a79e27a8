"""LeNet-5 on CIFAR-10 by the paper's settings, shortened: dense, DCTpS and Random (EPL) at three densities, one seed.

    python benchmarks/lenet_cifar10.py [--epochs 15] [--runs runs]

Needs CIFAR-10 (dctps data get cifar10, or DCTPS_DATA). Finished runs are not trained again. Writes
results/lenet-cifar10-<epochs>ep.csv.
"""

import argparse
import csv
import dataclasses
from pathlib import Path

from dctps.config import PRESETS, Runtime
from dctps.train import fit

DENSITIES = (0.05, 0.01, 0.004)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    options = parser.parse_args()
    base = dataclasses.replace(PRESETS["paper-lenet"], epochs=options.epochs)
    cells = [("dense", None, "dct"), *((m, d, o) for m, o in (("DCTpS", "dct"), ("Random", None)) for d in DENSITIES)]
    rows = []
    for method, density, offset in cells:
        result = fit(dataclasses.replace(base, density=density, offset=offset), Runtime(runs=options.runs))
        accuracy, counts = result["accuracy"], result["weights"]
        scores = [round(100 * accuracy[k], 2) for k in ("best_validation", "test_at_best", "final_test")]
        where = [result["seconds"], result["bytes"]["file"], result["cpu"], result["commit"], result["id"]]
        rows.append([method, density or 1.0, counts["got"], options.epochs, base.seed, *scores, *where])
    path = Path(__file__).parents[1] / "results" / f"lenet-cifar10-{options.epochs}ep.csv"
    names = (
        "method density weights epochs seed best_validation test_at_best final_test seconds file_bytes cpu commit run"
    )
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([names.split(), *rows])
    print(path.read_text())


if __name__ == "__main__":
    main()
