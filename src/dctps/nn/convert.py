"""From plain networks to W = alpha D + S and back: `sparsify`, `sparsify_norms`, `densify`.

They build every new layer first and put them in place at the end, so a failure leaves the network as it was.
"""

import contextlib
import fnmatch
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dctps.core.allocation import budget, check_at_least_one, check_density, draw_supports
from dctps.core.offsets import Offset, OffsetLike, resolve
from dctps.core.support import Support, derive_seed
from dctps.nn.alphas import AlphaLike, choose_alphas
from dctps.nn.batchnorm import SparseBatchNorm, plain_norm, prunable_norms, sparse_norm
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.layers import DpsLinear
from dctps.nn.meta import materialised
from dctps.nn.prunable import LAYERS, left_dense, paths, prunable
from dctps.nn.report import Asked, remember
from dctps.ops.functional import AUTO

M = TypeVar("M", bound=nn.Module)
Exclude = str | type[nn.Module] | Iterable[str | type[nn.Module]]


def sparsify(
    model: nn.Module,
    density: float | None = None,
    *,
    supports: Mapping[str, Support] | None = None,
    offset: OffsetLike = "dct",
    allocation: str = "epl",
    alpha: AlphaLike = 1.0,
    train_alpha: bool = True,
    seed: int = 0,
    exclude: Exclude = (),
    backend: str = AUTO,
    device: torch.device | str | None = None,
) -> nn.Module:
    """Replace the linear layers and convolutions of `model`, in place, by W = alpha D + S; returns the model.

    Under an offset S starts at zero; with `offset=None` the layers keep their own values at the support. A bare layer
    is not changed: the new layer is returned. A model built under `torch.device("meta")` is materialised on `device`
    (the CPU) without a dense weight at any moment.

    density: the fraction of all converted weights that trains; `allocation` says how they are shared out.
    supports: instead of a density, where the weights are, by layer name; layers not named stay dense.
    alpha: the initial scale of D: a number, in units of the network's own scale (1, unless it states one, as Fixup
        does); or a rule of `ALPHAS`, numbers by layer name or pattern, or a function (`alphas.py`).
    exclude: names (patterns such as "encoder.*") or types of layers to leave dense.
    """
    _check_request(model, density, supports)
    layers = targets(model, exclude)
    shapes = {name: tuple(layer.weight.shape) for name, layer in layers.items()}  # type: ignore[arg-type]
    for name, shape in shapes.items():
        if math.prod(shape) < 1:
            raise ValueError(f"layer {name!r} has a weight of shape {shape}: no place for any; exclude it")
    total = sum(map(math.prod, shapes.values()))
    if supports is None:
        assert density is not None
        supports = _drawn(shapes, density, allocation, seed, "weights")
    else:
        _check_supports(supports, shapes)
    offsets = {name: _bound(name, offset, shapes[name]) for name in supports}
    alphas = choose_alphas(alpha, model, {name: own for name, own in offsets.items() if own is not None})
    target = torch.device(device or "cpu")
    new = {}
    for name, support in supports.items():
        options: dict[str, object] = {"offset": offsets[name], "alpha": alphas.get(name, 1.0)}
        options |= {"train_alpha": train_alpha, "backend": backend, "seed": derive_seed(seed, name)}
        new[id(layers[name])] = sparse_twin(name, layers[name], support, options, target)
    result = swap(model, new, materialised(model, set(new), target, seed))
    if density is not None:
        remember(result, Asked(density, budget(total, density), allocation))
    return result


def sparsify_norms(
    model: nn.Module, density: float, *, allocation: str = "epl", seed: int = 0, exclude: Exclude = ()
) -> nn.Module:
    """Leave BatchNorm layers few scales and shifts, in place; all others are 1 and 0 and no longer parameters.

    The channels that keep theirs (with their values) are drawn at random. A bare layer is not changed: the new layer is
    returned. Layers whose scale or shift is absent, frozen or shared stay as they are.

    density: the fraction of all channels that keeps scale and shift; `allocation` says how they are shared out.
    exclude: names (patterns) or types of layers to leave alone.
    """
    check_density(density)
    norms = _norms(model, exclude)
    shapes = {name: (norm.num_features,) for name, norm in norms.items()}
    supports = _drawn(shapes, density, allocation, seed, "channels")
    new = {id(norms[name]): norm_twin(norms[name], own, torch.device("cpu")) for name, own in supports.items()}
    return swap(model, new, {})


