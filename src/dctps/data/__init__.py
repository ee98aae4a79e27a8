"""Data sets by name, as tensors in memory, and batches of them; see `DATASETS` for the names."""

import os
from collections.abc import Callable
from pathlib import Path

from dctps.data.batches import Batches, split
from dctps.data.cifar import load_cifar10, load_cifar100
from dctps.data.dataset import DataError, Dataset
from dctps.data.digits import load_digits, load_digits32
from dctps.data.folder import load_folder
from dctps.data.mnist import load_fashion_mnist, load_mnist
from dctps.data.sources import data_root
from dctps.data.tiny_imagenet import load_tiny_imagenet

__all__ = ["DATASETS", "Batches", "DataError", "Dataset", "data_root", "load", "split"]

DATASETS: dict[str, Callable[[Path], Dataset]] = {
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "tiny_imagenet": load_tiny_imagenet,
    "mnist": load_mnist,
    "fashion_mnist": load_fashion_mnist,
    "digits": load_digits,
    "digits32": load_digits32,
}
FOLDER = "folder:"


def load(name: str, root: str | os.PathLike[str] | None = None) -> Dataset:
    """A data set by its name, or `folder:PATH` for a folder of images of your own.

    The files are looked for in root/<name>/ and in root itself; the root is $DCTPS_DATA or ~/.cache/dctps unless
    given.
    """
    if name.startswith(FOLDER):
        return load_folder(Path(name.removeprefix(FOLDER)).expanduser())
    if name not in DATASETS:
        raise DataError(f"unknown data set {name!r}; choose one of: {', '.join(DATASETS)}, or {FOLDER}PATH")
    return DATASETS[name](data_root(root))
