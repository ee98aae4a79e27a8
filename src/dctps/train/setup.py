"""The network of a run before its first step, with its support chosen."""

import copy
import dataclasses
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dctps import data, models
from dctps.base import user_code
from dctps.base.registry import lookup
from dctps.core.allocation import budget
from dctps.core.support import Support
from dctps.methods.pruning import METHODS
from dctps.methods.pruning.prune import prune
from dctps.methods.subspace.subspace import project
from dctps.nn.convert import sparsify, sparsify_norms
from dctps.nn.diagnose import check_input
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.fuse import fuse
from dctps.nn.prunable import prunable
from dctps.nn.report import Request, attach_request
from dctps.nn.supported import saved_support
from dctps.train.images import EndlessBatches, RunBatches
from dctps.train.lottery_rounds import IMP, LotteryRounds, State, is_dense_round
from dctps.train.processes import Processes
from dctps.train.settings import Settings

Cost = dict[str, Any]  # what a pruning method has cost: passes and seconds


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


def _check_images(model: nn.Module, settings: Settings, dataset: data.Dataset) -> None:
    """Raise ValueError unless the network takes the images of the data set."""
    shape = " x ".join(map(str, dataset.train_images.shape[1:]))
    problem = f"{settings.model} does not take the {shape} images of {settings.data}"
    info = data.DATASETS.get(settings.data)
    hint = f"; {info.enlarged} has the same images as 3 x 32 x 32" if info is not None and info.enlarged else ""
    check_input(model, dataset.train_images[:1].float(), lambda reason: f"{problem}: {reason}{hint}")


def prepare(
    settings: Settings,
    dataset: data.Dataset,
    device: torch.device,
    group: Processes = Processes(),  # noqa: B008
    *,
    saved: State | None = None,
    rounds: LotteryRounds | None = None,
) -> tuple[nn.Module, Cost | None]:
    """The network before its first step, and what its pruning method has cost, if it has one.

    saved: a state of the same network, in a run that goes on; the support is taken from there.
    rounds: the rounds of lottery tickets, where the settings ask for them.
    """
    model, cost = build(settings, dataset, device), None
    if saved is None and rounds is not None and (start := rounds.initial_state(settings)) is not None:
        model.load_state_dict(start)
    if settings.projection is not None:
        model = project(model, _dimensions(model, settings), settings.projection, seed=settings.seed)
    elif settings.density is not None and not is_dense_round(settings):
        supports, cost = _choose_supports(model, settings, dataset, device, group, saved, rounds)
        _sparsify(model, settings, supports)
        if saved is not None and settings.rewire is not None:
            _move_weights(model, saved)
    if settings.norm_density is not None:
        sparsify_norms(model, settings.norm_density, seed=settings.seed)
    _freeze(model, settings)
    layout = torch.channels_last if settings.channels_last else torch.contiguous_format
    return fuse(model.to(device).to(memory_format=layout)), cost  # type: ignore[call-overload]


def _freeze(model: nn.Module, settings: Settings) -> None:
    """Let the parameters that the settings freeze stay as they are."""
    layers = [m for m in model.modules() if isinstance(m, DpsLayer)]
    norms = [p for m in model.modules() if isinstance(m, _BatchNorm) for p in m.parameters()]
    frozen = {"values": [layer.values for layer in layers[:-1]], "norms": norms, None: []}[settings.frozen]
    for parameter in frozen:
        parameter.requires_grad_(False)


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


def _dimensions(model: nn.Module, settings: Settings) -> int:
    """How many dimensions the subspace of a projection has: as many as there would be weights at this density."""
    assert settings.density is not None
    return budget(sum(layer.get_parameter("weight").numel() for layer in prunable(model).values()), settings.density)


# --- the support ----------------------------------------------------------------------------------------------------


def _choose_supports(
    model: nn.Module,
    settings: Settings,
    dataset: data.Dataset,
    device: torch.device,
    group: Processes,
    saved: State | None,
    rounds: LotteryRounds | None,
) -> tuple[dict[str, Support] | None, Cost | None]:
    """The supports and what choosing them has cost; None where `sparsify` draws them at random."""
    if settings.method is None:
        return None, None
    is_own = user_code.names_function(settings.method)
    if not is_own:
        lookup({**METHODS, IMP: None}, settings.method, "method")
    if saved is not None:
        return _saved_supports(model, saved), None
    if is_own:
        return _ask_user(model, settings, dataset, device, group), None
    if settings.method == IMP:
        assert rounds is not None
        return rounds.supports(settings, model), None
    return _prune(model, settings, dataset, device, group)


def _saved_supports(model: nn.Module, saved: State) -> dict[str, Support]:
    shapes = {name: layer.get_parameter("weight").shape for name, layer in prunable(model).items()}
    return {name: saved_support(saved, name, tuple(shape)) for name, shape in shapes.items()}


def _move_weights(model: nn.Module, saved: State) -> None:
    """Move the weights of a new network to where rewiring had moved them; a layer may have had more of them, or fewer.

    So the network is otherwise the one that the run began with, with its seeds and the number of weights asked for.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, DpsLayer):
            support = saved_support(saved, name, layer.geometry.weight_shape)
            layer.move(support, saved[f"{name}.values"])


def _ask_user(
    model: nn.Module, settings: Settings, dataset: data.Dataset, device: torch.device, group: Processes
) -> dict[str, Support]:
    """The supports that the user's function chooses for a copy of the network; those of the first process."""
    assert settings.method is not None
    names = ("density", "offset", "alpha", "allocation", "seed")
    with torch.random.fork_rng():  # the training is the same whatever the function draws
        supports = user_code.call(
            settings.method,
            "a Support for each layer, by name",
            model=copy.deepcopy(model),
            batches=_endless(dataset, settings, device),
            **{name: getattr(settings, name) for name in names},
        )
    if not isinstance(supports, dict):
        raise ValueError(f"{settings.method} returned a {type(supports).__name__}, not supports by the names of layers")
    shared: dict[str, Support] = group.share(supports, device)
    return shared


def _endless(dataset: data.Dataset, settings: Settings, device: torch.device) -> EndlessBatches:
    """Whole training batches, in every process, for a method that looks at them."""
    return EndlessBatches(RunBatches.of(dataset, settings, device, Processes()).training)


def _prune(
    model: nn.Module, settings: Settings, dataset: data.Dataset, device: torch.device, group: Processes
) -> tuple[dict[str, Support], Cost]:
    """Every process scores the weights on whole batches; the supports are those of the first."""
    assert settings.method is not None
    assert settings.density is not None
    supports = prune(
        model,
        settings.method,
        settings.density,
        batches=_endless(dataset, settings, device),
        steps=settings.method_steps,
        batches_per_step=settings.method_batches,
        seed=settings.seed,
        progress=group.first,
    )
    return group.share(supports, device), dataclasses.asdict(supports.cost)
