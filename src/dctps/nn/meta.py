"""Real tensors in the place of meta ones: what a network built under torch.device("meta") needs besides its layers."""

import copy

import torch
from torch import nn


def materialised(model: nn.Module, converted: set[int], device: torch.device, seed: int) -> dict[int, nn.Module]:
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
