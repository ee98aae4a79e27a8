"""CIFAR-10 and CIFAR-100, in the official binary and python versions, packed or unpacked.

A record of the binary version is one label byte (CIFAR-100: coarse, then fine) and 3072 bytes: the red, green and
blue planes of 32 x 32, row by row. The python version has pickled dictionaries with the same planes as an array.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dctps.data.archives import read_tar
from dctps.data.dataset import DataError, Dataset, DatasetInfo, Remote
from dctps.data.pickles import unpickled
from dctps.data.sources import not_found, places

Part = tuple[Tensor, Tensor]  # uint8 (n, 3, 32, 32) and int64 (n,)
SHAPE, PIXELS = (3, 32, 32), 3072
BATCHES = range(1, 6)


@dataclasses.dataclass(frozen=True)
class Layout:
    """One official version of a data set."""

    archive: str
    folder: str  # in the archive
    train: tuple[str, ...]  # names of the files with training images
    test: tuple[str, ...]
    parse: Callable[[bytes, str], Part]  # takes the content and the name of a file
    train_count: int = 10_000  # images in each file
    test_count: int = 10_000

    @property
    def files(self) -> tuple[str, ...]:
        return self.train + self.test


# --- one file -------------------------------------------------------------------------------------------------------


def binary(content: bytes, file: str, limits: tuple[int, ...]) -> Part:
    """Return images and labels of a binary file.

    `limits` has the number of classes for each label byte of a record; the last byte is the label.
    """
    length = len(limits) + PIXELS
    whole, rest = divmod(len(content), length)
    if rest or not whole:
        raise DataError(
            f"{file} has a wrong length: record {whole} has {rest} of {length} bytes; take another copy of the file"
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(whole, length)
    for column, classes in enumerate(limits):
        _check_labels(records[:, column], classes, file)
    images = records[:, len(limits) :].reshape(-1, *SHAPE).copy()  # the bytes themselves cannot be written to
    return torch.from_numpy(images), torch.from_numpy(records[:, len(limits) - 1].astype(np.int64))


def pickled(content: bytes, file: str, key: str, classes: int) -> Part:
    """Return images and labels of a pickled batch, which has the planes in `data` and the labels in `key`."""
    batch = unpickled(content, file)
    missing = {"data", key} - batch.keys()
    if missing:
        raise DataError(f"{file} has no {sorted(missing)[0]!r}; it has {', '.join(sorted(batch))}")
    images, labels = batch["data"], np.asarray(batch[key])
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (PIXELS,):
        kind = getattr(images, "dtype", type(images).__name__)
        raise DataError(f"{file}: its data must be uint8 (n, {PIXELS}), not {kind} {np.shape(images)}")
    if labels.dtype.kind not in "iu" or labels.shape != (len(images),):
        raise DataError(f"{file}: {len(images)} images but {key} {labels.dtype} {labels.shape}; take another copy")
    _check_labels(labels, classes, file)
    return torch.from_numpy(images.reshape(-1, *SHAPE).copy()), torch.from_numpy(labels.astype(np.int64))


def _check_labels(labels: np.ndarray, classes: int, file: str) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise DataError(
            f"{file}: record {wrong[0]} has label {labels[wrong[0]]}, not one of 0 to {classes - 1}; take another copy"
        )


# --- the data sets --------------------------------------------------------------------------------------------------

URL = "https://www.cs.toronto.edu/~kriz/"
LAYOUTS10 = (
    Layout(
        "cifar-10-binary.tar.gz",
        "cifar-10-batches-bin",
        tuple(f"data_batch_{number}.bin" for number in BATCHES),
        ("test_batch.bin",),
        partial(binary, limits=(10,)),
    ),
    Layout(
        "cifar-10-python.tar.gz",
        "cifar-10-batches-py",
        tuple(f"data_batch_{number}" for number in BATCHES),
        ("test_batch",),
        partial(pickled, key="labels", classes=10),
    ),
)
LAYOUTS100 = (
    Layout(
        "cifar-100-binary.tar.gz",
        "cifar-100-binary",
        ("train.bin",),
        ("test.bin",),
        partial(binary, limits=(20, 100)),
        train_count=50_000,
    ),
    Layout(
        "cifar-100-python.tar.gz",
        "cifar-100-python",
        ("train",),
        ("test",),
        partial(pickled, key="fine_labels", classes=100),
        train_count=50_000,
    ),
)


def load_cifar10(root: Path) -> Dataset:
    """Load CIFAR-10."""
    parts = _load("cifar10", root, LAYOUTS10)
    return Dataset("cifar10", *parts, classes=10, mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))


def load_cifar100(root: Path) -> Dataset:
    """Load CIFAR-100 with its fine labels."""
    parts = _load("cifar100", root, LAYOUTS100)
    return Dataset("cifar100", *parts, classes=100, mean=(0.5071, 0.4867, 0.4408), std=(0.2675, 0.2565, 0.2761))


CIFAR10 = DatasetInfo(
    name="cifar10",
    title="CIFAR-10",
    channels=3,
    side=32,
    classes=10,
    training_images=50_000,
    loader=load_cifar10,
    files=(Remote(f"{URL}cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
)
CIFAR100 = DatasetInfo(
    name="cifar100",
    title="CIFAR-100",
    channels=3,
    side=32,
    classes=100,
    training_images=50_000,
    loader=load_cifar100,
    files=(Remote(f"{URL}cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
)


# --- reading --------------------------------------------------------------------------------------------------------


def _load(name: str, root: Path, layouts: tuple[Layout, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    layout, source, contents = _find(name, root, layouts)
    missing = [file for file in layout.files if file not in contents]
    if missing:
        raise DataError(f"{source} has no {', '.join(missing)}; it needs {', '.join(layout.files)}")
    parts = {file: layout.parse(contents.pop(file), f"{source}/{file}") for file in layout.files}
    counts = {file: len(parts[file][1]) for file in layout.files}
    official = {file: layout.train_count if file in layout.train else layout.test_count for file in layout.files}
    # A file may be cut at the end of a record. Where one file has the official size, all must have it.
    unequal = len({counts[file] for file in layout.train}) > 1
    if unequal or (counts != official and any(counts[file] == official[file] for file in layout.files)):
        raise DataError(f"{source}: the files must hold {official} images, not {counts}; take another copy")
    train, test = ([parts[file] for file in files] for files in (layout.train, layout.test))
    return (*_joined(train), *_joined(test))


def _joined(parts: list[Part]) -> Part:
    images, labels = zip(*parts, strict=True)
    return torch.cat(images), torch.cat(labels)


def _find(name: str, root: Path, layouts: tuple[Layout, ...]) -> tuple[Layout, Path, dict[str, bytes]]:
    """Return the first version that is there, its archive or folder, and the contents of its files."""
    for place in places(name, root):
        for layout in layouts:
            archive = place / layout.archive
            if archive.is_file():
                return layout, archive, read_tar(archive, layout.files)
            for folder in (place / layout.folder, place):
                contents = {file: (folder / file).read_bytes() for file in layout.files if (folder / file).is_file()}
                if contents:
                    return layout, folder, contents
    raise not_found(name, root, [f"{layout.archive} (or its unpacked files)" for layout in layouts])
