"""Making a sparse layer from a plain one or a plain one from a sparse one, and putting it into a network."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dctps.core.support import Support
from dctps.nn.batchnorm import SparseBatchNorm, plain_norm, sparse_norm
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.layers import DpsLinear
from dctps.nn.prunable import LAYERS, paths

M = TypeVar("M", bound=nn.Module)


def make_sparse_layer(
    name: str, layer: nn.Module, support: Support, options: Mapping[str, object], device: torch.device
) -> DpsLayer:
    """Return a sparse layer with the arguments, device, dtype, bias, mode and hooks of a plain one.

    name: the name of the layer, for errors.
    options: further arguments of the sparse layer: offset, alpha, backend ...
    device: where to make the new layer if the plain one is on the meta device.
    """
    weight, bias = layer._parameters["weight"], layer._parameters.get("bias")
    assert weight is not None
    place = device if weight.is_meta else weight.device
    common = {"bias": bias is not None, "device": place, "dtype": weight.dtype, "support": support}
    with errors_name_layer(name):
        new = LAYERS[type(layer)](**_shared_arguments(layer), **common, **options)
    if new.offset is None and not weight.is_meta:
        new.values.data = weight.detach().flatten()[support.positions.to(place).long()].clone()
    if new.bias is not None and new.alpha is not None and new.alpha.item() == 0:
        nn.init.zeros_(
            new.bias
        )  # a layer that starts at zero has no bias either, unless the plain layer has a real one
    return _take_over(new, layer)


def make_plain_layer(layer: DpsLayer) -> nn.Module:
    """Return the layer of torch with the same outputs, and with the bias, mode and hooks of the sparse one."""
    kind = next(torch_type for torch_type, ours in LAYERS.items() if isinstance(layer, ours))
    new: nn.Module = nn.utils.skip_init(
        kind, **_shared_arguments(layer), bias=layer.bias is not None, dtype=layer.values.dtype, device="meta"
    )
    new.weight = nn.Parameter(layer.dense_weight().detach(), requires_grad=layer.values.requires_grad)
    return _take_over(new, layer)


def make_sparse_norm(norm: _BatchNorm, support: Support, device: torch.device) -> SparseBatchNorm:
    """Return a sparse BatchNorm layer with the arguments, statistics, device, dtype, mode and hooks of a plain one."""
    return _copy_mode_and_hooks(sparse_norm(norm, support, device), norm)


def make_plain_norm(norm: SparseBatchNorm) -> _BatchNorm:
    """Return the BatchNorm layer of torch with the outputs, statistics, mode and hooks of a sparse one."""
    return _copy_mode_and_hooks(plain_norm(norm), norm)


def replace_layers(model: nn.Module, new: Mapping[int, nn.Module]) -> nn.Module:
    """Put new layers, given by the id of the layer that each replaces, into every place where the old layer stands.

    Return the model, or the new layer if the model itself is the layer that is replaced.
    """
    for path, old in paths(model, [m for m in model.modules() if id(m) in new]):
        if not path:
            return new[id(old)]
        parent, _, child = path.rpartition(".")
        model.get_submodule(parent)._modules[child] = new[id(old)]
    return model


@contextlib.contextmanager
def errors_name_layer(name: str) -> Iterator[None]:
    """Put the name of a layer in front of every ValueError that is raised inside this context."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"layer {name!r}: {error}") from error


def _shared_arguments(layer: nn.Module) -> dict[str, object]:
    """Return the constructor arguments that plain and sparse layers share, except bias, device and dtype."""
    if isinstance(layer, nn.Linear | DpsLinear):
        return {"in_features": layer.in_features, "out_features": layer.out_features}
    names = ["in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"]
    return {name: getattr(layer, name) for name in names}


def _take_over(new: M, old: nn.Module) -> M:
    """Give the new layer the bias of the old one (the same Parameter object), its mode and its hooks."""
    bias = old._parameters.get("bias")
    if bias is not None and bias.is_meta:
        new.get_parameter("bias").requires_grad_(bias.requires_grad)
    elif bias is not None:
        new.bias = bias
    return _copy_mode_and_hooks(new, old)


def _copy_mode_and_hooks(new: M, old: nn.Module) -> M:
    """Give the new layer the mode and the hooks of the old one.

    Both layers share the dictionaries of hooks, because the handles that remove hooks refer to these.
    """
    for name, value in vars(old).items():
        if name.startswith(("_forward_", "_backward_", "_is_full_backward_hook")):
            setattr(new, name, value)
    return new.train(old.training)
