"""What `sparsify` asks of a network that other code has made, and what it leaves for that code to see."""

import contextlib
import importlib
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dctps.base.words import listed

MARK = "dctps"  # in the configuration of a network of transformers


def check_network(model: object, call: str, other: object = None) -> None:
    """Raise TypeError unless `model` is a network; say so if the other argument of this call is one."""
    if not isinstance(model, nn.Module):
        swapped = "; the arguments are swapped" if isinstance(other, nn.Module) else ""
        raise TypeError(f"{call} takes a network of torch as its model, not {_shown(model)}{swapped}")


def check_device(device: torch.device | str | None) -> None:
    """Raise ValueError if a sparse network cannot be on this device."""
    if device is not None and torch.device(device).type == "meta":
        raise ValueError("device='meta' holds no numbers; a network may come from there, but a sparse one is real")


def _shown(argument: object) -> str:
    return repr(argument) if isinstance(argument, str | int | float) else f"a {type(argument).__name__}"


def check_adapters(model: nn.Module, layers: Mapping[str, nn.Module]) -> None:
    """Raise ValueError if some of the layers belong to an adapter of peft, whose output must be zero at first."""
    inside = {id(m) for adapter in model.modules() if _is_adapter(adapter) for m in adapter.modules()}
    found = [name for name, layer in layers.items() if id(layer) in inside]
    if found:
        raise ValueError(
            f"{listed(found)} belong to adapters of peft, which must start at zero, and W = alpha D + S does not; "
            "merge them first (model.merge_and_unload()), leave them dense (exclude='*lora_*'), or convert them on "
            "purpose (adapters=True)"
        )


def _is_adapter(module: nn.Module) -> bool:
    """Return whether this is a layer of peft that wraps a layer of the network."""
    return type(module).__module__.partition(".")[0] == "peft" and "base_layer" in module._modules


def warn_of_loss(model: nn.Module, layers: Mapping[str, nn.Module], stacklevel: int) -> None:
    """Warn that the weights of these layers are replaced, if something tells that the network has been trained."""
    evidence = _evidence(model, layers) if layers else None
    if evidence:
        warnings.warn(
            f"this network was trained ({evidence}); sparsify replaces the weights of {len(layers)} layers by alpha D, "
            "and what they had learnt is lost; offset=None keeps the weights at the support",
            stacklevel=stacklevel + 1,
        )


def _evidence(model: nn.Module, layers: Mapping[str, nn.Module]) -> str | None:
    """Return how one can tell that a network has been trained, or None where nothing tells."""
    name = getattr(_config(model), "_name_or_path", None)
    if isinstance(name, str) and name:  # transformers' from_pretrained sets it
        return f"it comes from {name!r}"
    if any(p.grad is not None for layer in layers.values() for p in layer.parameters(recurse=False)):
        return "its weights have gradients"
    norms = [m.num_batches_tracked for m in model.modules() if isinstance(m, _BatchNorm)]
    if any(seen is not None and not seen.is_meta and int(seen) > 0 for seen in norms):
        return "its BatchNorm layers have seen data"
    return None


def mark_config(model: nn.Module, sparse: bool = True) -> None:
    """Tell transformers' `from_pretrained` that a network is sparse (`pretrained.py`), or that it no longer is."""
    for config in {id(c): c for c in map(_config, model.modules()) if c is not None}.values():
        if sparse:
            config.quantization_config = {"quant_method": MARK}
            with contextlib.suppress(ImportError):  # an older version of transformers
                importlib.import_module("dctps.nn.pretrained")
        elif getattr(config, "quantization_config", None) == {"quant_method": MARK}:
            del config.quantization_config


def _config(module: nn.Module) -> Any:
    """Return the configuration that a network of transformers has, or None."""
    config = vars(module).get("config")
    return config if type(config).__module__.partition(".")[0] == "transformers" else None
