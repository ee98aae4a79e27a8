"""The network of a finished run, or of a file of a network, with its trained numbers."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from dctps import data, models
from dctps.base import user_code
from dctps.base.plain_files import RecordError
from dctps.checkpoint.load import load
from dctps.train import images
from dctps.train.runs import Run, RunError
from dctps.train.settings import Settings

Shape = tuple[int, ...]  # of one sample


def of_run(folder: Path) -> tuple[nn.Module, Shape]:
    """Return the best network of a run, and the shape of its images."""
    run = Run(folder)
    if not run.config.exists():
        raise ValueError(f"{folder} is not the folder of a run: it has no config.json")
    if not run.best.exists():
        raise ValueError(f"{folder} has no best.safetensors: no epoch of this run is over, or it trains no network")
    settings = _settings(run)
    if settings.projection is not None:
        raise ValueError(f"{folder} was trained in a subspace ({settings.projection}), which has no file of its own")
    classes, shape = _facts(settings)
    options = {name: value for name in ("width", "hidden") if (value := getattr(settings, name)) is not None}
    return filled(run.best, build(settings.model, classes, shape[0], **options)), shape


def _settings(run: Run) -> Settings:
    """Return the settings of a run; ValueError if they cannot be read, without advice to delete what is only read."""
    try:
        return run.settings()
    except RunError as error:
        why = error.__cause__ or error
        raise ValueError(
            f"{run.config} does not say which network this is ({why}); name it: dctps export {run.best} --model NAME "
            "--classes N --input 3 32 32"
        ) from error


def build(name: str, classes: int, channels: int, **options: int) -> nn.Module:
    """Return a plain network: one of `MODELS`, or that of the user's package.module:function."""
    if not user_code.names_function(name):
        return models.build(name, classes, in_channels=channels, **options)
    model = user_code.call(name, "a network", num_classes=classes, in_channels=channels, **options)
    if not isinstance(model, nn.Module):
        raise ValueError(f"{name} returned a {type(model).__name__}, not an nn.Module")
    return model


def filled(file: Path, model: nn.Module) -> nn.Module:
    """Return a plain network with the numbers of a file: one of dctps.save, or of a dense run."""
    try:
        state = load_file(file)
    except (SafetensorError, OSError):
        return load(file, model)  # which says what is wrong
    if any(name.startswith("dctps/") for name in state):
        return load(file, model)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(f"{file} does not fit this network: {' '.join(str(error).split())[:300]}") from error
    return model


def _facts(settings: Settings) -> tuple[int, Shape]:
    """Return the number of classes of a run's data, and the shape of an image."""
    info = data.DATASETS.get(settings.data)
    if info is not None:
        return info.classes, info.image_shape
    try:
        dataset = images.load(settings)
    except (RecordError, OSError) as error:
        raise ValueError(f"cannot read the data {settings.data} of this run, which say its classes: {error}") from error
    return dataset.classes, tuple(dataset.train_images.shape[1:])


def example(shape: Shape) -> torch.Tensor:
    """Return two samples of zeros."""
    return torch.zeros(2, *shape)
