"""A folder of your own images: PATH/train/<class>/ and PATH/test/<class>/ (or val), all of one size.

Images are PNG, JPEG, BMP or WebP, by the ends of their names.
"""

from pathlib import Path

import torch
from torch import Tensor

from dctps.data.archives import Source, opened
from dctps.data.dataset import DataError, Dataset
from dctps.data.images import FORMATS, decoded, is_image
from dctps.data.labelled import PARTS, TEST, TRAINING, VALIDATION, Labelled


def load_folder(path: Path) -> Dataset:
    """Load a folder of images.

    The classes are the folders in train/ in alphabetical order. Mean and standard deviation are taken over the training
    images.
    """
    if not path.is_dir():
        raise DataError(f"there is no folder {path}; it needs train/<class>/ and test/<class>/ with images")
    with opened(path) as source:
        train = _images(source, "train")
        test = _images(source, "test") or _images(source, "val")
        classes = sorted(set(train.values()))
        _check(source, train, test)
        images = decoded(source, {"train": list(train), "test": list(test)})
    labels = [torch.tensor([classes.index(name) for name in part.values()]) for part in (train, test)]
    mean, std = statistics(images["train"])
    parts = images["train"], labels[0], images["test"], labels[1]
    return Dataset(f"folder:{path}", *parts, classes=len(classes), mean=mean, std=std)


PLACES = {TRAINING: ("train",), VALIDATION: ("val", "valid", "validation", "dev"), TEST: ("test",)}


def labelled_images(source: Source) -> dict[str, Labelled]:
    """Return the names of the images in a folder, and the folder of each as its class.

    The parts are the folders train/, val/ (or validation/) and test/. Without train/ the classes are the folders
    themselves, and all images are for training.
    """
    parts = {part: next(filter(None, (_images(source, name) for name in PLACES[part])), {}) for part in PARTS}
    if not parts[TRAINING] and any(parts.values()):
        found = " and ".join(part for part in PARTS if parts[part])
        raise DataError(f"{source.path} has a folder of {found} images and no folder train/; call the other one train")
    if not parts[TRAINING]:
        names = [name for name in sorted(source.stamps) if is_image(name)]
        parts = {TRAINING: {name: name.split("/")[0] for name in names if "/" in name}}
    if not parts[TRAINING]:
        raise DataError(
            f"{source.path} has no image <class>/* or train/<class>/*, whose name ends in {', '.join(FORMATS)}"
        )
    return {part: Labelled(list(found), list(found.values())) for part, found in parts.items() if found}


def _images(source: Source, part: str) -> dict[str, str]:
    """Return the class of each image of a part, which is the folder that it lies in."""
    names = (name for name in sorted(source.stamps) if is_image(name))
    folders = {name: name.split("/") for name in names}
    return {name: where[1] for name, where in folders.items() if where[0] == part and len(where) > 2}


def _check(source: Source, train: dict[str, str], test: dict[str, str]) -> None:
    for part, found in (("train", train), ("test", test)):
        if not found:
            raise DataError(f"{source.path} has no image {part}/<class>/*, whose name ends in {', '.join(FORMATS)}")
    for name, label in test.items():
        if label not in train.values():
            raise DataError(f"{source.path}: {name} is of class {label}, of which train/ has no image")


def statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of uint8 images (n, channels, height, width) as fractions."""
    values = torch.arange(256, dtype=torch.float64) / 255
    counts = torch.zeros(images.shape[1], 256, dtype=torch.float64)
    for part in images.split(1024):  # by parts, as the histogram takes eight times the memory of its images
        counts += torch.stack([torch.bincount(plane.flatten(), minlength=256) for plane in part.unbind(1)])
    shares = counts / counts.sum(1, keepdim=True)
    mean = shares @ values
    std = (shares * (values - mean[:, None]).square()).sum(1).sqrt()
    std[std == 0] = 1  # a constant channel stays constant, whatever it is divided by
    return tuple(mean.tolist()), tuple(std.tolist())
