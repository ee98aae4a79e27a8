"""Hyperplane Projection (Li et al. 2018; the paper's section 3): training in a random subspace of all weights.

    w = d + U theta

w are the D prunable weights of a network, one after the other, and d their initial values. U is a fixed random matrix
(`projections.py`) whose columns, over all D rows together, have length one. Only theta trains; it starts at zero. Li et
al. write theta_0, P and theta^(d) for d, U and theta. Biases, BatchNorm and excluded layers train as usual.

Neither d nor U is part of the state: d is the initialisation of the network, and U follows from the seed.
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

    The model itself is changed: it becomes `network` in the result, and its weights become buffers that do not train.

    dimensions: the number of dimensions of the subspace, from 1 to the number of weights.
    kind: the kind of U, one of PROJECTIONS: dense, sparse, sparse_per_tensor or fastfood.
    seed: the seed that U is drawn from.
    exclude: names (patterns such as "encoder.*") or types of layers that are left out and train as usual.

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
    """Return the layers to project, by name; raise ValueError if a weight has no initial value to start from."""
    if any(isinstance(module, DpsLayer | Subspace) for module in model.modules()):
        raise ValueError("this network is sparse or projected already; project the plain network instead")
    layers = targets(model, exclude)
    for name, layer in layers.items():
        if layer.get_parameter("weight").is_meta:
            raise ValueError(f"layer {name!r} is on the meta device: its weights have no values to start from")
    return layers


def _digest(layers: Mapping[str, nn.Module]) -> str:
    """Return a digest of d: of the names, shapes and values of the weights, whatever their precision and device."""
    digest = hashlib.blake2b(digest_size=16)
    for name, layer in layers.items():
        weight = layer.get_parameter("weight").detach().cpu().double().contiguous().numpy()
        digest.update(f"|{name}|{weight.shape}|".encode())
        digest.update(weight.astype("<f8", copy=False).data)
    return digest.hexdigest()


class Subspace(nn.Module):
    """A network whose weights are d + U theta; `project` makes it.

    theta: the Parameter, one number for each dimension, zero at first.
    network: the network; its weights are buffers that hold d and are not saved.
    projection: the matrix U, which all copies share.
    identity: the description of U and d, as JSON in a buffer of bytes; a state with another one is refused.
    """

    identity: Tensor

    def __init__(
        self, network: nn.Module, layers: Mapping[str, nn.Module], projection: Projection, identity: dict[str, Any]
    ) -> None:
        super().__init__()
        first = next(iter(layers.values())).get_parameter("weight")
        self.projection = projection.to(first.device, projection.dtype)
        self.theta = nn.Parameter(torch.zeros(projection.shape[1], dtype=projection.dtype, device=first.device))
        self.register_buffer("identity", _encode(identity).to(first.device))
        self.names = list(layers)
        for layer in layers.values():
            _make_buffer(layer)
        self.network = network
        self.train(network.training)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch cannot compile sparse matrices
    def weights(self) -> dict[str, Tensor]:
        """Return d + U theta, by the names of the weights in the network; differentiable in theta."""
        origins = [self.network.get_submodule(name).get_buffer("weight") for name in self.names]
        shift = _embed(self.theta.to(self.projection.dtype), self.projection, False)
        parts = shift.split([origin.numel() for origin in origins])
        return {
            f"{name}.weight" if name else "weight": origin + part.view(origin.shape).to(origin)
            for name, origin, part in zip(self.names, origins, parts, strict=True)
        }

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        # A layer used twice is one module, so nothing needs to be tied. If torch tied its two names, it would not
        # restore the buffer afterwards.
        return functional_call(self.network, self.weights(), args, kwargs, tie_weights=False)

    @torch.no_grad()
    def dense_network(self) -> nn.Module:
        """Return a plain copy of the network, with d + U theta as its weights and the same outputs."""
        plain = copy.deepcopy(self.network)
        for name, weight in zip(self.names, self.weights().values(), strict=True):
            _make_trainable(plain.get_submodule(name), weight)
        return plain

    def extra_repr(self) -> str:
        about = _decode(self.identity)
        return f"{about['dimensions']} of {about['weights']} dimensions, kind={about['kind']}, seed={about['seed']}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Subspace":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # U moves with theta, but stays at least float32: half precision is too coarse to add up products.
        self.projection = self.projection.to(self.theta.device, torch.promote_types(self.theta.dtype, torch.float32))
        return self

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        theirs = state_dict.get(f"{prefix}identity")
        if theirs is not None and not torch.equal(theirs.cpu(), self.identity.cpu()):
            raise RuntimeError(_difference(_decode(self.identity), _decode(theirs)))  # before anything is loaded
        super()._load_from_state_dict(state_dict, prefix, *args)


class _Embedding(torch.autograd.Function):
    """The product U x, or U' x if `transposed`. The gradient of each is a product with the other, so only U is kept."""

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


def _make_buffer(layer: nn.Module) -> None:
    """Turn the weight of a layer into a buffer that is not saved."""
    weight = layer.get_parameter("weight").detach()
    del layer._parameters["weight"]
    layer.register_buffer("weight", weight, persistent=False)


def _make_trainable(layer: nn.Module, weight: Tensor) -> None:
    """Replace the buffer of a layer by a Parameter with these values."""
    delattr(layer, "weight")
    others = dict(layer._parameters)
    layer._parameters.clear()  # so that the weight comes first, as in a layer of torch
    layer.register_parameter("weight", nn.Parameter(weight))
    layer._parameters.update(others)


# --- the identity of a subspace --------------------------------------------------------------------------------------


def _encode(identity: dict[str, Any]) -> Tensor:
    return torch.from_numpy(np.frombuffer(json.dumps(identity).encode(), dtype=np.uint8).copy())


def _decode(code: Tensor) -> dict[str, Any]:
    """Return the identity in a buffer; an empty one if the buffer is damaged."""
    try:
        return dict(json.loads(bytes(code.tolist())))
    except (TypeError, ValueError):
        return {}


def _difference(mine: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Return the error message for a state with another identity."""
    keys = [key for key in mine if key != "origin" and mine[key] != theirs.get(key)]
    if keys:
        words = [f"{key} {theirs.get(key)!r} instead of {mine[key]!r}" for key in keys]
        return f"the state belongs to another subspace: {', '.join(words)}"
    return (
        "the state belongs to a network with other initial weights, where the same theta gives other weights; "
        "build the network with the seed that it was built with, then project it"
    )
