"""Iterative magnitude pruning (Frankle & Carbin 2019, "lottery tickets"): train, prune, rewind, over and over.

In each round the network trains from its initial values on the weights that are left (all of them at first), then the
smallest of these in magnitude, over all layers together, are given up. The supports that remain in the end, with the
initial values, are the ticket.

    by fraction   K_r = floor(N (1 - f)^r + 1/2): a fraction f of what is left goes in each round
    by rounds     K_r = floor(N P^(r/R) + 1/2): R rounds, each giving up the same fraction

Either ends with exactly K = max(1, floor(P N + 1/2)); rounds that would give up nothing are left out.
"""

import copy
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dctps.core.allocation import budget
from dctps.core.ranking import largest
from dctps.core.support import Support, derive_seed
from dctps.nn.convert import Exclude, sparsify, targets
from dctps.nn.dps_layer import DpsLayer
from dctps.ops.functional import AUTO, check_backend

Train = Callable[..., object]
Supports = dict[str, Support]


def imp(
    model: nn.Module,
    train: Train,
    density: float,
    *,
    rounds: int | None = None,
    fraction: float = 0.2,
    rewind: int = 0,
    supports: Mapping[str, Support] | None = None,
    on_round: Callable[[Supports], object] = lambda supports: None,
    seed: int = 0,
    exclude: Exclude = (),
    backend: str = AUTO,
) -> Supports:
    """The supports of a lottery ticket; `sparsify(model, supports=..., offset=None)` is the ticket, ready to train.

    The model is the one dense copy that every round rewinds to, parameters and buffers. It is only read, unless it is
    first trained up to the step to rewind to.

    train: a function that trains the network it is given in place, from beginning to end, with an optimiser of its
        own. In the first round the network is dense, a copy of the model; after that its layers are sparse.
    fraction: the fraction of the weights left that is given up in each round.
    rounds: the number of rounds, in place of a fraction.
    rewind: late rewinding, to step k instead of the initialisation: `train(model, start=0, stop=k)` is called once, and
        `train(network, start=k)` in each round. To go on with `supports` pass the model as it was at step k, and a
        `train` that begins there.
    supports: the supports after an earlier round of the same schedule, to go on from there.
    on_round: called with the supports after each round, so that they can be saved.
    seed: decides between equal magnitudes.

    >>> net = nn.Linear(4, 2, bias=False)
    >>> nn.init.constant_(net.weight, 1.0).shape
    torch.Size([2, 4])
    >>> imp(net, lambda network: network.weight.data.mul_(torch.arange(8).view(2, 4)), 0.25, rounds=1)
    {'': Support(shape=(2, 4), nnz=2, density=0.25)}
    """
    check_backend(backend)
    shapes = _shapes(model, exclude)
    size = sum(map(math.prod, shapes.values()))
    counts = schedule(size, density, rounds, fraction)
    left = size if supports is None else _check_supports(supports, shapes, counts)
    train = _late(train, model, rewind, supports) if rewind else train
    for count in (count for count in counts if count < left):
        network = ticket(model, supports, backend)
        _run(train, network, supports or {}, f"round {counts.index(count) + 1}")
        supports = survivors(network, list(shapes), count, derive_seed(seed, f"imp/{count}"))
        on_round(dict(supports))
    return dict(supports or {name: _full(shape) for name, shape in shapes.items()})


def _late(train: Train, model: nn.Module, rewind: int, supports: Mapping[str, Support] | None) -> Train:
    """Train the model up to the step to rewind to; returns a `train` that begins there."""
    if operator.index(rewind) < 0:
        raise ValueError(f"rewind must not be negative: {rewind}")
    if supports is not None:
        raise ValueError("rewind= is for a start; to go on pass the model of that step, and a train that begins there")
    _run(functools.partial(train, start=0, stop=rewind), model, {}, f"the first {rewind} steps")
    return functools.partial(train, start=rewind)


def schedule(size: int, density: float, rounds: int | None = None, fraction: float = 0.2) -> list[int]:
    """How many of `size` weights are left after each round.

    >>> schedule(1000, 0.3)
    [800, 640, 512, 410, 328, 300]
    >>> schedule(1000, 0.3, rounds=3)
    [669, 448, 300]
    """
    keep = budget(size, density)
    if rounds is not None and operator.index(rounds) < 1:
        raise ValueError(f"there is at least one round, not {rounds}; leave rounds out to give up a fraction in each")
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must be between 0 and 1, not {fraction}; 0.2 gives up a fifth in each round")
    if rounds is None:
        rounds = math.ceil(math.log(density) / math.log(1 - fraction))
        factors = [(1 - fraction) ** r for r in range(1, rounds)]
    else:
        factors = [density ** (r / rounds) for r in range(1, rounds)]
    between = {max(keep, math.floor(size * factor + 0.5)) for factor in factors}
    return sorted((between | {keep}) - {size}, reverse=True)


