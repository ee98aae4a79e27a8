"""Where a result comes from: commit, versions, processor, time."""

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
    """The commit of this package, as it was when first asked for: a sweep runs the code that it was started with."""
    return commit_of(Path(__file__).parent)


def commit_of(package: Path) -> str | None:
    """The commit of a package's source, marked if that was changed since; None where it is in no repository.

    Only its own files count: results that are written beside it change nothing in it, and a repository that merely
    holds the environment in which it is installed says nothing about it.
    """
    if not _git(package, "ls-files", "__init__.py"):
        return None
    changed = _git(package, "status", "--porcelain", "--untracked-files=no", "--", ".")
    return _git(package, "describe", "--always", "--abbrev=12") + ("-dirty" if changed else "")


def _git(folder: Path, *command: str) -> str:
    """What git says, or nothing."""
    try:
        run = subprocess.run(["git", "-C", str(folder), *command], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout.strip() if run.returncode == 0 else ""
