"""The 8 x 8 digits that come with scikit-learn: a data set without a download, for tests and first steps.

`digits32` has the same images in the shape of CIFAR-10, for networks that take nothing smaller.
"""

import dataclasses
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dctps.base.extras import needed
from dctps.data.dataset import Dataset, DatasetInfo

TRAINING = 1437  # images, the usual four fifths of 1797


def load_digits(root: Path) -> Dataset:
    """Load the first 1,437 digits for training and the last 360 for the test; the root is not looked at."""
    digits = needed("sklearn.datasets", "the data set digits").load_digits()
    # The values are 0 to 16; 15 is the largest whole factor with which they fit a byte.
    images = torch.from_numpy(np.round(digits.images * 15).astype(np.uint8))[:, None]
    labels = torch.from_numpy(digits.target.astype(np.int64))
    return Dataset(
        "digits",
        images[:TRAINING],
        labels[:TRAINING],
        images[TRAINING:],
        labels[TRAINING:],
        classes=10,
        mean=(0.2874,),
        std=(0.3534,),
        padding=0,
        flip=False,
    )


def load_digits32(root: Path) -> Dataset:
    """Load the digits as 3 x 32 x 32: each pixel four times as wide and high, the same in three channels."""
    digits = load_digits(root)
    return dataclasses.replace(
        digits,
        name="digits32",
        train_images=_enlarged(digits.train_images),
        test_images=_enlarged(digits.test_images),
        mean=digits.mean * 3,
        std=digits.std * 3,
    )


def _enlarged(images: Tensor) -> Tensor:
    return images.repeat_interleave(4, 2).repeat_interleave(4, 3).expand(-1, 3, -1, -1).contiguous()


DIGITS = DatasetInfo(
    name="digits",
    title="digits",
    channels=1,
    side=8,
    classes=10,
    training_images=TRAINING,
    loader=load_digits,
    modules=("sklearn",),
    enlarged="digits32",
)
DIGITS32 = DatasetInfo(
    name="digits32",
    title="digits 32 x 32",
    channels=3,
    side=32,
    classes=10,
    training_images=TRAINING,
    loader=load_digits32,
    modules=("sklearn",),
)
