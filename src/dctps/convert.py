"""From plain networks to W = alpha D + S and back: `sparsify`, `densify`.

Both build every new layer first and put them in place at the end, so a failure leaves the network as it was.
"""

import copy
import fnmatch
import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

import torch
from torch import nn

from dctps.allocation import budget, check_density, draw_supports
from dctps.layers import AUTO, DpsLayer, DpsLinear
from dctps.offsets import OffsetLike
from dctps.report import Asked, remember
from dctps.support import Support, derive_seed
from dctps.survey import LAYERS, left_dense, paths, prunable

M = TypeVar("M", bound=nn.Module)
Exclude = str | type[nn.Module] | Iterable[str | type[nn.Module]]


def sparsify(
    model: nn.Module,
    density: float | None = None,
    *,
    supports: Mapping[str, Support] | None = None,
    offset: OffsetLike = "dct",
    allocation: str = "epl",
    alpha: float = 1.0,
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
    exclude: names (patterns such as "encoder.*") or types of layers to leave dense.
    """
    _check_request(model, density, supports)
    layers = _targets(model, exclude)
    shapes = {name: tuple(layer.weight.shape) for name, layer in layers.items()}  # type: ignore[arg-type]
    for name, shape in shapes.items():
        if math.prod(shape) < 1:
            raise ValueError(f"layer {name!r} has a weight of shape {shape}: no place for any; exclude it")
    total = sum(map(math.prod, shapes.values()))
    if supports is None:
        assert density is not None
        if density * total < 0.5:  # `budget` would make it one weight; nobody asks for that on purpose
            raise ValueError(
                f"density {density} of {total:,} weights is less than one; at least {1 / total:.2g} keeps one"
            )
        supports = draw_supports(shapes, density, allocation, seed)
    else:
        _check_supports(supports, shapes)
    options = {"offset": offset, "alpha": alpha, "train_alpha": train_alpha, "backend": backend}
    target = torch.device(device or "cpu")
    new = {
        id(layers[n]): sparse_twin(n, layers[n], s, derive_seed(seed, n), options, target) for n, s in supports.items()
    }
    result = swap(model, new, _materialised(model, set(new), target))
    if density is not None:
        remember(result, Asked(density, budget(total, density), allocation))
    return result


def densify(model: nn.Module) -> nn.Module:
    """Replace every sparse layer, in place, by the plain torch layer with the same outputs; returns the model."""
    layers = [layer for layer in model.modules() if isinstance(layer, DpsLayer)]
    if not layers:
        raise ValueError("there is no sparse layer in this network to densify")
    return swap(model, {id(layer): _plain(layer) for layer in layers}, {})


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


def _targets(model: nn.Module, exclude: Exclude) -> dict[str, nn.Module]:
    """The layers to convert, by name."""
    rules = [exclude] if isinstance(exclude, str | type) else list(exclude)
    layers = prunable(model)
    for rule in rules:
        hit = [
            n
            for n, m in layers.items()
            if (fnmatch.fnmatchcase(n, rule) if isinstance(rule, str) else isinstance(m, rule))
        ]
        if not hit and isinstance(rule, str):
            raise ValueError(f"exclude={rule!r} matches no layer; there are: {', '.join(layers)}")
        layers = {name: layer for name, layer in layers.items() if name not in hit}
    if not layers:
        left = "".join(f"\n  {name}: {reason}" for name, reason in left_dense(model))
        raise ValueError(f"there is no layer to convert in this network{' (all are excluded)' if rules else ''}{left}")
    return layers


def _check_supports(supports: Mapping[str, Support], shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, support in supports.items():
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
    name: str, layer: nn.Module, support: Support, seed: int, options: Mapping[str, object], device: torch.device
) -> DpsLayer:
    """A sparse layer with the arguments, device, dtype, bias, mode and hooks of a plain one."""
    weight, bias = layer._parameters["weight"], layer._parameters.get("bias")
    assert weight is not None
    place = device if weight.is_meta else weight.device
    common = {"bias": bias is not None, "device": place, "dtype": weight.dtype, "support": support, "seed": seed}
    try:
        new = LAYERS[type(layer)](**_arguments(layer), **common, **options)
    except ValueError as error:
        raise ValueError(f"layer {name!r}: {error}") from error
    if new.offset is None and not weight.is_meta:
        new.values.data = weight.detach().flatten()[support.positions.to(place).long()].clone()
    return _take_over(new, layer)


def _plain(layer: DpsLayer) -> nn.Module:
    kind = next(torch_type for torch_type, ours in LAYERS.items() if ours is type(layer))
    arguments = _arguments(layer)
    new: nn.Module = nn.utils.skip_init(
        kind, **arguments, bias=layer.bias is not None, dtype=layer.values.dtype, device="meta"
    )
    new.weight = nn.Parameter(layer.dense_weight().detach(), requires_grad=layer.values.requires_grad)
    return _take_over(new, layer)


def _take_over(new: M, old: nn.Module) -> M:
    """The old layer's bias (the same object), mode and hooks."""
    bias = old._parameters.get("bias")
    if bias is not None and not bias.is_meta:
        new.bias = bias
    for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
        getattr(new, hooks).update(getattr(old, hooks))
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


def _materialised(model: nn.Module, converted: set[int], device: torch.device) -> dict[int, nn.Module]:
    """For each module with meta tensors of its own that is not converted: a twin on `device`, freshly initialised."""
    twins: dict[int, nn.Module] = {}
    made: dict[int, nn.Parameter | None] = {}  # a tied parameter is made once
    homeless = []
    for name, module in model.named_modules():
        tensors = {**module._parameters, **module._buffers}
        meta = [key for key, tensor in tensors.items() if tensor is not None and tensor.is_meta]
        if not meta or id(module) in converted:
            continue
        if hasattr(module, "reset_parameters") or isinstance(module, nn.MultiheadAttention):
            twins[id(module)] = _twin(module, device, made)
        else:
            homeless += [f"{name}.{key}" if name else key for key in meta]
    if homeless:
        raise ValueError(
            f"cannot initialise {', '.join(homeless)}: on the meta device, and its module has no reset_parameters(); "
            "give these tensors real values first, or build the network on a real device"
        )
    return twins


def _twin(module: nn.Module, device: torch.device, made: dict[int, nn.Parameter | None]) -> nn.Module:
    twin = copy.copy(module)
    twin._parameters, twin._buffers, twin._modules = dict(module._parameters), dict(module._buffers), {}
    twin.to_empty(device=device, recurse=False)
    if isinstance(module, nn.MultiheadAttention):  # its own reset would reach into the output projection as well
        for parameter in twin.parameters(recurse=False):
            nn.init.xavier_uniform_(parameter) if parameter.dim() > 1 else nn.init.zeros_(parameter)
    else:
        twin.reset_parameters()  # type: ignore[operator]
    for key, old in module._parameters.items():
        twin._parameters[key] = made.setdefault(id(old), twin._parameters[key])
    return twin
