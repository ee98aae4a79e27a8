"""The images of a run: its data set, and the batches for training, validation and test."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from dctps import data
from dctps.base import user_code
from dctps.data.batches import Batches, split
from dctps.nn.logits import Inputs
from dctps.train.processes import Processes
from dctps.train.settings import Settings

EVAL_BATCH = 256  # images in a batch of validation or test


def load(settings: Settings, root: Path | None = None) -> data.Dataset:
    """The data set of a run, with as many images for training and validation as the settings ask for."""
    if user_code.names_function(settings.data):
        dataset = user_code.call(settings.data, "a dctps.data.Dataset")
        if not isinstance(dataset, data.Dataset):
            raise ValueError(f"{settings.data} returned a {type(dataset).__name__}, not a dctps.data.Dataset")
    else:
        dataset = data.load(settings.data, root)
    if settings.images is None:
        return dataset
    have = len(dataset.train_labels)
    if settings.images > have:
        raise ValueError(f"images {settings.images}: {settings.data} has {have} for training and validation")
    images, labels = dataset.train_images[: settings.images], dataset.train_labels[: settings.images]
    return dataclasses.replace(dataset, train_images=images, train_labels=labels)


class AnyBatches(Protocol):
    """The batches of a part of the data, of images or of texts."""

    batch_size: int
    indices: Tensor  # of the examples

    def __len__(self) -> int: ...

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield the inputs and labels of each batch of an epoch, from batch `start` on."""
        ...


@dataclasses.dataclass(frozen=True)
class RunBatches:
    """The batches of a run; with several processes, the share of this one."""

    training: AnyBatches
    validation: AnyBatches
    test: AnyBatches

    @property
    def selects_on_test(self) -> bool:
        """Whether the best epoch is chosen on the test examples themselves."""
        return self.validation is self.test

    @classmethod
    def of(cls, dataset: data.Dataset, settings: Settings, device: torch.device, group: Processes) -> "RunBatches":
        """Split the training images of a data set, and cut all images into batches."""
        d, s = dataset, settings

        def batches(images: Tensor, labels: Tensor, indices: Tensor, size: int, **options: Any) -> Batches:
            options |= {"device": device, "channels_last": s.channels_last, "rank": group.rank, "world": group.world}
            return Batches(images, labels, indices, size, d.mean, d.std, **options)

        train, validation = _split(dataset, settings)
        augment = {"padding": d.padding, "flip": d.flip} if s.augment else {}
        training = batches(d.train_images, d.train_labels, train, s.batch_size, shuffle=True, seed=s.seed, **augment)
        test = batches(d.test_images, d.test_labels, torch.arange(len(d.test_labels)), EVAL_BATCH)
        if d.selects_on_test:
            return cls(training, test, test)
        return cls(training, batches(d.train_images, d.train_labels, validation, EVAL_BATCH), test)


def _split(dataset: data.Dataset, settings: Settings) -> tuple[Tensor, Tensor]:
    """The indices of the images for training and of those for validation."""
    everything = torch.arange(len(dataset.train_labels))
    if dataset.selects_on_test:
        return everything, everything[:0]
    train, validation = split(len(everything), settings.seed, settings.split)
    if not len(validation):
        raise ValueError(f"{len(everything)} images are too few to keep a tenth of them for validation")
    return train, validation


class EndlessBatches:
    """Batches epoch after epoch, as a pruning method draws them."""

    def __init__(self, batches: AnyBatches) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        epoch = 0
        while True:
            yield from self.batches.epoch(epoch)
            epoch += 1
