"""Real tensors in place of meta tensors, for the modules of a network that `sparsify` does not replace.

A network built under torch.device("meta") has tensors without values. The sparse layers that replace its linear layers
and convolutions have values of their own; all other modules get theirs here.
"""

import copy
from collections.abc import Container, Mapping

import torch
from torch import nn


def materialise(
    model: nn.Module, converted: set[int], device: torch.device, seed: int, built: Mapping[int, Container[str]]
) -> dict[int, nn.Module]:
    """Return an initialised copy on `device` of each module that has meta tensors and is not converted, by module id.

    Raise ValueError if a module has no `reset_parameters()` that initialises all of its tensors.

    converted: the ids of the modules that are converted.
    built: the names of the weights that parts will build, by the id of their module; they need no values.
    """
    copies: dict[int, nn.Module] = {}
    made: dict[int, nn.Parameter | None] = {}  # by id of the meta parameter: a tied parameter is made once
    uninitialised: list[str] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, module in model.named_modules():
            other = built.get(id(module), ())
            meta = [key for key, tensor in _direct_tensors(module).items() if tensor.is_meta and key not in other]
            if meta and id(module) not in converted:
                copies[id(module)], unset = _real_copy(name, module, meta, device, made)
                uninitialised += [f"{name}.{key}" if name else key for key in unset]
    if uninitialised:
        raise ValueError(
            f"cannot initialise {', '.join(uninitialised)}: on the meta device, and its module has no "
            "reset_parameters() that sets it; give these tensors real values first, or build the network on a real "
            "device"
        )
    return copies


def take_tensors(model: nn.Module, copies: Mapping[int, nn.Module]) -> None:
    """Give each module of the model the parameters and buffers of its copy; copies are given by module id."""
    for module in model.modules():
        if id(module) in copies:
            module._parameters.update(copies[id(module)]._parameters)
            module._buffers.update(copies[id(module)]._buffers)


def _direct_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a module, without those of its children."""
    return {key: t for key, t in {**module._parameters, **module._buffers}.items() if t is not None}


def _real_copy(
    name: str, module: nn.Module, meta: list[str], device: torch.device, made: dict[int, nn.Parameter | None]
) -> tuple[nn.Module, list[str]]:
    """Return a copy of one module, without children, with real tensors in place of meta ones.

    Also return the names of the new tensors that the module's `reset_parameters()` does not set.
    """
    real = copy.copy(module)
    real._parameters, real._buffers, real._modules = dict(module._parameters), dict(module._buffers), {}
    real.to_empty(device=device, recurse=False)
    with torch.no_grad():
        for tensor in _direct_tensors(real).values():
            tensor.fill_(_marker(tensor))
        try:
            _reset(real)
        except Exception as error:
            raise ValueError(f"cannot initialise {name!r}, which is on the meta device: {error}") from error
    unset = [key for key in meta if bool((_direct_tensors(real)[key] == _marker(_direct_tensors(real)[key])).any())]
    real._parameters.update({key: p for key, p in module._parameters.items() if key not in meta})  # real tensors stay
    real._buffers.update({key: b for key, b in module._buffers.items() if key not in meta})
    for key in set(meta) & module._parameters.keys():
        real._parameters[key] = made.setdefault(id(module._parameters[key]), real._parameters[key])
    return real, unset


def _marker(tensor: torch.Tensor) -> float | int:
    """Return a number that no initialisation gives; where it is still there, the tensor was not initialised."""
    if tensor.is_floating_point() or tensor.is_complex():
        return torch.finfo(tensor.dtype).max
    return False if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max


def _reset(module: nn.Module) -> None:
    if isinstance(module, nn.MultiheadAttention):  # its own reset would also change the output projection, a child
        for parameter in module.parameters(recurse=False):
            nn.init.xavier_uniform_(parameter) if parameter.dim() > 1 else nn.init.zeros_(parameter)
    elif hasattr(module, "reset_parameters"):
        module.reset_parameters()  # type: ignore[operator]
