"""Where a result comes from: the commit of the source, versions, the processor, the time."""

import datetime
import functools
import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from dctps.base.machine import cpu


def provenance() -> dict[str, Any]:
    """Return what a result says about its origin; the values are ready for JSON."""
    versions = {name: importlib.metadata.version(name) for name in ("dctps", "numpy", "safetensors")}
    return {
        "commit": commit(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, **versions},
        "cpu": cpu(),
        "threads": torch.get_num_threads(),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


@functools.cache
def commit() -> str | None:
    """Return the commit of dctps at the first call: a long sweep runs the code that it was started with."""
    return commit_of(Path(__file__).parents[1])


def commit_of(package: Path) -> str | None:
    """Return the commit of a package's source, or None where git does not track it; "-dirty" marks later changes.

    Only the files of the package count. Results that are written beside it do not make it dirty. If a repository merely
    contains the environment in which the package is installed, its commit says nothing about the package.
    """
    if not _git(package, "ls-files", "__init__.py"):
        return None
    changed = _git(package, "status", "--porcelain", "--untracked-files=no", "--", ".")
    return _git(package, "describe", "--always", "--abbrev=12") + ("-dirty" if changed else "")


def _git(folder: Path, *command: str) -> str:
    """Return the output of a git command, or an empty string if it fails."""
    try:
        run = subprocess.run(["git", "-C", str(folder), *command], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout.strip() if run.returncode == 0 else ""
