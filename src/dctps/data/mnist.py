"""MNIST and Fashion-MNIST: the official IDX files, as they are or with gzip.

An IDX file is: two zero bytes, the type (8: bytes), the number of dimensions, each dimension as a big-endian 32-bit
number, and the bytes. The images of 28 x 28 pixels get a border of two zero pixels, as for LeCun's network: a loaded
image has 32 x 32.
"""

import math
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dctps.data.archives import read_gz
from dctps.data.dataset import DataError, Dataset, DatasetInfo, Remote
from dctps.data.sources import not_found, places

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
SIZE, BORDER = 28, 2
# Both data sets have the same file names; the first labels of the official training files tell them apart.
FIRST_LABELS = {"mnist": [5, 0, 4, 1, 9, 2, 1, 3, 1, 4], "fashion_mnist": [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]}


def load_mnist(root: Path) -> Dataset:
    """Load MNIST. Its mean and standard deviation are the usual ones, of the images without the border."""
    return Dataset("mnist", *_load("mnist", root), classes=10, mean=(0.1307,), std=(0.3081,), flip=False)


def load_fashion_mnist(root: Path) -> Dataset:
    """Load Fashion-MNIST. Its mean and standard deviation are those of the images without the border."""
    return Dataset("fashion_mnist", *_load("fashion_mnist", root), classes=10, mean=(0.2860,), std=(0.3530,))


def _remotes(url: str, *md5s: str) -> tuple[Remote, ...]:
    return tuple(Remote(f"{url}{file}.gz", md5) for file, md5 in zip(FILES, md5s, strict=True))


MNIST = DatasetInfo(
    name="mnist",
    title="MNIST",
    channels=1,
    side=SIZE + 2 * BORDER,
    classes=10,
    training_images=60_000,
    loader=load_mnist,
    files=_remotes(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "f68b3c2dcbeaaa9fbdd348bbdeb72873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
)
FASHION_MNIST = DatasetInfo(
    name="fashion_mnist",
    title="Fashion-MNIST",
    channels=1,
    side=SIZE + 2 * BORDER,
    classes=10,
    training_images=60_000,
    loader=load_fashion_mnist,
    files=_remotes(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
)


# --- reading --------------------------------------------------------------------------------------------------------


def _load(name: str, root: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    paths = _find(name, root)
    train = _part(*paths[:2])
    for other, labels in FIRST_LABELS.items():
        if other != name and train[1][: len(labels)].tolist() == labels:
            raise DataError(f"{paths[1]} is a file of {other}, not of {name}; put those of {name} into {root / name}")
    return (*train, *_part(*paths[2:]))


def _find(name: str, root: Path) -> list[Path]:
    for place in places(name, root):
        found = {file: path for file in FILES for path in (place / f"{file}.gz", place / file) if path.is_file()}
        missing = [file for file in FILES if file not in found]
        if found and missing:
            raise DataError(f"{place} has no {missing[0]}.gz, packed or unpacked; it needs {', '.join(FILES)}")
        if found:
            return [found[file] for file in FILES]
    raise not_found(name, root, [f"{', '.join(f'{file}.gz' for file in FILES)} (packed or unpacked)"])


def _part(images_path: Path, labels_path: Path) -> tuple[Tensor, Tensor]:
    """Return images, uint8 (n, 1, 32, 32), and labels, int64 (n,)."""
    images, labels = read_idx(images_path, dimensions=3), read_idx(labels_path, dimensions=1)
    if images.shape[1:] != (SIZE, SIZE):
        raise DataError(f"{images_path} has images of {tuple(images.shape[1:])} pixels, not {SIZE} x {SIZE}")
    if len(images) != len(labels):
        raise DataError(f"{images_path} has {len(images)} images but {labels_path} {len(labels)} labels")
    wrong = (labels > 9).nonzero().flatten()
    if len(wrong):
        first = int(wrong[0])
        raise DataError(f"{labels_path}: record {first} has label {int(labels[first])}, not one of 0 to 9")
    return torch.nn.functional.pad(images[:, None], (BORDER,) * 4), labels.long()


def read_idx(path: Path, dimensions: int) -> Tensor:
    """Return the bytes of an IDX file as a tensor of the shape that the file gives."""
    content, start = read_gz(path), 4 + 4 * dimensions
    expected = bytes([0, 0, 8, dimensions])
    if content[:4] != expected or len(content) < start:
        raise DataError(f"{path} starts with {content[:4].hex()}, not {expected.hex()}: not an IDX file of this kind")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise DataError(
            f"{path} has a wrong length: {len(content) - start} bytes for the shape {shape}, "
            f"so that record {(len(content) - start) // max(1, math.prod(shape[1:]))} is cut or one too many"
        )
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy())
