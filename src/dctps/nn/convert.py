"""Conversion of plain networks to W = alpha D + S and back: `sparsify`, `sparsify_norms`, `densify`.

Each builds all new layers first and puts them into the network at the end, so that an error leaves the network as it
was.
"""

import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dctps.core.allocation import budget, check_at_least_one, check_density, draw_supports
from dctps.core.offsets import PRETRAINED, Offset, OffsetLike, resolve
from dctps.core.support import Support, derive_seed
from dctps.nn.alphas import AlphaLike, choose_alphas
from dctps.nn.batchnorm import SparseBatchNorm, prunable_norms
from dctps.nn.buildable import Block, attach_blocks, block_offset, buildable, built_weights, check_whole, make_part
from dctps.nn.built_layer import BuiltLayer, BuiltPart, built_parameters, detach_built
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.finetune import attach, before, make_parts, tuning_targets
from dctps.nn.foreign import check_adapters, check_device, check_network, mark_config, warn_of_loss
from dctps.nn.fuse import mark, unfuse
from dctps.nn.merging import merge
from dctps.nn.meta import materialise, take_tensors
from dctps.nn.prunable import left_dense, prunable
from dctps.nn.replace import (
    errors_name_layer,
    make_plain_layer,
    make_plain_norm,
    make_sparse_layer,
    make_sparse_norm,
    replace_layers,
)
from dctps.nn.report import Request, attach_request
from dctps.nn.sparse_part import SparsePart
from dctps.nn.trained import matched_parameters
from dctps.nn.wrappers import unwrapped
from dctps.ops.functional import AUTO

DEFAULT_ALPHA = "leverage"
M = TypeVar("M", bound=nn.Module)
Exclude = str | type[nn.Module] | Iterable[str | type[nn.Module]]


def sparsify(
    model: nn.Module,
    density: float | None = None,
    *,
    supports: Mapping[str, Support] | None = None,
    offset: OffsetLike = "dct_signed",
    allocation: str = "epl",
    alpha: AlphaLike = DEFAULT_ALPHA,
    train_alpha: bool | None = None,
    seed: int = 0,
    exclude: Exclude = (),
    train: str | Iterable[str] = (),
    backend: str = AUTO,
    adapters: bool = False,
    all_kinds: bool = False,
    device: torch.device | str | None = None,
) -> nn.Module:
    """Replace the linear layers and convolutions of `model`, in place, by W = alpha D + S, and return the model.

    With an offset S starts at zero and the former weights are lost; with `offset=None` the layers keep their values at
    the support. If the model is a single layer, it stays as it is and the new layer is returned. A model built under
    `torch.device("meta")` gets real tensors, and no dense weight is ever made.

    With `offset="pretrained"` D is W0, the weight that a layer has: W = W0 + S for fine-tuning. The layers stay the
    objects that they are, W0 stays where it is in memory and is frozen, and S starts at zero (docs/finetuning.md).

    density: the fraction of all converted weights that trains.
    supports: the positions of the weights that train, by layer name, in place of a density; other layers stay dense.
    allocation: the rule that shares the weights out among the layers, one of `ALLOCATIONS`.
    offset: the matrix D, by a name in `OFFSETS`, a `TransformOffset`, or an offset of your own; None for none. The
        paper has "dct" with alpha=1.
    alpha: the initial scale of D: a number, the name of a rule in `ALPHAS`, a `Leverage` (or its name,
        leverage/LR/STEPS), numbers by layer name or pattern, or a function. A number is a factor on 1, or on the scale
        that the network states, as Fixup does.
    train_alpha: whether alpha trains, by default yes. W0 has no alpha unless this is True; it then starts at 1.
    seed: the seed of the supports. They follow from it alone: the default 0 gives the same supports in every call,
        whatever `torch.manual_seed` says.
    exclude: names (patterns such as "encoder.*") or types of layers that stay dense.
    train: with `offset="pretrained"`, what trains beside S: names or patterns of modules and parameters, as
        ("classifier", "*.bias"), and "norms" for all normalisation layers. Everything else is frozen.
    adapters: whether to convert the layers of peft's adapters, too. By default they are an error, because an adapter
        must start at zero.
    all_kinds: whether other layers are converted, too: attention, transposed convolutions, recurrent cells, subclasses,
        and all whose forward method reads `self.weight` (docs/layers.md). They stay the objects that they are, and
        build alpha D + S in each forward pass.
    device: the device to which the whole network moves; by default it stays where it is, and meta tensors become real
        ones on the CPU.
    """
    _check_request(model, density, supports)
    check_device(device)
    chosen = _Choice(density, supports, allocation, seed)
    if offset == PRETRAINED:
        _check_scale(alpha)
        _fine_tune(unwrapped(model), chosen, exclude, train, bool(train_alpha), backend, adapters)
        return model if device is None else model.to(device)
    if train != ():
        raise ValueError("train= says what trains beside S when the rest is frozen, so it needs offset='pretrained'")
    blocks = buildable(model) if all_kinds else {}
    layers = targets(model, exclude, blocks=blocks)
    if not adapters:
        check_adapters(model, layers)
    shapes = _weight_shapes(layers, blocks)
    supports = _chosen_supports(chosen, shapes)
    check_whole(blocks, supports)
    offsets = {name: _bind_offset(name, offset, shapes[name], blocks.get(name)) for name in supports}
    replaced = {name: layers[name] for name, bound in offsets.items() if bound is not None}
    counts = {name: support.nnz for name, support in supports.items()}
    alphas = choose_alphas(alpha, model, {name: bound for name, bound in offsets.items() if bound is not None}, counts)
    target = torch.device(device or "cpu")
    new, parts = {}, {}
    for name, support in supports.items():
        options: dict[str, object] = {"offset": offsets[name], "alpha": alphas.get(name, 1.0)}
        options |= {"train_alpha": train_alpha is not False, "backend": backend, "seed": derive_seed(seed, name)}
        if name in blocks:
            parts[name] = make_part(name, blocks[name], support, options, target)
        else:
            new[id(layers[name])] = make_sparse_layer(name, layers[name], support, options, target)
    copies = materialise(model, set(new), target, seed, built_weights({name: blocks[name] for name in parts}))
    warn_of_loss(model, replaced, stacklevel=2)
    take_tensors(model, copies)
    attach_blocks(blocks, parts)
    result = replace_layers(model, new)
    mark_config(result)
    if device is not None:
        result.to(target)
    mark(result)
    attach_request(result, _request(chosen, shapes))
    return result