def densify(model: nn.Module) -> nn.Module:
    """Replace every sparse layer, in place, by the plain torch layer with the same outputs; returns the model."""
    new: dict[int, nn.Module] = {id(m): _plain(m) for m in model.modules() if isinstance(m, DpsLayer)}
    new |= {id(m): _same_hooks(plain_norm(m), m) for m in model.modules() if isinstance(m, SparseBatchNorm)}
    if not new:
        raise ValueError("there is no sparse layer in this network to densify")
    result = swap(model, new, {})
    remember(result, None)
    return result


# --- what is asked --------------------------------------------------------------------------------------------------


def _check_request(model: nn.Module, density: float | None, supports: Mapping[str, Support] | None) -> None:
    if (density is None) == (supports is None):
        raise ValueError("say how many weights train by exactly one of density= and supports=")
    if density is not None:
        check_density(density)
    done = [name for name, layer in model.named_modules() if isinstance(layer, DpsLayer)]
    if done:
        raise ValueError(
            f"this network is sparse already ({len(done)} layers, the first is {done[0]!r}); "
            "densify it first, or convert its parts one by one"
        )


def targets(model: nn.Module, exclude: Exclude) -> dict[str, nn.Module]:
    """The layers to convert, by name."""
    layers = _without(exclude, model, prunable(model))
    if not layers:
        left = "".join(f"\n  {name}: {reason}" for name, reason in left_dense(model))
        excluded = " (all are excluded)" if prunable(model) else ""
        raise ValueError(f"there is no layer to convert in this network{excluded}{left}")
    return layers


def _without(exclude: Exclude, model: nn.Module, layers: Mapping[str, M]) -> dict[str, M]:
    """The layers that no rule leaves out."""
    rules = [exclude] if isinstance(exclude, str | type) else list(exclude)
    out = set().union(*(_hit(rule, model, layers) for rule in rules))
    return {name: layer for name, layer in layers.items() if name not in out}


def _norms(model: nn.Module, exclude: Exclude) -> dict[str, _BatchNorm]:
    """The BatchNorm layers to convert, by name."""
    done = [name for name, m in model.named_modules() if isinstance(m, SparseBatchNorm)]
    if done:
        raise ValueError(f"{len(done)} BatchNorm layers are sparse already, the first is {done[0]!r}; densify first")
    norms = _without(exclude, model, prunable_norms(model))
    if not norms:
        excluded = " (all are excluded)" if prunable_norms(model) else ""
        raise ValueError(f"there is no BatchNorm layer here whose scale and shift train and are its alone{excluded}")
    for name, norm in norms.items():
        if norm.weight.is_meta:
            raise ValueError(f"BatchNorm layer {name!r} is on the meta device; sparsify the network first")
    return norms


def _hit(rule: str | type[nn.Module], model: nn.Module, layers: Mapping[str, nn.Module]) -> set[str]:
    """The layers that a rule leaves out: those it matches, under any of their names, and those inside a match."""
    matched = [
        path
        for path, module in model.named_modules(remove_duplicate=False)
        if (fnmatch.fnmatchcase(path, rule) if isinstance(rule, str) else isinstance(module, rule))
    ]
    inside = {id(m) for path in matched for m in model.get_submodule(path).modules()}
    hit = {name for name, layer in layers.items() if id(layer) in inside}
    if not hit:
        name = rule if isinstance(rule, str) else rule.__name__
        raise ValueError(f"exclude={name!r} matches no layer; there are: {', '.join(layers)}")
    return hit


def _drawn(
    shapes: Mapping[str, tuple[int, ...]], density: float, allocation: str, seed: int, what: str
) -> dict[str, Support]:
    check_at_least_one(sum(map(math.prod, shapes.values())), density, what)
    return draw_supports(shapes, density, allocation, seed)


