"""How long a newcomer waits: the import of torch and of dctps, and each page of help. Each line is a new process.

    python benchmarks/import_time.py [--repeats 5]

Prints the median and the least time of each in seconds. All are measured in turn, so that whatever else the machine
does hits all alike.
"""

import argparse
import statistics
import subprocess
import sys
import time

from dctps.cli import COMMANDS

PAGES = [*COMMANDS, "data get", "bench layers", "bench step", "bench scaling"]
IMPORTS = {
    "import torch": ["-c", "import torch"],
    "import dctps": ["-c", "import dctps"],
    "from dctps import sparsify": ["-c", "from dctps import sparsify"],
    "from dctps import *": ["-c", "from dctps import *"],
    "dctps.train.fit": ["-c", "import dctps; dctps.train.fit"],
}
HELP = {f"dctps {page} --help".replace("  ", " "): ["-m", "dctps", *page.split(), "--help"] for page in ["", *PAGES]}


def seconds(arguments: list[str]) -> float:
    """Return the time of one Python process."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    asked = {**IMPORTS, **HELP}
    times: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(repeats):
        for name, arguments in asked.items():
            times[name].append(seconds(arguments))
    print(f"{'':28}{'median':>8}{'least':>8}  seconds")
    for name, own in times.items():
        print(f"{name:28}{statistics.median(own):8.2f}{min(own):8.2f}")


if __name__ == "__main__":
    main()
