"""The network of a finished fine-tuning on images, with the adapter of its best epoch."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from dctps.base.plain_files import parse_text, read_text
from dctps.data.dataset import DataError
from dctps.data.tables import is_table
from dctps.train.finetuning.examples import load_examples, make_batches
from dctps.train.finetuning.loading import load_network
from dctps.train.finetuning.network import Look, Network
from dctps.train.finetuning.records import FinetuneRun
from dctps.train.finetuning.settings import FinetuneSettings
from dctps.train.settings import settings_from
from dctps.train.trained import Shape, filled


def is_finetuning(folder: Path) -> bool:
    """Return whether a folder is that of a fine-tuning, by its settings."""
    try:
        _settings(folder)
    except (ValueError, OSError):
        return False
    return True


def of_finetuning(folder: Path) -> tuple[nn.Module, Shape]:
    """Return the network W0 + S of the best epoch of a fine-tuning on images, and the shape of an image."""
    run, settings = FinetuneRun(folder), _settings(folder)
    if not (run.result.exists() and run.best.exists()):
        raise ValueError(f"{folder} is a fine-tuning that is not finished; the same dctps finetune goes on with it")
    classes = _classes(run)
    if is_table(Path(settings.data)):
        raise ValueError(_for_texts(run, settings, len(classes)))
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)  # of the parameters that are new
        network = load_network(settings.model, classes, texts=False, max_length=settings.max_length)
    shape = _shape(settings, network, folder)
    return filled(run.best, network.model), shape


def _settings(folder: Path) -> FinetuneSettings:
    return settings_from(parse_text(read_text(folder / "config.json")), FinetuneSettings)


def _classes(run: FinetuneRun) -> list[str]:
    """Return the names of the classes, which the result has."""
    try:
        content: dict[str, Any] = parse_text(read_text(run.result))
        return list(content["classes"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{run.result} is damaged ({error}), and it says how many classes there are") from error


def _shape(settings: FinetuneSettings, network: Network, folder: Path) -> Shape:
    """Return the shape of an image; where neither the run nor the network states it, that of the first image."""
    assert isinstance(network.takes, Look)
    side = settings.image_size or network.takes.size
    if side is not None:
        return (3, side, side)
    try:
        batches, _ = make_batches(settings, load_examples(settings), network, torch.device("cpu"))
    except DataError as error:
        raise ValueError(
            f"the images of {folder} have the size of the first one, which cannot be read ({error}); put the folder "
            f"{settings.data} back, or call dctps.export_onnx in Python with an example of your own"
        ) from error
    images, _ = next(iter(batches.training.epoch(0)))
    assert isinstance(images, torch.Tensor)
    return tuple(images.shape[1:])


def _for_texts(run: FinetuneRun, settings: FinetuneSettings, classes: int) -> str:
    """Return the error for texts, whose length the file would have to fix, with what to do in Python."""
    load = f"transformers.AutoModelForSequenceClassification.from_pretrained({settings.model!r}, num_labels={classes})"
    return (
        f"{run.folder} is a fine-tuning on texts; a file is for one length of texts, which dctps export does not know; "
        f"in Python: net = dctps.from_pretrained({str(run.adapter)!r}, {load}); dctps.export_onnx(net, 'net.onnx', "
        "dict(tokenizer(['a text'], padding='max_length', max_length=64, return_tensors='pt')))"
    )