def _check_supports(supports: Mapping[str, Support], shapes: Mapping[str, tuple[int, ...]]) -> None:
    if not supports:
        raise ValueError(f"supports= names no layer; there are: {', '.join(shapes)}")
    for name, support in supports.items():
        if not isinstance(support, Support):
            raise ValueError(f"the support of {name!r} is a {type(support).__name__}; see Support.from_mask")
        if name not in shapes:
            raise ValueError(f"there is no layer {name!r} to convert; there are: {', '.join(shapes)}")
        if support.shape != shapes[name]:
            raise ValueError(f"layer {name!r} has a weight of shape {shapes[name]}, its support {support.shape}")


# --- one layer ------------------------------------------------------------------------------------------------------


def _arguments(layer: nn.Module) -> dict[str, object]:
    """The constructor arguments that a torch layer and its sparse twin share, bias, device and dtype aside."""
    if isinstance(layer, nn.Linear | DpsLinear):
        return {"in_features": layer.in_features, "out_features": layer.out_features}
    names = ["in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"]
    return {name: getattr(layer, name) for name in names}


def sparse_twin(
    name: str, layer: nn.Module, support: Support, options: Mapping[str, object], device: torch.device
) -> DpsLayer:
    """A sparse layer with the arguments, device, dtype, bias, mode and hooks of a plain one."""
    weight, bias = layer._parameters["weight"], layer._parameters.get("bias")
    assert weight is not None
    place = device if weight.is_meta else weight.device
    common = {"bias": bias is not None, "device": place, "dtype": weight.dtype, "support": support}
    with _named(name):
        new = LAYERS[type(layer)](**_arguments(layer), **common, **options)
    if new.offset is None and not weight.is_meta:
        new.values.data = weight.detach().flatten()[support.positions.to(place).long()].clone()
    if new.bias is not None and new.alpha is not None and new.alpha.item() == 0:
        nn.init.zeros_(new.bias)  # a layer that starts at zero does so as a whole; a real bias takes its place below
    return _take_over(new, layer)


def _bound(name: str, offset: OffsetLike, shape: tuple[int, ...]) -> Offset | None:
    with _named(name):
        return resolve(offset, shape)


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Errors say in which layer they arose."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"layer {name!r}: {error}") from error


def _plain(layer: DpsLayer) -> nn.Module:
    kind = next(torch_type for torch_type, ours in LAYERS.items() if isinstance(layer, ours))
    arguments = _arguments(layer)
    new: nn.Module = nn.utils.skip_init(
        kind, **arguments, bias=layer.bias is not None, dtype=layer.values.dtype, device="meta"
    )
    new.weight = nn.Parameter(layer.dense_weight().detach(), requires_grad=layer.values.requires_grad)
    return _take_over(new, layer)


def _take_over(new: M, old: nn.Module) -> M:
    """The old layer's bias (the same object), mode and hooks."""
    bias = old._parameters.get("bias")
    if bias is not None and bias.is_meta:
        new.get_parameter("bias").requires_grad_(bias.requires_grad)
    elif bias is not None:
        new.bias = bias
    return _same_hooks(new, old)


def norm_twin(norm: _BatchNorm, support: Support, device: torch.device) -> SparseBatchNorm:
    """A sparse BatchNorm layer with the arguments, statistics, device, dtype, mode and hooks of a plain one."""
    return _same_hooks(sparse_norm(norm, support, device), norm)


def _same_hooks(new: M, old: nn.Module) -> M:
    """The old layer's mode and hooks (the same dictionaries, which their handles know)."""
    for name, value in vars(old).items():
        if name.startswith(("_forward_", "_backward_", "_is_full_backward_hook")):
            setattr(new, name, value)
    return new.train(old.training)


# --- the network ----------------------------------------------------------------------------------------------------


def swap(model: nn.Module, new: Mapping[int, nn.Module], rest: Mapping[int, nn.Module]) -> nn.Module:
    """Put the new layers (by id of the old) in place, everywhere they stand, and real tensors where meta ones were."""
    for module in model.modules():
        if id(module) in rest:
            module._parameters.update(rest[id(module)]._parameters)
            module._buffers.update(rest[id(module)]._buffers)
    for path, old in paths(model, [m for m in model.modules() if id(m) in new]):
        if not path:
            return new[id(old)]
        parent, _, child = path.rpartition(".")
        model.get_submodule(parent)._modules[child] = new[id(old)]
    return model
