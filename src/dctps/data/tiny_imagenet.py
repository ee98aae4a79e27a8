"""Tiny ImageNet: 200 classes of 64 x 64 images, in the official zip archive or unpacked.

    wnids.txt                       the classes; their order is that of the labels
    train/<wnid>/images/*.JPEG
    val/images/*.JPEG               with val/val_annotations.txt, or sorted into val/<wnid>/

The labels of the official test images are not public. By convention the best epoch is chosen on the validation images,
and the accuracy is reported on them too.
"""

from pathlib import Path, PurePosixPath

import torch

from dctps.data.archives import Source, opened
from dctps.data.dataset import DataError, Dataset, DatasetInfo, Remote
from dctps.data.images import decoded, is_image
from dctps.data.sources import not_found, places

ARCHIVE, CLASSES, ANNOTATIONS = "tiny-imagenet-200.zip", "wnids.txt", "val/val_annotations.txt"
SIDE = 64  # pixels
MEAN = (0.48024578664982126, 0.44807218089384643, 0.3975477478649648)
STD = (0.2769864069088257, 0.26906448510256, 0.282081906210584)


def load_tiny_imagenet(root: Path) -> Dataset:
    """Load Tiny ImageNet, or a part of it with fewer classes."""
    with opened(_find(root)) as source:
        source = source.under(_prefix(source))
        classes = _classes(source)
        train, test = _train(source, classes), _validation(source, classes)
        images = decoded(source, {"train": list(train), "test": list(test)}, size=(SIDE, SIDE))
    labels = [torch.tensor(list(part.values())) for part in (train, test)]
    parts = images["train"], labels[0], images["test"], labels[1]
    return Dataset("tiny_imagenet", *parts, classes=len(classes), mean=MEAN, std=STD, selects_on_test=True)


TINY_IMAGENET = DatasetInfo(
    name="tiny_imagenet",
    title="Tiny ImageNet",
    channels=3,
    side=SIDE,
    classes=200,
    training_images=100_000,
    loader=load_tiny_imagenet,
    files=(Remote(f"http://cs231n.stanford.edu/{ARCHIVE}", "90528d7ca1a48142e341f4ef8d21d0de"),),
    modules=("PIL",),
)


# --- reading --------------------------------------------------------------------------------------------------------


def _find(root: Path) -> Path:
    """Return the path of the archive, or of the folder with the list of classes."""
    for place in places("tiny_imagenet", root):
        if (place / ARCHIVE).is_file():
            return place / ARCHIVE
        for folder in (place, *sorted(place.iterdir())):
            if (folder / CLASSES).is_file() and (folder / "train").is_dir() and (folder / "val").is_dir():
                return folder
    raise not_found("tiny_imagenet", root, [ARCHIVE, "its unpacked folder tiny-imagenet-200"])


def _prefix(source: Source) -> str:
    """Return what all names in an archive begin with: the folder of the list of classes."""
    lists = [name for name in source.stamps if PurePosixPath(name).name == CLASSES]
    if not lists:
        raise DataError(f"{source.path} has no {CLASSES}, the list of classes; take another copy")
    return min(lists, key=len).removesuffix(CLASSES)


def _classes(source: Source) -> dict[str, int]:
    """Return the label of each class."""
    names = source.read(CLASSES).decode("utf-8", "replace").split()
    if not names or len(set(names)) != len(names):
        raise DataError(f"{source.path}: {CLASSES} must list each class once; it has {len(names)} names")
    return {name: label for label, name in enumerate(names)}


def _train(source: Source, classes: dict[str, int]) -> dict[str, int]:
    """Return the label of each training image, class by class."""
    found = _foldered(source, "train", classes)
    missing = set(classes.values()) - set(found.values())
    if missing:
        raise DataError(f"{source.path}: class {list(classes)[min(missing)]} has no training image in train/")
    return found


def _foldered(source: Source, part: str, classes: dict[str, int]) -> dict[str, int]:
    """Return the label of each image under part/<wnid>/."""
    labels = {}
    for name in source.stamps:
        folders = name.split("/")
        if folders[0] == part and len(folders) > 2 and is_image(name):
            labels[name] = _label(source, name, folders[1], classes)
    return dict(sorted(labels.items(), key=lambda item: (item[1], item[0])))


def _label(source: Source, name: str, wnid: str, classes: dict[str, int]) -> int:
    if wnid not in classes:
        raise DataError(f"{source.path}: {name} is of class {wnid}, which {CLASSES} does not list")
    return classes[wnid]


def _validation(source: Source, classes: dict[str, int]) -> dict[str, int]:
    """Return the label of each validation image."""
    names = sorted(name for name in source.stamps if name.startswith("val/images/") and is_image(name))
    labels = _annotated(source, names, classes) if names else _foldered(source, "val", classes)
    if not labels:
        raise DataError(f"{source.path} has no image in val/; it needs val/images/ with {ANNOTATIONS}, or val/<wnid>/")
    return labels


def _annotated(source: Source, names: list[str], classes: dict[str, int]) -> dict[str, int]:
    if ANNOTATIONS not in source.stamps:
        raise DataError(f"{source.path} has no {ANNOTATIONS}, the classes of the images in val/images/")
    lines = source.read(ANNOTATIONS).decode("utf-8", "replace").splitlines()
    rows = [line.split("\t") for line in lines if line.strip()]
    wnids = {f"val/images/{row[0]}": row[1] for row in rows if len(row) > 1}
    for first, second, complaint in ((names, wnids, "does not list"), (wnids, names, "lists, but is not there,")):
        alone = sorted(set(first) - set(second))
        if alone:
            raise DataError(f"{source.path}: {ANNOTATIONS} {complaint} {alone[0]}; take another copy")
    return {name: _label(source, name, wnids[name], classes) for name in names}
