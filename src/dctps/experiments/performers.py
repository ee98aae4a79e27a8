"""The functions that perform the tasks.

They stand apart from the descriptions of the tasks, so that figures and pages read results without the trainer.
"""

from typing import Any

import torch
from torch import Tensor, nn

from dctps.base.machine import flushed_denormals
from dctps.data import DATASETS, Dataset, DatasetInfo
from dctps.experiments.cells import Cell
from dctps.experiments.tasks.counts import COUNTS
from dctps.experiments.tasks.jacobian import JACOBIAN
from dctps.experiments.tasks.task import OnEpoch, save_result
from dctps.methods.pruning import METHODS
from dctps.nn.jacobian import singular_values
from dctps.nn.prunable import prunable
from dctps.nn.report import report
from dctps.ops import autotune
from dctps.train.devices import choose_device
from dctps.train.images import load
from dctps.train.runs import Run
from dctps.train.session import fit
from dctps.train.settings import Runtime, Settings
from dctps.train.setup import prepare

JACOBIAN_IMAGES = 4  # test images whose Jacobian is taken


def train(settings: Settings, runtime: Runtime, run: Run, on_epoch: OnEpoch) -> None:
    """Train the network."""
    fit(settings, runtime, on_epoch)


def count_weights(settings: Settings, runtime: Runtime, run: Run, on_epoch: OnEpoch) -> None:
    """Count the weights that each layer gets, and save where they are; nothing is trained."""
    dataset = _dataset_for_counts(settings, runtime)
    with torch.random.fork_rng(), flushed_denormals():
        model, cost = prepare(settings, dataset, choose_device(runtime.device))
    run.save_supports(model)
    sparse = [{"name": layer.name, "nnz": layer.nnz, "size": layer.size} for layer in report(model).layers]
    sizes = {name: layer.get_parameter("weight").numel() for name, layer in prunable(model).items()}
    layers: list[dict[str, Any]] = sparse + [{"name": name, "nnz": n, "size": n} for name, n in sizes.items()]
    others = sum(p.numel() for p in model.parameters()) - sum(layer["nnz"] for layer in layers)
    save_result(run, settings, COUNTS, {"layers": layers, "others": others, "pruning": cost})


def _dataset_for_counts(settings: Settings, runtime: Runtime) -> Dataset:
    """The images if the method looks at them or their shape is not known, else black images of that shape."""
    looks = settings.method is not None and (settings.method not in METHODS or METHODS[settings.method].needs_data)
    if looks or settings.data not in DATASETS:
        return load(settings, runtime.data_root)
    return _black_images(DATASETS[settings.data])


def _black_images(info: DatasetInfo) -> Dataset:
    images, labels = torch.zeros(20, *info.image_shape, dtype=torch.uint8), torch.zeros(20, dtype=torch.int64)
    numbers = (0.5,) * info.channels
    return Dataset(info.name, images, labels, images, labels, info.classes, numbers, numbers)


def take_jacobian(settings: Settings, runtime: Runtime, run: Run, on_epoch: OnEpoch) -> None:
    """Take the singular values of d outputs / d inputs before the first step, for some test images."""
    with torch.random.fork_rng(), flushed_denormals(), autotune.by_rule():  # a few passes are not worth a measurement
        model, images, cost = at_initialisation(settings, runtime, JACOBIAN_IMAGES)
        values = singular_values(model, images)
    save_result(run, settings, JACOBIAN, {"singular_values": values.tolist(), "pruning": cost})


def at_initialisation(settings: Settings, runtime: Runtime, images: int) -> tuple[nn.Module, Tensor, Any]:
    """The network before its first step, the first test images as it sees them, and what its supports have cost."""
    dataset = load(settings, runtime.data_root)
    counted = Cell(settings, COUNTS).run(runtime.runs)  # scoring takes long, and its supports may be there already
    model, cost = prepare(settings, dataset, choose_device(runtime.device), saved=counted.load_supports())
    mean, std = (torch.tensor(numbers).view(-1, 1, 1) for numbers in (dataset.mean, dataset.std))
    return model, (dataset.test_images[:images] / 255 - mean) / std, cost
