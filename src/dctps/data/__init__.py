"""Data sets by name, as tensors in memory, and batches of them.

A new data set is a module with a loader and a `DatasetInfo`, which is entered in `DATASETS` here.
"""

import os
from pathlib import Path

from dctps.base.extras import require
from dctps.base.registry import unknown
from dctps.data.batches import Batches, split
from dctps.data.cifar import CIFAR10, CIFAR100
from dctps.data.dataset import DataError, Dataset, DatasetInfo
from dctps.data.digits import DIGITS, DIGITS32
from dctps.data.folder import load_folder
from dctps.data.mnist import FASHION_MNIST, MNIST
from dctps.data.sources import data_root
from dctps.data.tiny_imagenet import TINY_IMAGENET

__all__ = ["DATASETS", "Batches", "DataError", "Dataset", "DatasetInfo", "check", "data_root", "load", "split"]

DATASETS: dict[str, DatasetInfo] = {
    info.name: info for info in (CIFAR10, CIFAR100, TINY_IMAGENET, MNIST, FASHION_MNIST, DIGITS, DIGITS32)
}
FOLDER = "folder:"


def load(name: str, root: str | os.PathLike[str] | None = None) -> Dataset:
    """Load a data set by its name in `DATASETS`, or a folder of your own images by `folder:PATH`.

    The files are looked for in root/<name>/ and in root itself. The default root is $DCTPS_DATA or ~/.cache/dctps.
    """
    check(name)
    if name.startswith(FOLDER):
        return load_folder(Path(name.removeprefix(FOLDER)).expanduser())
    return DATASETS[name](data_root(root))


def check(name: str) -> None:
    """Raise DataError if `load` does not know the name, ModuleNotFoundError if a package that it needs is missing."""
    if name.startswith(FOLDER):
        require("PIL", "a folder of images")
        return
    if name not in DATASETS:
        raise DataError(unknown("data set", name, DATASETS, f", or {FOLDER}PATH"))
    for module in DATASETS[name].modules:
        require(module, f"the data set {name}")
