"""What a run starts from: its batches, and its network before the first step, with its support chosen."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dctps import data, models
from dctps.base import user_code
from dctps.base.registry import lookup
from dctps.core.allocation import budget
from dctps.core.support import Support, derive_seed
from dctps.data.batches import Batches, split
from dctps.methods.lottery import schedule, survivors
from dctps.methods.pruning.prune import METHODS, prune
from dctps.methods.subspace.subspace import project
from dctps.nn.convert import sparsify, sparsify_norms
from dctps.nn.diagnose import check_input
from dctps.nn.prunable import prunable
from dctps.nn.report import Request, attach_request
from dctps.train.processes import Processes
from dctps.train.settings import Settings

EVAL_BATCH = 256
IMP = "imp"


# --- data -----------------------------------------------------------------------------------------------------------


def load(settings: Settings, root: Path | None = None) -> data.Dataset:
    """The data set of a run, or the first images of it."""
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


@dataclasses.dataclass(frozen=True)
class Data:
    """The batches of a run."""

    training: Batches
    validation: Batches
    test: Batches

    @classmethod
    def of(cls, dataset: data.Dataset, settings: Settings, device: torch.device, group: Processes) -> "Data":
        d, s = dataset, settings

        def over(images: Tensor, labels: Tensor, indices: Tensor, size: int, **options: Any) -> Batches:
            options |= {"device": device, "channels_last": s.channels_last, "rank": group.rank, "world": group.world}
            return Batches(images, labels, indices, size, d.mean, d.std, **options)

        everything = torch.arange(len(d.train_labels))
        train, validation = (
            (everything, everything[:0]) if d.selects_on_test else split(len(everything), s.seed, s.split)
        )
        augment = {"padding": d.padding, "flip": d.flip} if s.augment else {}
        training = over(d.train_images, d.train_labels, train, s.batch_size, shuffle=True, seed=s.seed, **augment)
        test = over(d.test_images, d.test_labels, torch.arange(len(d.test_labels)), EVAL_BATCH)
        if d.selects_on_test:
            return cls(training, test, test)
        if not len(validation):
            raise ValueError(f"{len(everything)} images are too few to keep a tenth of them for validation")
        return cls(training, over(d.train_images, d.train_labels, validation, EVAL_BATCH), test)


class _Endless:
    """The training batches of a run, epoch after epoch, as pruning draws them; the whole of each on every process."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        epoch = 0
        while True:
            yield from self.batches.epoch(epoch)
            epoch += 1


# --- the network ----------------------------------------------------------------------------------------------------


State = Mapping[str, Tensor]


class Rounds(NamedTuple):
    """The earlier rounds of lottery tickets, by their settings."""

    trained: Callable[[Settings], nn.Module]  # the network at the end
    rewound: Callable[[Settings], State]  # the state at the step to rewind to


def build(settings: Settings, dataset: data.Dataset, device: torch.device) -> nn.Module:
    """The plain network at its initialisation, on its device; ValueError if it does not take the images."""
    torch.manual_seed(settings.seed)
    options = {name: value for name in ("width", "hidden") if (value := getattr(settings, name)) is not None}
    channels = dataset.train_images.shape[1]
    if user_code.names_function(settings.model):
        model = user_code.call(
            settings.model, "a network", num_classes=dataset.classes, in_channels=channels, **options
        )
        if not isinstance(model, nn.Module):
            raise ValueError(f"{settings.model} returned a {type(model).__name__}, not an nn.Module")
    else:
        model = _named(settings.model, dataset.classes, channels, options)
    _check_images(model, settings, dataset)
    return model.to(device)


def _named(name: str, classes: int, channels: int, options: dict[str, int]) -> nn.Module:
    try:
        return models.build(name, classes, in_channels=channels, **options)
    except TypeError:
        raise ValueError(f"{name} has no setting {' or '.join(options)}; leave it out") from None


