"""Decoding many image files once: RGB bytes of one size, which are kept in a safetensors file beside the source.

This cache holds one tensor per part (`train`, `test`). Its metadata hold a key, made of the names and stamps of all
files and the size that was asked for, and a digest of the pixels. A cache of other files, or a damaged one, is
replaced.
"""

import hashlib
import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.progress import TaskProgressColumn, TimeRemainingColumn
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor

from dctps.base.extras import needed
from dctps.base.files import write_atomically
from dctps.base.progress import progress_bar
from dctps.data.archives import Source
from dctps.data.dataset import DataError

# The formats that are opened, by the ends of names. Pillow would take any file for any of its formats, and some of
# those start other programs.
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP", ".webp": "WEBP"}
Size = tuple[int, int]  # height, width


def is_image(name: str) -> bool:
    """Return whether a file is an image, by its name."""
    return name.lower().endswith(tuple(FORMATS))


def decoded(
    source: Source, parts: dict[str, list[str]], size: Size | None = None, *, resize: bool = False
) -> dict[str, Tensor]:
    """Return the images of each part, uint8 (n, 3, height, width), in the order of the names.

    All must have the size that is given, or the size of the first image if none is. With `resize` others are cropped
    around their middle to the shape of that size, and resized.
    """
    key = _key(source, parts, size, resize)
    cache = source.path.with_name(f"{source.path.name}.dctps.safetensors")
    images = _read_cache(cache, key, parts)
    if images is None:
        images = _decode_all(source, parts, size, resize)
        _write_cache(cache, key, images)
    return images


# --- decoding -------------------------------------------------------------------------------------------------------


def _decode_all(source: Source, parts: dict[str, list[str]], size: Size | None, resize: bool) -> dict[str, Tensor]:
    with progress_bar(TaskProgressColumn(), TimeRemainingColumn(), transient=True) as progress:
        task = progress.add_task(f"decoding {source.path.name}", total=sum(map(len, parts.values())))
        images = {}
        for part, names in parts.items():
            images[part] = _decode(source, names, size, resize, lambda: progress.advance(task))
            size = (images[part].shape[2], images[part].shape[3])
    return images


def _decode(source: Source, names: list[str], size: Size | None, resize: bool, advance: Callable[[], None]) -> Tensor:
    """Return images as uint8 (n, 3, height, width)."""
    images = torch.empty(0, dtype=torch.uint8)
    for index, name in enumerate(names):
        image = _pixels(source, name, size if resize else None)
        size = size or (image.shape[0], image.shape[1])
        if image.shape[:2] != size:
            found, wanted = (f"{height} x {width}" for height, width in (image.shape[:2], size))
            raise DataError(f"{source.path}: {name} has {found} pixels, but {wanted} are needed; all must be the same")
        if not index:
            images = torch.empty((len(names), 3, *size), dtype=torch.uint8)
        images[index] = torch.from_numpy(image).permute(2, 0, 1)
        advance()
    return images


def _pixels(source: Source, name: str, resized: Size | None) -> np.ndarray:
    """Return an image as uint8 (height, width, 3), resized if a size is given."""
    pillow = needed("PIL.Image", "a data set of image files")
    content = source.read(name)
    try:
        with pillow.open(io.BytesIO(content), formats=sorted(set(FORMATS.values()))) as image:
            image = image.convert("RGB")
            if resized is not None and image.size != resized[::-1]:
                image = needed("PIL.ImageOps", "resizing").fit(image, resized[::-1], method=pillow.Resampling.BICUBIC)
            return np.array(image)
    except Exception as error:  # a damaged image can raise nearly anything
        raise DataError(f"{source.path}: the image {name} cannot be decoded ({error}); replace or remove it") from error


# --- the cache ------------------------------------------------------------------------------------------------------


def _key(source: Source, parts: dict[str, list[str]], size: Size | None, resize: bool) -> str:
    files = {part: [(name, source.stamps[name]) for name in names] for part, names in parts.items()}
    return hashlib.blake2b(
        json.dumps([files, size, *(["resized"] if resize else [])]).encode(), digest_size=16
    ).hexdigest()


def _digest(images: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part, tensor in sorted(images.items()):
        digest.update(f"|{part}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _read_cache(cache: Path, key: str, parts: dict[str, list[str]]) -> dict[str, Tensor] | None:
    """Return the images of a cache, or None if it is damaged or of other files."""
    try:
        with safe_open(cache, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("key") != key:
                return None
            images = {part: file.get_tensor(part) for part in parts}
    except (SafetensorError, OSError, ValueError, RuntimeError):
        return None
    return images if metadata.get("digest") == _digest(images) else None


def _write_cache(cache: Path, key: str, images: dict[str, Tensor]) -> None:
    content = serialize(images, {"key": key, "digest": _digest(images)})
    try:
        write_atomically(cache, lambda temporary: temporary.write_bytes(content))
    except OSError as error:  # no right to write, or a full disk; the images are in memory all the same
        warnings.warn(
            f"the decoded images cannot be kept in {cache} ({error}); next time they are decoded again", stacklevel=2
        )
