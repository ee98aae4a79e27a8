"""Installations into new environments: wheel and source, with and without a compiler, with an old and the newest numpy.

    python benchmarks/install_matrix.py [--torch torch==2.13.0] [--only ROW ...] [--dist FOLDER] [--repeats 3]

Needs the packages `build` and `mypy`. Each environment gets torch first, then the row's numpy, then dctps. It then
imports dctps with all warnings as errors, trains, saves and loads a small network of each offset, and measures the
imports. mypy looks at a user's file. The last line of each row says what was found; all folders are deleted at the end.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Row:
    """One installation: from which file, beside which numpy, with which variables, and whether it has kernels."""

    source: str
    numpy: str = "numpy"
    variables: dict[str, str] = field(default_factory=dict)
    kernels: bool = True


ROWS = {
    "wheel": Row("*.whl"),
    "wheel-numpy-1.26": Row("*.whl", "numpy==1.26.*"),
    "sdist": Row("*.tar.gz"),
    "sdist-no-compiler": Row("*.tar.gz", variables={"CC": "/bin/false", "CXX": "/bin/false"}, kernels=False),
    "sdist-native-0": Row("*.tar.gz", variables={"DCTPS_NATIVE": "0"}, kernels=False),
}
SMOKE = """
import numpy, torch, dctps, dctps.ops.native as native
from torch import nn
assert (native.kernels is not None) == KERNELS, native.WHY_NOT
x, y = torch.randn(8, 3, 12, 12), torch.arange(8) % 4
for offset in [*dctps.OFFSETS, None]:
    def make():
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(800, 4))
        return dctps.sparsify(net, 0.1, offset=offset)
    net = make()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], (offset, losses)
    dctps.save(net.eval(), "net.safetensors")
    other = dctps.load("net.safetensors", make()).eval()
    torch.testing.assert_close(other(x), net(x))
    torch.testing.assert_close(dctps.densify(other)(x), net(x), rtol=1e-4, atol=1e-4)  # sums in another order
print(f"numpy {numpy.__version__}, kernels {native.instruction_set()}, {len(dctps.OFFSETS) + 1} offsets", end="")
"""
USER_FILE = "from dctps import sparsify\nimport dctps\nreveal_type(sparsify)\ndctps.sparsfy\n"
IMPORTS = {"torch": "import torch", "dctps": "import dctps", "sparsify": "from dctps import sparsify"}


def run(*command: object, cwd: Path, **variables: str) -> str:
    """Run a command and return what it prints; end with its output if it fails."""
    environment = {**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **variables}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)[:200]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def import_times(python: Path, folder: Path, repeats: int) -> str:
    """The median seconds of processes that import torch, dctps, and one name of dctps, measured in turn."""
    if not repeats:
        return "imports not measured"
    times: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(repeats + 1):
        for name, code in IMPORTS.items():
            start = time.perf_counter()
            run(python, "-c", code, cwd=folder)
            times[name].append(time.perf_counter() - start)
    return ", ".join(f"import {name} {statistics.median(own[1:]):.2f} s" for name, own in times.items())


def check_types(python: Path, folder: Path) -> str:
    """Whether mypy, which looks at a user's file, sees the types of the installed package."""
    (folder / "user.py").write_text(USER_FILE)
    command = [sys.executable, "-m", "mypy", "--python-executable", str(python), "--no-incremental", "user.py"]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout
    seen = "def (model:" in found and 'has no attribute "sparsfy"' in found
    return "types seen" if seen else f"types not seen: {found}"


def install(name: str, row: Row, given: argparse.Namespace, dist: Path, folder: Path) -> str:
    """Make an environment, install, try; return one line."""
    venv.create(folder / name, with_pip=True)
    python = folder / name / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    run(*pip, given.torch, row.numpy, cwd=folder)
    (source,) = dist.glob(row.source)
    start = time.perf_counter()
    run(*pip, source, cwd=folder, **row.variables)
    seconds = time.perf_counter() - start
    run(python, "-W", "error", "-c", "import dctps", cwd=folder)
    smoke = run(python, "-c", SMOKE.replace("KERNELS", str(row.kernels)), cwd=folder)
    imports = import_times(python, folder, given.repeats)
    return f"{name}: {seconds:.0f} s; {smoke}; {imports}; {check_types(python, folder)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default="torch==2.13.0", help="what pip installs as torch")
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--dist", type=Path, help="a folder with the wheel and the source distribution, built before")
    parser.add_argument("--repeats", type=int, default=3, help="how often to measure each import; 0 leaves it out")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        dist = given.dist.resolve() if given.dist else folder / "dist"
        if not given.dist:
            run(sys.executable, "-m", "build", "--outdir", dist, ROOT, cwd=folder)
        for name in given.only:
            print(install(name, ROWS[name], given, dist, folder), flush=True)


if __name__ == "__main__":
    main()
