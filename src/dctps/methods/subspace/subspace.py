"""Hyperplane Projection (Li et al. 2018; the paper's section 3): training in a random subspace of all weights.

    w = d + U theta

w are the D prunable weights of a network, one after the other, d their initial values, U a fixed random matrix with
columns of length one over all D rows together (`projections.py`), and theta, which starts at zero, is all that trains
of them; Li et al. write theta_0, P and theta^(d). Biases, BatchNorm and excluded layers train as ever.

Neither d nor U is part of the state: the first is the network's initialisation, the second follows from the seed.
"""

import copy
import functools
import hashlib
import json
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from dctps.base.registry import lookup
from dctps.methods.subspace.projections import PROJECTIONS, Projection
from dctps.nn.convert import Exclude, targets
from dctps.nn.dps_layer import DpsLayer


def project(
    model: nn.Module, dimensions: int, kind: str = "dense", *, seed: int = 0, exclude: Exclude = ()
) -> "Subspace":
    """Restrict the linear layers and convolutions of `model` to a random subspace through their present weights.

    The network is taken over: it becomes the part `network` of the result, its weights buffers that do not train.

    dimensions: of the subspace, from 1 to the number of weights.
    kind: how U is drawn, one of PROJECTIONS: dense, sparse, sparse_per_tensor or fastfood.
    exclude: names (patterns such as "encoder.*") or types of layers to leave out; they train as ever.

    >>> net = project(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)), dimensions=5)
    >>> {name: tuple(parameter.shape) for name, parameter in net.named_parameters()}
    {'theta': (5,), 'network.0.bias': (4,), 'network.2.bias': (2,)}
    """
    draw = lookup(PROJECTIONS, kind, "projection")
    layers = _projectable(model, exclude)
    weights = [layer.get_parameter("weight") for layer in layers.values()]
    sizes = [weight.numel() for weight in weights]
    dimensions, size = operator.index(dimensions), sum(sizes)
    if not 1 <= dimensions <= size:
        raise ValueError(f"a subspace of {size:,} weights has from 1 to {size:,} dimensions, not {dimensions:,}")
    dtype = functools.reduce(torch.promote_types, [weight.dtype for weight in weights], torch.float32)
    projection = draw(sizes, dimensions, seed, dtype)
    identity = {"kind": kind, "dimensions": dimensions, "seed": seed, "weights": size, "origin": _digest(layers)}
    return Subspace(model, layers, projection, identity)


def _projectable(model: nn.Module, exclude: Exclude) -> dict[str, nn.Module]:
    """The layers to project, by name; ValueError where a weight has no initial value to start from."""
    if any(isinstance(module, DpsLayer | Subspace) for module in model.modules()):
        raise ValueError("this network is sparse or projected already; project the plain network instead")
    layers = targets(model, exclude)
    for name, layer in layers.items():
        if layer.get_parameter("weight").is_meta:
            raise ValueError(f"layer {name!r} is on the meta device: its weights have no values to start from")
    return layers


def _digest(layers: Mapping[str, nn.Module]) -> str:
    """Of d: the names, shapes and values of the weights, whatever their precision and device."""
    digest = hashlib.blake2b(digest_size=16)
    for name, layer in layers.items():
        weight = layer.get_parameter("weight").detach().cpu().double().contiguous().numpy()
        digest.update(f"|{name}|{weight.shape}|".encode())
        digest.update(weight.astype("<f8", copy=False).data)
    return digest.hexdigest()


