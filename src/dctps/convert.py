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
from dctps.functional import AUTO
from dctps.layers import DpsLayer, DpsLinear
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
    result = swap(model, new, _materialised(model, set(new), target, seed))
    if density is not None:
        remember(result, Asked(density, budget(total, density), allocation))
    return result


def densify(model: nn.Module) -> nn.Module:
    """Replace every sparse layer, in place, by the plain torch layer with the same outputs; returns the model."""
    layers = [layer for layer in model.modules() if isinstance(layer, DpsLayer)]
    if not layers:
        raise ValueError("there is no sparse layer in this network to densify")
    result = swap(model, {id(layer): _plain(layer) for layer in layers}, {})
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


def _targets(model: nn.Module, exclude: Exclude) -> dict[str, nn.Module]:
    """The layers to convert, by name."""
    rules = [exclude] if isinstance(exclude, str | type) else list(exclude)
    layers = prunable(model)
    out = set().union(*(_hit(rule, model, layers) for rule in rules))
    layers = {name: layer for name, layer in layers.items() if name not in out}
    if not layers:
        left = "".join(f"\n  {name}: {reason}" for name, reason in left_dense(model))
        raise ValueError(f"there is no layer to convert in this network{' (all are excluded)' if rules else ''}{left}")
    return layers


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
    kind = next(torch_type for torch_type, ours in LAYERS.items() if isinstance(layer, ours))
    arguments = _arguments(layer)
    new: nn.Module = nn.utils.skip_init(
        kind, **arguments, bias=layer.bias is not None, dtype=layer.values.dtype, device="meta"
    )
    new.weight = nn.Parameter(layer.dense_weight().detach(), requires_grad=layer.values.requires_grad)
    return _take_over(new, layer)


def _take_over(new: M, old: nn.Module) -> M:
    """The old layer's bias (the same object), mode and hooks (the same dictionaries, which their handles know)."""
    bias = old._parameters.get("bias")
    if bias is not None and bias.is_meta:
        new.get_parameter("bias").requires_grad_(bias.requires_grad)
    elif bias is not None:
        new.bias = bias
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


def _materialised(model: nn.Module, converted: set[int], device: torch.device, seed: int) -> dict[int, nn.Module]:
    """For each module with meta tensors of its own that is not converted: a twin on `device`, freshly initialised."""
    twins: dict[int, nn.Module] = {}
    made: dict[int, nn.Parameter | None] = {}  # a tied parameter is made once
    homeless: list[str] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, module in model.named_modules():
            meta = [key for key, tensor in _own(module).items() if tensor.is_meta]
            if meta and id(module) not in converted:
                twins[id(module)], blank = _twin(name, module, meta, device, made)
                homeless += [f"{name}.{key}" if name else key for key in blank]
    if homeless:
        raise ValueError(
            f"cannot initialise {', '.join(homeless)}: on the meta device, and its module has no reset_parameters() "
            "that sets it; give these tensors real values first, or build the network on a real device"
        )
    return twins


def _own(module: nn.Module) -> dict[str, torch.Tensor]:
    return {key: t for key, t in {**module._parameters, **module._buffers}.items() if t is not None}


def _twin(
    name: str, module: nn.Module, meta: list[str], device: torch.device, made: dict[int, nn.Parameter | None]
) -> tuple[nn.Module, list[str]]:
    """A copy of the module alone with real tensors in the place of meta ones, and which of them nothing has set."""
    twin = copy.copy(module)
    twin._parameters, twin._buffers, twin._modules = dict(module._parameters), dict(module._buffers), {}
    twin.to_empty(device=device, recurse=False)
    with torch.no_grad():
        for tensor in _own(twin).values():
            tensor.fill_(_unset(tensor))
        try:
            _reset(twin)
        except Exception as error:
            raise ValueError(f"cannot initialise {name!r}, which is on the meta device: {error}") from error
    blank = [key for key in meta if bool((_own(twin)[key] == _unset(_own(twin)[key])).any())]
    twin._parameters.update({key: p for key, p in module._parameters.items() if key not in meta})  # what was real stays
    twin._buffers.update({key: b for key, b in module._buffers.items() if key not in meta})
    for key in set(meta) & module._parameters.keys():
        twin._parameters[key] = made.setdefault(id(module._parameters[key]), twin._parameters[key])
    return twin, blank


def _unset(tensor: torch.Tensor) -> float | int:
    """A number that no initialisation gives, to see which tensors one has left out."""
    if tensor.is_floating_point() or tensor.is_complex():
        return torch.finfo(tensor.dtype).max
    return False if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max


def _reset(twin: nn.Module) -> None:
    if isinstance(twin, nn.MultiheadAttention):  # its own reset would reach into the output projection as well
        for parameter in twin.parameters(recurse=False):
            nn.init.xavier_uniform_(parameter) if parameter.dim() > 1 else nn.init.zeros_(parameter)
    elif hasattr(twin, "reset_parameters"):
        twin.reset_parameters()  # type: ignore[operator]
