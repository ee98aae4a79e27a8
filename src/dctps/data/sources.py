"""The folders in which data are looked for, and the error when data are missing."""

import os
from collections.abc import Sequence
from pathlib import Path

from dctps.data.dataset import DataError


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of all data sets: `root`, else $DCTPS_DATA, else dctps in the user's cache folder."""
    if root is not None:
        return Path(root).expanduser()
    if os.environ.get("DCTPS_DATA"):
        return Path(os.environ["DCTPS_DATA"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dctps"


def places(name: str, root: Path) -> list[Path]:
    """Return the folders in which the files of a data set may lie: its own folder, then the root."""
    return [place for place in (root / name, root) if place.is_dir()]


def not_found(name: str, root: Path, files: Sequence[str]) -> DataError:
    """Return the error of a loader that found none of the files that it can read."""
    return DataError(
        f"found no {name} in {root / name} or {root}; put {' or '.join(files)} into {root / name}, "
        f"or run: dctps data get {name} --root {root}"
    )
