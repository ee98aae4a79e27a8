"""The layers of a network that can be converted, and the reasons why the others cannot."""

import collections
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from dctps.nn.built_layer import BuiltLayer
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.fine_tuned import FineTuned
from dctps.nn.layer_kinds import TABLE
from dctps.nn.layers import DpsConv1d, DpsConv2d, DpsConv3d, DpsLinear

LAYERS: dict[type[nn.Module], type[DpsLayer]] = {  # the layers of torch, and their sparse versions
    nn.Linear: DpsLinear,
    nn.Conv1d: DpsConv1d,
    nn.Conv2d: DpsConv2d,
    nn.Conv3d: DpsConv3d,
}

_ASKED = "all_kinds=True converts it"
_FROZEN = "frozen (requires_grad is False)"
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_REASONS: list[tuple[tuple[type[nn.Module], ...], str]] = [
    (_TRANSPOSED, f"a transposed convolution ({_ASKED})"),
    ((nn.Embedding, nn.EmbeddingBag), TABLE),
    ((nn.RNNBase, nn.RNNCellBase), "recurrent weights, read directly by torch's fused kernels"),
    ((nn.MultiheadAttention,), f"fused projections, read directly by torch's attention ({_ASKED})"),
]


class LeftDense(NamedTuple):
    """A module that has weights and stays dense, with the reason."""

    name: str
    reason: str


def prunable(model: nn.Module, *, frozen_too: bool = False) -> dict[str, nn.Module]:
    """Return the layers that `sparsify` converts, by name, in the order of their definition.

    frozen_too: whether layers whose weight is frozen are among them.

    >>> list(prunable(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Conv2d(1, 1, 3))))
    ['0', '2']
    """
    allowed = (None, _FROZEN) if frozen_too else (None,)
    return {name: module for name, module, reason in _weighted(model) if reason in allowed}


def left_dense(model: nn.Module) -> list[LeftDense]:
    """Return the modules that have weights and cannot be converted, each with the reason."""
    return [LeftDense(name, reason) for name, _, reason in _weighted(model) if reason is not None]


def _weighted(model: nn.Module) -> Iterator[tuple[str, nn.Module, str | None]]:
    """Yield the name of each module that has a dense weight, the module, and why it cannot be converted.

    The reason is None where the module can be converted.
    """
    owners = owners_of(model)
    read_directly = {id(m.out_proj) for m in model.modules() if isinstance(m, nn.MultiheadAttention)}
    for name, module in model.named_modules():
        matrices = [p for p in module.parameters(recurse=False) if nn.parameter.is_lazy(p) or p.dim() >= 2]
        if isinstance(module, DpsLayer | FineTuned | BuiltLayer | ParametrizationList) or not (
            matrices or isinstance(module, tuple(LAYERS))
        ):
            continue
        if id(module) in read_directly:
            yield name, module, f"the output projection that torch's attention reads directly ({_ASKED})"
        else:
            yield name, module, _why_not(name, module, owners)


def _why_not(name: str, module: nn.Module, owners: dict[int, list[str]]) -> str | None:
    """Return why a module with a weight cannot be converted, or None if it can."""
    weight = module._parameters.get("weight")
    if isinstance(module, tuple(LAYERS)) and weight is None:
        return "its weight is computed from other parameters (weight norm, spectral norm or a pruning hook)"
    if weight is None or type(module) not in LAYERS:
        return _why_not_type(module)
    if module._parameters.get("bias") is None and getattr(module, "bias", None) is not None:
        return "its bias is no parameter (a pruning hook or a buffer)"
    if len(owners[id(weight)]) > 1:
        return f"its weight is tied: {' = '.join(owners[id(weight)])}"
    kind = type(weight.data)
    if kind is not Tensor and not nn.parameter.is_lazy(weight):
        return f"its weight is a {kind.__name__} (quantised, sharded or otherwise wrapped)"
    if not weight.is_floating_point():
        return f"its weight is {weight.dtype}; only real floating point weights are converted"
    return None if weight.requires_grad else _FROZEN


def _why_not_type(module: nn.Module) -> str:
    """Return why modules of this type cannot be converted."""
    for types, reason in _REASONS:
        if isinstance(module, types):
            return reason
    if any(nn.parameter.is_lazy(p) for p in module.parameters(recurse=False)):
        return "its shape is not known yet; run the network once on an example first"
    kind = type(module).__name__
    parents = [base.__name__ for base in LAYERS if isinstance(module, base)]
    if parents:
        return f"{kind}, a subclass of {parents[0]} that may compute something else ({_ASKED})"
    return f"{kind} is not a linear layer or a convolution of torch.nn"


def owners_of(model: nn.Module) -> dict[int, list[str]]:
    """Return, by the id of each parameter, the names under which modules hold it; a module used twice counts once."""
    owners: dict[int, list[str]] = collections.defaultdict(list)
    for name, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                owners[id(parameter)].append(f"{name}.{key}" if name else key)
    return owners


def paths(model: nn.Module, modules: Iterable[nn.Module]) -> list[tuple[str, nn.Module]]:
    """Return every path at which the modules stand, with its module; a module used in two places has two paths."""
    wanted = {id(module) for module in modules}
    return [(n, m) for n, m in model.named_modules(remove_duplicate=False) if id(m) in wanted]


def state_keys(model: nn.Module, modules: Iterable[nn.Module], keys: Iterable[str]) -> set[str]:
    """Return the names that the tensors called `keys` of the modules have in the state_dict, under every path."""
    wanted = list(keys)
    return {f"{path}.{key}" if path else key for path, _ in paths(model, modules) for key in wanted}