def sparsify_norms(
    model: nn.Module, density: float, *, allocation: str = "epl", seed: int = 0, exclude: Exclude = ()
) -> nn.Module:
    """Keep the scale and shift of few BatchNorm channels, in place; all others become 1 and 0 and no longer train.

    The channels that keep scale and shift are drawn at random, and the values stay. If the model is a single layer, it
    stays as it is and the new layer is returned. Layers whose scale or shift is absent, frozen or shared stay as they
    are.

    density: the fraction of all channels that keep scale and shift.
    allocation: the rule that shares these channels out among the layers, one of `ALLOCATIONS`.
    exclude: names (patterns) or types of layers that stay as they are.
    """
    check_density(density)
    norms = _target_norms(model, exclude)
    shapes = {name: (norm.num_features,) for name, norm in norms.items()}
    supports = _draw_supports(shapes, density, allocation, seed, "channels")
    cpu = torch.device("cpu")
    new = {id(norms[name]): make_sparse_norm(norms[name], support, cpu) for name, support in supports.items()}
    return replace_layers(model, new)


def densify(model: nn.Module) -> nn.Module:
    """Replace every sparse layer, in place, by the layer of torch with the same outputs, and return the model.

    Fused BatchNorm layers become plain ones again. A fine-tuned network gets the weights W0 + S, in the memory of W0;
    `unmerge` takes them back.
    """
    if before(tuned := unwrapped(model)) is not None:
        merge(tuned)
        attach_request(tuned, None)
        unfuse(tuned)
        return model
    built = [m for m in model.modules() if isinstance(m, BuiltLayer)]
    inside = {id(part) for layer in built for part in layer.sparse_part.values()}
    sparse = [m for m in model.modules() if isinstance(m, DpsLayer) and id(m) not in inside]
    if any(isinstance(m, SparsePart | BuiltPart) for m in sparse):
        raise ValueError("this is a part of a layer; densify the network that was given to sparsify")
    new: dict[int, nn.Module] = {id(m): make_plain_layer(m) for m in sparse}
    new |= {id(m): make_plain_norm(m) for m in model.modules() if isinstance(m, SparseBatchNorm)}
    weights = [built_parameters(layer) for layer in built]  # all, before anything is changed
    was_fused = unfuse(model)
    if not new and not built and not was_fused:
        raise ValueError("there is no sparse layer in this network to densify")
    for layer, own in zip(built, weights, strict=True):
        detach_built(layer, own)
    result = replace_layers(model, new)
    attach_request(result, None)
    mark_config(result, sparse=False)
    return result


