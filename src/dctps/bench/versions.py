"""Another version of dctps in an environment of its own, which borrows all other packages from this one."""

import contextlib
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1]


class Version(NamedTuple):
    """The Python of an environment that has this version."""

    name: str  # of the commit, by 12 digits, or of the wheel
    python: str


@contextlib.contextmanager
def installed(wanted: str) -> Iterator[Version]:
    """Install a commit of this repository, or a wheel, into a temporary folder; it is deleted at the end.

    Raise ValueError if there is no such commit or wheel, or if it cannot be installed.
    """
    with tempfile.TemporaryDirectory(prefix="dctps-version-") as folder:
        name, source = _source(wanted, Path(folder, "source"))
        python = _environment(Path(folder, "environment"))
        command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
        _run([*command, "--no-warn-script-location", str(source)], f"cannot install {wanted}")
        yield Version(name, python)


def variables() -> dict[str, str]:
    """The environment variables of this process, without folders of PYTHONPATH that have a dctps."""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [folder for folder in folders if folder and not Path(folder, "dctps").exists()]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(kept)}


def _source(wanted: str, folder: Path) -> tuple[str, Path]:
    """The name of a version, and the wheel or the folder that holds it."""
    if wanted.endswith(".whl"):
        wheel = Path(wanted).absolute()
        if not wheel.is_file():
            raise ValueError(f"--against {wanted}: there is no such wheel")
        return wheel.name, wheel
    commit = _commit(wanted)
    folder.mkdir()
    archive = folder.with_suffix(".tar")
    root = _run(["git", "-C", str(PACKAGE), "rev-parse", "--show-toplevel"], "no repository").strip()
    _run(["git", "-C", root, "archive", "--output", str(archive), commit], f"cannot read {wanted}")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    return commit[:12], folder


def _commit(wanted: str) -> str:
    """The full name of a commit of the repository that this package lies in."""
    tracked = subprocess.run(["git", "-C", str(PACKAGE), "ls-files", "__init__.py"], capture_output=True, text=True)
    if tracked.returncode or not tracked.stdout:
        raise ValueError(
            f"--against {wanted}: this dctps does not lie in a git repository of its own, so that it has no other "
            f"commits; give a wheel (a file that ends with .whl)"
        )
    command = [
        "git",
        "-C",
        str(PACKAGE),
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        f"{wanted}^{{commit}}",
    ]
    found = subprocess.run(command, capture_output=True, text=True)
    if found.returncode:
        raise ValueError(f"--against {wanted}: the repository of this dctps has no such commit, branch or tag")
    return found.stdout.strip()


def _environment(folder: Path) -> str:
    """Make an environment without pip that finds the packages of this one; return its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    (own,) = folder.glob("[Ll]ib/**/site-packages")
    borrowed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (own / "borrowed.pth").write_text("".join(f"{path}\n" for path in borrowed))
    (python,) = [*folder.glob("bin/python"), *folder.glob("Scripts/python.exe")]
    return str(python)


def _run(command: list[str], failure: str) -> str:
    """The output of a command; ValueError with its last words if it fails."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise ValueError(f"{failure}: {error}") from error
    if ran.returncode:
        said = [line.strip() for line in (ran.stderr or ran.stdout).splitlines() if line.strip()]
        raise ValueError(f"{failure}: {' | '.join(said[-3:]) or f'exit code {ran.returncode}'}")
    return ran.stdout
