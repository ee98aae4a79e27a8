"""The examples of a fine-tuning: images in folders or texts in a table, and their batches for a network."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from dctps.base.extras import require
from dctps.data.archives import Source, opened
from dctps.data.batches import Batches
from dctps.data.dataset import DataError
from dctps.data.folder import labelled_images, statistics
from dctps.data.images import decoded
from dctps.data.labelled import PARTS, TEST, TRAINING, VALIDATION, Labelled, class_names, with_all_parts
from dctps.data.tables import is_table, load_table
from dctps.data.texts import TextBatches
from dctps.train.finetuning.network import Look, Network, Tokenizer
from dctps.train.finetuning.settings import FinetuneSettings
from dctps.train.images import AnyBatches, RunBatches

CROP = 8  # a training image is moved by up to an eighth of its size


@dataclasses.dataclass(frozen=True)
class Examples:
    """The labelled examples by their part; `source` is where the images are, or None for texts."""

    parts: dict[str, Labelled]
    classes: list[str]
    source: Source | None

    @property
    def noun(self) -> str:
        """What an example is."""
        return "texts" if self.source is None else "images"


def load_examples(settings: FinetuneSettings) -> Examples:
    """Load the texts, or the names of the images, with their labels; DataError, which says why, if there are none."""
    path = Path(settings.data).expanduser()
    if path.is_dir():
        source, given = _images(path, settings)
    elif is_table(path):
        source, given = None, _texts(path, settings)
    elif path.exists():
        raise DataError(f"{path} is neither a folder of images nor a table, whose name ends in .csv or .tsv")
    else:
        raise DataError(f"there is no folder or table {path}")
    class_names(given)  # a class that is nowhere among the training examples is found before these are split
    parts = with_all_parts(given, settings.held_out, settings.seed)
    return Examples({part: parts[part] for part in PARTS}, class_names(parts), source)


def _images(path: Path, settings: FinetuneSettings) -> tuple[Source, dict[str, Labelled]]:
    if settings.validation_data is not None or settings.test_data is not None:
        raise DataError("tables of validation and test examples go with a table; put images into val/ and test/")
    require("PIL", "a folder of images")
    with opened(path) as source:
        if tables := [name for name in source.stamps if is_table(Path(name)) and "/" not in name]:
            try:
                return source, labelled_images(source)
            except DataError as error:
                raise DataError(f"{error}; for texts name a table, such as {path / tables[0]}") from None
        return source, labelled_images(source)


def _texts(path: Path, settings: FinetuneSettings) -> dict[str, Labelled]:
    tables = {TRAINING: path, VALIDATION: settings.validation_data, TEST: settings.test_data}
    columns = settings.text_column, settings.label_column
    return {part: load_table(Path(table).expanduser(), *columns) for part, table in tables.items() if table is not None}


# --- batches ----------------------------------------------------------------------------------------------------------


def make_batches(
    settings: FinetuneSettings, examples: Examples, network: Network, device: torch.device
) -> tuple[RunBatches, str]:
    """Return the batches of all parts, as the network takes them, and a digest of the data."""
    if examples.source is None:
        assert isinstance(network.takes, Tokenizer)
        return _text_batches(settings, examples, network.takes, device)
    assert isinstance(network.takes, Look)
    return _image_batches(settings, examples, examples.source, network.takes, device)


def _text_batches(
    settings: FinetuneSettings, examples: Examples, tokenizer: Tokenizer, device: torch.device
) -> tuple[RunBatches, str]:
    digest, batches = hashlib.blake2b(digest_size=16), list[AnyBatches]()
    for part in PARTS:
        tokens, labels = tokenizer.encode(examples.parts[part].items), examples.parts[part].numbers(examples.classes)
        if empty := [index for index, text in enumerate(tokens) if not all(text.values())]:
            raise DataError(f"the tokenizer makes no token of {part} text {empty[0] + 1}; leave that row out")
        _check_tokens({token for text in tokens for token in text["input_ids"]}, tokenizer, part)
        digest.update(json.dumps([tokens, labels.tolist()]).encode())
        options: dict[str, Any] = {"padding": tokenizer.padding, "left": tokenizer.left, "device": device}
        options |= {"shuffle": part == TRAINING, "seed": settings.seed}
        batches.append(TextBatches(tokens, labels, settings.batch_size, **options))
    return RunBatches(*batches), digest.hexdigest()


def _check_tokens(found: set[int], tokenizer: Tokenizer, part: str) -> None:
    """Raise DataError if a network has no embedding for a token, or if training texts are nothing but special ones."""
    if tokenizer.size is not None and max(found) >= tokenizer.size:
        raise DataError(
            f"the tokenizer makes the token {max(found)} of {part} texts, but the network has embeddings for "
            f"{tokenizer.size} tokens (vocab_size in config.json); the two belong to different networks"
        )
    if part == TRAINING and found <= tokenizer.special:
        raise DataError(
            "all tokens of the training texts are special or unknown: the tokenizer knows none of their words, or "
            "--max-length leaves no room for one"
        )


def _image_batches(
    settings: FinetuneSettings, examples: Examples, source: Source, look: Look, device: torch.device
) -> tuple[RunBatches, str]:
    side = settings.image_size or look.size
    names = {part: examples.parts[part].items for part in PARTS}
    images = decoded(source, names, None if side is None else (side, side), resize=True)
    mean, std = (look.mean, look.std) if settings.normalise == "network" else statistics(images[TRAINING])
    digest, batches = hashlib.blake2b(digest_size=16), list[AnyBatches]()
    for part in PARTS:
        labels = examples.parts[part].numbers(examples.classes)
        for tensor in (images[part], labels):
            digest.update(tensor.contiguous().numpy().data)
        options: dict[str, Any] = {"device": device, "shuffle": part == TRAINING, "seed": settings.seed}
        if settings.augment and part == TRAINING:
            options |= {"padding": images[part].shape[-1] // CROP, "flip": True}
        everything = torch.arange(len(labels))
        batches.append(Batches(images[part], labels, everything, settings.batch_size, mean, std, **options))
    return RunBatches(*batches), digest.hexdigest()