def ticket(model: nn.Module, supports: Mapping[str, Support] | None, backend: str = AUTO) -> nn.Module:
    """A copy of the model that is sparse at the supports, with the model's values; without supports a plain copy."""
    if supports is None:
        return copy.deepcopy(model)
    weights = [model.get_submodule(name).get_parameter("weight") for name in supports]
    light = copy.deepcopy(model, {id(weight): weight for weight in weights})  # shares the weights, which are not copied
    return sparsify(light, supports=supports, offset=None, backend=backend)


def survivors(network: nn.Module, names: Sequence[str], count: int, seed: int) -> Supports:
    """The supports of the `count` weights of largest magnitude in all these layers together, dense or sparse."""
    layers = [network.get_submodule(name) for name in names]
    magnitudes = [_magnitudes(name, layer) for name, layer in zip(names, layers, strict=True)]
    everything = torch.cat(magnitudes)
    chosen = torch.zeros(len(everything), dtype=torch.bool, device="cpu")
    chosen[torch.from_numpy(largest(everything.numpy(), count, seed))] = True
    parts = chosen.split([len(part) for part in magnitudes])
    return {name: _kept(layer, part) for name, layer, part in zip(names, layers, parts, strict=True)}


def _magnitudes(name: str, layer: nn.Module) -> Tensor:  # (active weights,) on the CPU
    weight = (layer.values if isinstance(layer, DpsLayer) else layer.get_parameter("weight")).detach()
    if not bool(weight.isfinite().all()):
        raise ValueError(f"layer {name!r} has weights that are not finite after training: there is no largest of them")
    return weight.abs().flatten().to("cpu", torch.promote_types(weight.dtype, torch.float32))


def _kept(layer: nn.Module, chosen: Tensor) -> Support:
    if isinstance(layer, DpsLayer):
        return Support(layer.geometry.weight_shape, layer.positions.cpu()[chosen])
    return Support.from_mask(chosen.view(layer.get_parameter("weight").shape))


# --- checks ----------------------------------------------------------------------------------------------------------


def _shapes(model: nn.Module, exclude: Exclude) -> dict[str, tuple[int, ...]]:
    if any(isinstance(module, DpsLayer) for module in model.modules()):
        raise ValueError("this network is sparse already; lottery tickets are found from the dense one")
    weights = {name: layer.get_parameter("weight") for name, layer in targets(model, exclude).items()}
    for name, weight in weights.items():
        if weight.is_meta:
            raise ValueError(f"layer {name!r} is on the meta device: there are no values to rewind to")
    return {name: tuple(weight.shape) for name, weight in weights.items()}


def _check_supports(supports: Mapping[str, Support], shapes: Mapping[str, tuple[int, ...]], counts: list[int]) -> int:
    """The number of weights in supports to go on from; ValueError if they are not the supports after a round."""
    found = {name: support.shape for name, support in supports.items()}
    if found != dict(shapes):
        raise ValueError(f"the supports are of layers {found}, but those of the network are {dict(shapes)}")
    nnz = sum(support.nnz for support in supports.values())
    if nnz not in (*counts, sum(map(math.prod, shapes.values()))):
        raise ValueError(
            f"the supports hold {nnz:,} weights, which no round leaves; this schedule leaves "
            f"{', '.join(f'{count:,}' for count in counts)}"
        )
    return nnz


def _full(shape: tuple[int, ...]) -> Support:
    return Support(shape, torch.arange(math.prod(shape), device="cpu"))


def _run(train: Train, network: nn.Module, supports: Mapping[str, Support], where: str) -> None:
    """Train a network; ValueError if more than its numbers has changed."""
    before = _structure(network)
    returned = train(network)
    if isinstance(returned, nn.Module) and returned is not network:
        raise ValueError(f"{where}: train returned another network; it must train the one it is given, in place")
    after = _structure(network)
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    if changed:
        raise ValueError(f"{where}: train changed more than the numbers of the network: {', '.join(changed)}")
    moved = [name for name, support in supports.items() if network.get_submodule(name).support != support]
    if moved:
        raise ValueError(f"{where}: train moved the supports of {', '.join(moved)}; they stay fixed in a round")


def _structure(network: nn.Module) -> dict[str, Any]:
    """The types of all modules and the shapes of all tensors of the state."""
    types = {name or "(the network)": type(module) for name, module in network.named_modules()}
    return types | {key: tuple(getattr(entry, "shape", ())) for key, entry in network.state_dict().items()}
