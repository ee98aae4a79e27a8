"""A data set: the facts that are known of it before it is read, and its images and labels in memory."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import torch
from torch import Tensor


class DataError(ValueError):
    """Data cannot be found or used; the message says which file or sample, why, and what to do."""


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images with their labels, and how they are normalised and augmented.

    `mean` and `std` have one number per channel: mean and standard deviation of the pixels scaled to [0, 1].
    """

    name: str
    train_images: Tensor  # uint8 (n, channels, height, width)
    train_labels: Tensor  # int64 (n,)
    test_images: Tensor  # uint8 (m, channels, height, width)
    test_labels: Tensor  # int64 (m,)
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    padding: int = 4  # zero pixels around a training image, from which a random crop is taken; 0 means no crops
    flip: bool = True  # half of the training images are mirrored
    selects_on_test: bool = False  # by convention the best epoch is chosen on the test images themselves

    def __post_init__(self) -> None:
        for part, images, labels in (
            ("training", self.train_images, self.train_labels),
            ("test", self.test_images, self.test_labels),
        ):
            _check_images(f"{self.name}: the {part} images", images)
            _check_labels(f"{self.name}: the {part} labels", labels, len(images), self.classes)
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            sizes = f"{tuple(self.train_images.shape[1:])} and {tuple(self.test_images.shape[1:])}"
            raise DataError(f"{self.name}: training and test images have different sizes, {sizes}")
        self._check_settings()

    def _check_settings(self) -> None:
        channels = self.train_images.shape[1]
        if not len(self.mean) == len(self.std) == channels:
            raise DataError(f"{self.name}: mean {self.mean} and std {self.std} need one number per channel, {channels}")
        if not all(math.isfinite(number) for number in self.mean) or not all(
            0 < number < math.inf for number in self.std
        ):
            raise DataError(f"{self.name}: mean {self.mean} must be finite and std {self.std} positive")
        if self.padding < 0:
            raise DataError(f"{self.name}: a padding of {self.padding} pixels is not possible; 0 means none")


@dataclasses.dataclass(frozen=True)
class Remote:
    """A file on a server, and the checksum that it must have."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        return PurePosixPath(urlsplit(self.url).path).name


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """The facts of a data set that are known before its files are read; `loader` reads them from a root folder."""

    name: str
    title: str  # the name in figures
    channels: int
    side: int  # height and width of the loaded images, in pixels
    classes: int
    training_images: int
    loader: Callable[[Path], Dataset]
    files: tuple[Remote, ...] = ()  # the official files; none if the data come with a package
    modules: tuple[str, ...] = ()  # modules of dctps.base.extras that the loader imports
    enlarged: str | None = None  # the data set with the same images as 3 x 32 x 32, if there is one

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image as a network sees it."""
        return self.channels, self.side, self.side

    def __call__(self, root: Path) -> Dataset:
        """Load the data set from its files below a root folder."""
        return self.loader(root)


def _check_images(what: str, images: Tensor) -> None:
    if images.dtype != torch.uint8 or images.dim() != 4 or 0 in images.shape:
        shape = f"{tuple(images.shape)} of {images.dtype}"
        raise DataError(f"{what} must be uint8 of shape (n, channels, height, width), none zero, not {shape}")


def _check_labels(what: str, labels: Tensor, count: int, classes: int) -> None:
    if labels.dtype != torch.int64 or labels.shape != (count,):
        raise DataError(f"{what} must be int64 of shape ({count},), not {tuple(labels.shape)} of {labels.dtype}")
    wrong = ((labels < 0) | (labels >= classes)).nonzero().flatten()
    if len(wrong):
        first = int(wrong[0])
        raise DataError(f"{what}: label {int(labels[first])} at index {first} is not in 0 to {classes - 1}")
