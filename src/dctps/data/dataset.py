"""A data set in memory: images as bytes, labels, and what training needs to know of them."""

import dataclasses
import math

import torch
from torch import Tensor


class DataError(ValueError):
    """Data that cannot be had or used; the message says which file or sample, why, and what to do."""


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images with their labels, and how they are normalised and augmented.

    `mean` and `std` are those of the pixels scaled to [0, 1], one number per channel.
    """

    name: str
    train_images: Tensor  # uint8 (n, channels, height, width)
    train_labels: Tensor  # int64 (n,)
    test_images: Tensor  # uint8 (m, channels, height, width)
    test_labels: Tensor  # int64 (m,)
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    padding: int = 4  # random crops of the image with so many zero pixels around it; 0: none
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