# --- fine-tuning -----------------------------------------------------------------------------------------------------


class _Choice(NamedTuple):
    """How supports are chosen: given, or drawn."""

    density: float | None
    supports: Mapping[str, Support] | None
    allocation: str
    seed: int


def _fine_tune(
    model: nn.Module,
    choice: _Choice,
    exclude: Exclude,
    train: str | Iterable[str],
    scaled: bool,
    backend: str,
    adapters: bool,
) -> None:
    """Give the weights of a network sparse parts, in place, and freeze everything else but what `train` names."""
    trained = matched_parameters(model, train)
    weights = tuning_targets(model, trained)
    owners = fine_tuned_layers(model, exclude, train)
    if not adapters:
        check_adapters(model, owners)
    shapes = {name: tuple(weights[name].base.shape) for name in owners}
    supports = _chosen_supports(choice, shapes)
    attach(model, weights, make_parts(weights, supports, backend=backend, scaled=supports if scaled else ()), trained)
    attach_request(model, _request(choice, shapes))


def fine_tuned_layers(model: nn.Module, exclude: Exclude, train: str | Iterable[str]) -> dict[str, nn.Module]:
    """Return the layers of the weights that would get sparse parts, by the names of the weights."""
    weights = tuning_targets(model, matched_parameters(model, train))
    users = {name: [use.layer for use in weight.uses] for name, weight in weights.items()}
    excluded = _excluded(model, users, exclude)
    if len(excluded) == len(users):
        raise ValueError("there is no weight to fine-tune in this network: all are excluded")
    return {name: layers[0] for name, layers in users.items() if name not in excluded}


def _check_scale(alpha: AlphaLike) -> None:
    """Raise ValueError if an alpha was asked for that is neither 1 nor the default, which is for transforms."""
    if alpha not in (1, DEFAULT_ALPHA):
        raise ValueError(
            f"alpha={alpha!r} would scale the pretrained weights; it starts at 1, and trains if train_alpha=True"
        )


# --- the layers to convert -------------------------------------------------------------------------------------------


def targets(
    model: nn.Module, exclude: Exclude, *, frozen_too: bool = False, blocks: Mapping[str, Block] | None = None
) -> dict[str, nn.Module]:
    """Return the layers to convert, by name; raise ValueError if there is none.

    frozen_too: whether layers whose weight is frozen are among them.
    blocks: matrices in other layers that are converted, too.
    """
    other = {name: block.layer for name, block in (blocks or {}).items()}
    layers = _without_excluded(model, prunable(model, frozen_too=frozen_too) | other, exclude)
    if not layers:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in left_dense(model))
        excluded = " (all are excluded)" if prunable(model) else ""
        raise ValueError(f"there is no layer to convert in this network{excluded}{reasons}")
    return layers


def _target_norms(model: nn.Module, exclude: Exclude) -> dict[str, _BatchNorm]:
    """Return the BatchNorm layers to convert, by name; raise ValueError if there is none."""
    sparse = [name for name, m in model.named_modules() if isinstance(m, SparseBatchNorm)]
    if sparse:
        first = sparse[0]
        raise ValueError(f"{len(sparse)} BatchNorm layers are sparse already, the first is {first!r}; densify first")
    norms = _without_excluded(model, prunable_norms(model), exclude)
    if not norms:
        excluded = " (all are excluded)" if prunable_norms(model) else ""
        raise ValueError(
            f"there is no BatchNorm layer here whose scale and shift train and belong to it alone{excluded}"
        )
    for name, norm in norms.items():
        if norm.weight.is_meta:
            raise ValueError(f"BatchNorm layer {name!r} is on the meta device; sparsify the network first")
    return norms


def _without_excluded(model: nn.Module, layers: Mapping[str, M], exclude: Exclude) -> dict[str, M]:
    """Return the layers that no rule excludes."""
    excluded = _excluded(model, {name: [layer] for name, layer in layers.items()}, exclude)
    return {name: layer for name, layer in layers.items() if name not in excluded}