class Subspace(nn.Module):
    """A network whose weights are d + U theta; made by `project`.

    theta: the Parameter, (d,), zero at first.
    network: the network itself; its weights are buffers that hold d and are not saved.
    projection: U, shared by all copies.
    identity: what U and d are, as JSON in a buffer of bytes, so that every file of the state can be checked.
    """

    identity: Tensor

    def __init__(
        self, network: nn.Module, layers: Mapping[str, nn.Module], projection: Projection, identity: dict[str, Any]
    ) -> None:
        super().__init__()
        first = next(iter(layers.values())).get_parameter("weight")
        self.projection = projection.to(first.device, projection.dtype)
        self.theta = nn.Parameter(torch.zeros(projection.shape[1], dtype=projection.dtype, device=first.device))
        self.register_buffer("identity", _encoded(identity).to(first.device))
        self.names = list(layers)
        for layer in layers.values():
            _freeze(layer)
        self.network = network
        self.train(network.training)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch cannot compile sparse matrices
    def weights(self) -> dict[str, Tensor]:
        """d + U theta, by the names that the weights have in the network; differentiable in theta."""
        origins = [self.network.get_submodule(name).get_buffer("weight") for name in self.names]
        shift = _embed(self.theta.to(self.projection.dtype), self.projection, False)
        parts = shift.split([origin.numel() for origin in origins])
        return {
            f"{name}.weight" if name else "weight": origin + part.view(origin.shape).to(origin)
            for name, origin, part in zip(self.names, origins, parts, strict=True)
        }

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        # a layer used twice is one layer already; told to tie its two names, torch would not restore its buffer
        return functional_call(self.network, self.weights(), args, kwargs, tie_weights=False)

    @torch.no_grad()
    def dense_network(self) -> nn.Module:
        """A copy of the network as a plain one, with d + U theta as its weights; the same outputs."""
        plain = copy.deepcopy(self.network)
        for name, weight in zip(self.names, self.weights().values(), strict=True):
            _thaw(plain.get_submodule(name), weight)
        return plain

    def extra_repr(self) -> str:
        own = _decoded(self.identity)
        return f"{own['dimensions']} of {own['weights']} dimensions, kind={own['kind']}, seed={own['seed']}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Subspace":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # U goes where theta goes; half precision is for storing, not for adding up
        self.projection = self.projection.to(self.theta.device, torch.promote_types(self.theta.dtype, torch.float32))
        return self

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        theirs = state_dict.get(f"{prefix}identity")
        if theirs is not None and not torch.equal(theirs.cpu(), self.identity.cpu()):
            raise RuntimeError(_difference(_decoded(self.identity), _decoded(theirs)))  # before anything is loaded
        super()._load_from_state_dict(state_dict, prefix, *args)


class _Embedding(torch.autograd.Function):
    """U x, or U' x if `transposed`; each is the derivative of the other, and nothing is kept for it but U."""

    @staticmethod
    def forward(x: Tensor, projection: Projection, transposed: bool) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return projection.adjoint(x) if transposed else projection.apply(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Projection, bool], output: Tensor) -> None:
        _, ctx.projection, ctx.transposed = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _embed(grad, ctx.projection, not ctx.transposed), None, None


_embed: Callable[[Tensor, Projection, bool], Tensor] = _Embedding.apply


# --- weights that do not train ---------------------------------------------------------------------------------------


def _freeze(layer: nn.Module) -> None:
    weight = layer.get_parameter("weight").detach()
    del layer._parameters["weight"]
    layer.register_buffer("weight", weight, persistent=False)


def _thaw(layer: nn.Module, weight: Tensor) -> None:
    delattr(layer, "weight")
    others = dict(layer._parameters)
    layer._parameters.clear()  # the weight comes first, as in a layer of torch
    layer.register_parameter("weight", nn.Parameter(weight))
    layer._parameters.update(others)


# --- what a state belongs to -----------------------------------------------------------------------------------------


def _encoded(identity: dict[str, Any]) -> Tensor:
    return torch.from_numpy(np.frombuffer(json.dumps(identity).encode(), dtype=np.uint8).copy())


def _decoded(code: Tensor) -> dict[str, Any]:
    try:
        return dict(json.loads(bytes(code.tolist())))
    except (TypeError, ValueError):
        return {}


def _difference(mine: dict[str, Any], theirs: dict[str, Any]) -> str:
    keys = [key for key in mine if key != "origin" and mine[key] != theirs.get(key)]
    if keys:
        words = [f"{key} {theirs.get(key)!r} instead of {mine[key]!r}" for key in keys]
        return f"the state belongs to another subspace: {', '.join(words)}"
    return (
        "the state belongs to a network with other initial weights, from which its theta would lead elsewhere; "
        "build the network with the seed it was built with, then project it"
    )
