"""The 8 x 8 digits that come with scikit-learn: a data set without a download, for tests and first steps."""

from pathlib import Path

import numpy as np
import torch

from dctps.data.dataset import Dataset
from dctps.data.sources import needed

TRAINING = 1437  # of 1797, the usual four fifths


def load_digits(root: Path) -> Dataset:
    """The first 1,437 digits for training and the last 360 for the test, whatever the root."""
    digits = needed("sklearn.datasets", "scikit-learn", "demo").load_digits()
    # values 0 to 16, of which times 15 is the largest whole multiple that fits a byte
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