def _excluded(model: nn.Module, users: Mapping[str, Sequence[nn.Module]], exclude: Exclude) -> set[str]:
    """Return the names of the weights of which a rule excludes a layer that uses them."""
    rules = [exclude] if isinstance(exclude, str | type) else list(exclude)
    return set[str]().union(*(_excluded_by(rule, model, users) for rule in rules))


def _excluded_by(rule: str | type[nn.Module], model: nn.Module, users: Mapping[str, Sequence[nn.Module]]) -> set[str]:
    """Return the names whose layers a rule matches, under any of their paths, or that lie inside a match."""
    matched = [
        path
        for path, module in model.named_modules(remove_duplicate=False)
        if (fnmatch.fnmatchcase(path, rule) if isinstance(rule, str) else isinstance(module, rule))
    ]
    inside = {id(m) for path in matched for m in model.get_submodule(path).modules()}
    excluded = {name for name, layers in users.items() if any(id(layer) in inside for layer in layers)}
    if not excluded:
        name = rule if isinstance(rule, str) else rule.__name__
        raise ValueError(f"exclude={name!r} matches no layer; there are: {', '.join(users)}")
    return excluded


# --- the arguments ---------------------------------------------------------------------------------------------------


def _check_request(model: nn.Module, density: float | None, supports: Mapping[str, Support] | None) -> None:
    """Raise an error unless the model is plain and exactly one of density and supports is given."""
    check_network(model, "sparsify(model, density)", density)
    if (density is None) == (supports is None):
        raise ValueError("give exactly one of density= and supports=, to say which weights train")
    if density is not None:
        check_density(density)
    sparse = [name for name, layer in model.named_modules() if isinstance(layer, DpsLayer)]
    if sparse:
        raise ValueError(
            f"this network is sparse already ({len(sparse)} layers, the first is {sparse[0]!r}); "
            "densify it first, or convert its parts one by one"
        )


def _weight_shapes(layers: Mapping[str, nn.Module], blocks: Mapping[str, Block]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each layer's weight, or matrix; raise ValueError if a weight has no entries."""
    shapes = {
        name: blocks[name].shape if name in blocks else tuple(layer.get_parameter("weight").shape)
        for name, layer in layers.items()
    }
    for name, shape in shapes.items():
        if math.prod(shape) < 1:
            raise ValueError(f"layer {name!r} has a weight of shape {shape}, which has no entries; exclude it")
    return shapes


def _chosen_supports(choice: _Choice, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, Support]:
    """Return the supports that are given, or draw one for each shape."""
    if choice.supports is not None:
        _check_supports(choice.supports, shapes)
        return choice.supports
    assert choice.density is not None
    return _draw_supports(shapes, choice.density, choice.allocation, choice.seed, "weights")


def _request(choice: _Choice, shapes: Mapping[str, tuple[int, ...]]) -> Request | None:
    """Return what the report says was asked for, or None where supports were given."""
    if choice.density is None:
        return None
    total = sum(map(math.prod, shapes.values()))
    return Request(choice.density, budget(total, choice.density), choice.allocation)


def _draw_supports(
    shapes: Mapping[str, tuple[int, ...]], density: float, allocation: str, seed: int, noun: str
) -> dict[str, Support]:
    """Draw a random support for each layer; raise ValueError if the density keeps less than one weight in all.

    noun: what the shapes count, for that error: "weights" or "channels".
    """
    check_at_least_one(sum(map(math.prod, shapes.values())), density, noun)
    return draw_supports(shapes, density, allocation, seed)


def _check_supports(supports: Mapping[str, Support], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ValueError unless every support is a Support for a layer to convert, of the shape of its weight."""
    if not supports:
        raise ValueError(f"supports= names no layer; there are: {', '.join(shapes)}")
    for name, support in supports.items():
        if not isinstance(support, Support):
            kind = type(support).__name__
            raise ValueError(f"the support of {name!r} is a {kind}, not a Support; make one by Support.from_mask")
        if name not in shapes:
            raise ValueError(f"there is no layer {name!r} to convert; there are: {', '.join(shapes)}")
        if support.shape != shapes[name]:
            raise ValueError(f"layer {name!r} has a weight of shape {shapes[name]}, its support is of {support.shape}")


def _bind_offset(name: str, offset: OffsetLike, shape: tuple[int, ...], block: Block | None) -> Offset | None:
    with errors_name_layer(name):
        return resolve(offset if block is None else block_offset(offset, block), shape)
