"""Where data are looked for, and what is said when they, or a package that reads them, are missing."""

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dctps.data.dataset import DataError


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder of all data sets: `root`, else $DCTPS_DATA, else dctps in the user's cache folder."""
    if root is not None:
        return Path(root).expanduser()
    if os.environ.get("DCTPS_DATA"):
        return Path(os.environ["DCTPS_DATA"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dctps"


def places(name: str, root: Path) -> list[Path]:
    """The folders in which the files of a data set may lie: its own first, then the common one."""
    return [place for place in (root / name, root) if place.is_dir()]


def not_found(name: str, root: Path, files: Sequence[str]) -> DataError:
    """The error of a loader that found none of the forms it reads."""
    return DataError(
        f"found no {name} in {root / name} or {root}; put {' or '.join(files)} into {root / name}, "
        f"or run: dctps data get {name} --root {root}"
    )


def needed(module: str, package: str, extra: str) -> Any:
    """An optional dependency, imported where it is used."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"this needs {package}; install it with: pip install 'dctps[{extra}]'") from error