def prepare(
    settings: Settings,
    dataset: data.Dataset,
    device: torch.device,
    group: Processes = Processes(),  # noqa: B008
    *,
    saved: State | None = None,
    rounds: Rounds | None = None,
) -> tuple[nn.Module, dict[str, Any] | None]:
    """The network before its first step, and what choosing its support has cost, if that was not by lot.

    saved: the state of the same network in a run that goes on: its support is taken from there.
    rounds: the earlier ones of lottery tickets.
    """
    model, cost = build(settings, dataset, device), None
    if settings.imp_rewind and settings.imp_round != 0 and saved is None and rounds is not None:
        model.load_state_dict(rounds.rewound(dataclasses.replace(settings, imp_round=0)))
    if settings.projection is not None:
        model = project(model, _kept(model, settings), settings.projection, seed=settings.seed)
    elif settings.density is not None and not _is_dense_round(settings):
        supports, cost = _supports(model, settings, dataset, device, group, saved, rounds)
        _sparsify(model, settings, supports)
    if settings.norm_density is not None:
        sparsify_norms(model, settings.norm_density, seed=settings.seed)
    layout = torch.channels_last if settings.channels_last else torch.contiguous_format
    return model.to(device).to(memory_format=layout), cost  # type: ignore[call-overload]


def _sparsify(model: nn.Module, settings: Settings, supports: dict[str, Support] | None) -> None:
    sparsify(
        model,
        settings.density if supports is None else None,
        supports=supports,
        offset=settings.offset,
        allocation=settings.allocation,
        alpha=settings.alpha,
        train_alpha=settings.train_alpha,
        seed=settings.seed,
        backend=settings.backend,
    )
    if supports is not None:
        assert settings.density is not None
        asked = sum(support.nnz for support in supports.values())
        attach_request(model, Request(settings.density, asked, settings.method or settings.allocation))


def _kept(model: nn.Module, settings: Settings) -> int:
    assert settings.density is not None
    return budget(_size(model), settings.density)


def _size(model: nn.Module) -> int:
    return sum(layer.get_parameter("weight").numel() for layer in prunable(model).values())


def _check_images(model: nn.Module, settings: Settings, dataset: data.Dataset) -> None:
    """Raise ValueError unless the network takes the images of the data set."""
    shape = " x ".join(map(str, dataset.train_images.shape[1:]))
    said = f"{settings.model} does not take the {shape} images of {settings.data}"
    check_input(model, dataset.train_images[:1].float(), lambda reason: f"{said}: {reason}")


# --- who chooses the support ----------------------------------------------------------------------------------------


def _supports(
    model: nn.Module,
    settings: Settings,
    dataset: data.Dataset,
    device: torch.device,
    group: Processes,
    saved: State | None,
    rounds: Rounds | None,
) -> tuple[dict[str, Support] | None, dict[str, Any] | None]:
    """The supports and their cost; None: they are drawn at random."""
    if settings.method is not None:
        lookup({**METHODS, IMP: None}, settings.method, "method")
    if saved is not None and (settings.method is not None or settings.rewire is not None):
        return _found(model, saved), None
    if settings.method is None:
        return None, None
    if settings.method == IMP:
        assert rounds is not None
        return _ticket(model, settings, rounds), None
    return _pruned(model, settings, dataset, device, group)


def _found(model: nn.Module, saved: State) -> dict[str, Support]:
    """Where the weights of a saved state are."""
    shapes = {name: layer.get_parameter("weight").shape for name, layer in prunable(model).items()}
    return {name: Support(tuple(shape), saved[f"{name}.positions"]) for name, shape in shapes.items()}


def _pruned(
    model: nn.Module, settings: Settings, dataset: data.Dataset, device: torch.device, group: Processes
) -> tuple[dict[str, Support], dict[str, Any]]:
    assert settings.method is not None
    assert settings.density is not None
    supports = prune(
        model,
        settings.method,
        settings.density,
        batches=_Endless(Data.of(dataset, settings, device, Processes()).training),
        steps=settings.method_steps,
        batches_per_step=settings.method_batches,
        seed=settings.seed,
        progress=group.first,
    )
    return group.share(supports, device), dataclasses.asdict(supports.cost)


# --- lottery tickets: each round is a run of its own ----------------------------------------------------------------


def _is_dense_round(settings: Settings) -> bool:
    return settings.imp_round == 0


def _ticket(model: nn.Module, settings: Settings, rounds: Rounds) -> dict[str, Support]:
    """The weights that are largest at the end of the round before."""
    assert settings.density is not None
    counts = schedule(_size(model), settings.density, settings.method_steps)  # weights left after each round
    number = len(counts) if settings.imp_round is None else settings.imp_round
    if number > len(counts):
        raise ValueError(f"imp_round {number}: density {settings.density} is reached in {len(counts)} rounds")
    before = rounds.trained(dataclasses.replace(settings, imp_round=number - 1))
    names, count = list(prunable(model)), counts[number - 1]
    return survivors(before, names, count, derive_seed(settings.seed, f"imp/{count}"))
