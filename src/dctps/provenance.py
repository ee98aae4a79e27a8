"""Where a result comes from: commit, versions, processor, time."""

import datetime
import functools
import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch


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
    """The commit of the source, marked if it was changed since; None outside a repository.

    As it was when first asked for: a sweep of many hours runs the code that it was started with.
    """
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.strip() or None


def cpu() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
