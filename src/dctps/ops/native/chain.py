"""Steps of chains: layers, with what follows them, and max-pools that the kernels compute in one call.

A chain computes on the tensors of a run, which are numbered. Each step knows the numbers, shapes and strides of the
tensors that it reads and writes. It reads the weights of its layer anew in each run.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack  # type: ignore[attr-defined]

from dctps.ops.native import kernels
from dctps.ops.native.routes import FilterRoute, SparseRoute, StagedRoute, compiled_support, full_support
from dctps.ops.normalise import ACTIVATIONS
from dctps.ops.offset_torch import stored_weight
from dctps.ops.route import Route


class Placed(NamedTuple):
    """A tensor of a run."""

    number: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Behind(NamedTuple):
    """What follows a layer: a BatchNorm in evaluation, if any, an addition and an activation."""

    norm: tuple[Tensor | None, ...]  # weight, bias, mean and variance, (channels,) each; or nothing
    eps: float
    residual: int  # the number of the tensor that is added, with the strides of the output; or -1
    activation: str  # a key of `normalise.ACTIVATIONS`


def can_chain(route: Route) -> bool:
    """Return whether a layer that takes this route can be a step."""
    plain = isinstance(route, SparseRoute) and route.product is None
    return plain or isinstance(route, StagedRoute) or type(route) is FilterRoute


def layer_step(
    route: Route,
    x: Placed,
    y: Placed,
    layer: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
    fingerprint: Tensor,
    behind: Behind,
    threads: int,
) -> Any:
    """Return a step that computes a layer.

    layer: values, positions, alpha and bias. The kernels keep them and see when their numbers change.
    fingerprint: that of the positions. Where it or they change, a run computes nothing.
    """
    assert isinstance(route, SparseRoute | StagedRoute | FilterRoute)
    values, positions, alpha, bias = layer
    base = None
    if dense := isinstance(route, FilterRoute):
        base = stored_weight(route.offset, values.dtype, values.device).reshape(-1)
    places = positions.long().contiguous().numpy() if dense else np.empty(0, np.int64)
    support = full_support(route.geometry) if dense else compiled_support(positions, route.geometry)
    offset = route.compiled(values.dtype) if isinstance(route, StagedRoute) else None
    watched = [to_dlpack(positions), to_dlpack(fingerprint.view(-1))]
    weights = to_dlpack(values), _array(alpha if dense or offset is not None else None), _array(base), places, watched
    norm = [_array(t) for t in behind.norm]
    after = _array(bias), norm, behind.eps, behind.residual, ACTIVATIONS[behind.activation]
    make = typed(values.dtype).LayerStep
    return make(route.geometry.pack(), x, y, offset, support, *weights, *after, threads)


def pool_step(dtype: torch.dtype, x: Placed, y: Placed, kernel: int, stride: int) -> Any:
    """Return a step that computes the maxima of square windows, which lie inside of the input."""
    return typed(dtype).PoolStep(x, y, kernel, stride)


def chain(dtype: torch.dtype, steps: list[Any]) -> Any:
    """Return a chain; `run(addresses, threads)` computes it, given the addresses of the tensors by their numbers.

    It returns False, and computes nothing, where a support has changed.
    """
    return typed(dtype).Chain(steps)


def typed(dtype: torch.dtype) -> Any:
    """Return the module of the kernels for a type."""
    return kernels.float32 if dtype == torch.float32 else kernels.float64


def _array(tensor: Tensor | None) -> Any:
    return None if tensor is None else to_dlpack(tensor)
