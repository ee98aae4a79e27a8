"""How many trainable weights each layer gets (paper: sections 2 and 4, appendix "Layer-wise Parameter Allocation").

For layers of sizes n_l (N in all) and a density P, the exact rules place K = max(1, floor(P N + 1/2)) weights, no
more and no fewer: x_l = min(n_l, lambda w_l) with sum x_l = K (water-filling over weights w_l that name the rule),
rounded to integers by largest remainders, ties to the earlier layer. All of it in integers: no float can tip a count.

    uniform  w_l = n_l                 equal density
    epl      w_l = 1                   equal per layer (the paper's default)
    epf      w_l = filters of l        equal per filter, counted per layer
    erk      w_l = sum of l's shape    Erdos-Renyi kernel (Evci et al. 2020)
    er       w_l = (in + out) * taps   Erdos-Renyi (Mocanu et al. 2018), for each kernel position: equal per unit
    sqrt     w_l = sqrt(n_l)           halfway between uniform and epl: the least sum of 1 / density over the layers

`epf_strict` also gives every single filter its equal share. The `*_paper` rules repeat the published code, with the
weights it loses to rounding and capping; `*_paper_rigl` are the same rules as its RigL runs round them, and
`erk_google` is the ERK of the RigL authors.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dctps.base.registry import lookup
from dctps.core.support import Int64, Support, derive_seed, sample

Shape = Sequence[int]
Rule = Callable[[Sequence[Shape], float, int], list[int]]  # shapes, density, seed -> a count per layer


def allocate(shapes: Sequence[Shape], density: float, rule: str = "epl", seed: int = 0) -> list[int]:
    """The number of weights per layer under `rule`; only `epf_strict` draws lots, from `seed`.

    >>> allocate([(4, 3), (10, 10), (2, 10)], density=0.25, rule="epl")
    [11, 11, 11]
    """
    counts = lookup(ALLOCATIONS, rule, "allocation")
    _check_shapes(shapes)
    check_density(density)
    result = counts(shapes, density, seed)
    if sum(result) == 0:
        raise ValueError(
            f"density {density} with {rule} keeps none of the {sum(map(math.prod, shapes))} weights "
            f"(it rounds every layer down); use a larger density or an exact rule such as 'epl'"
        )
    return result


def draw_supports(shapes: Mapping[str, Shape], density: float, rule: str, seed: int) -> dict[str, Support]:
    """Counts by `rule`, places uniformly at random in each layer, from a seed of the layer's own."""
    sizes = list(shapes.values())
    counts = allocate(sizes, density, rule, seed)
    if rule == "epf_strict":
        per_filter = strict_filter_counts(sizes, density, seed)
        return {
            n: _per_filter(s, c, derive_seed(seed, n)) for (n, s), c in zip(shapes.items(), per_filter, strict=True)
        }
    return {
        name: Support.sample(shape, count, derive_seed(seed, name))
        for (name, shape), count in zip(shapes.items(), counts, strict=True)
    }


def check_density(density: float) -> None:
    if not 0 < density <= 1:  # also false for NaN
        raise ValueError(f"density must be in (0, 1], not {density}; 0.01 keeps one weight in a hundred")


def check_at_least_one(size: int, density: float, what: str = "weights") -> None:
    """ValueError where a density of `size` weights is less than one of them.

    `budget` would make it one weight, which nobody asks for on purpose.
    """
    if density * size < 0.5:
        raise ValueError(f"density {density} of {size:,} {what} is less than one; at least {1 / size:.2g} keeps one")


def budget(size: int, density: float) -> int:
    """K = max(1, floor(P N + 1/2))."""
    check_density(density)
    return max(1, math.floor(density * size + 0.5))


def _check_shapes(shapes: Sequence[Shape]) -> None:
    if not shapes:
        raise ValueError("there is no layer to allocate weights to")
    for index, shape in enumerate(shapes):
        if math.prod(shape) < 1:
            raise ValueError(f"layer {index} has a weight of shape {tuple(shape)}: no place for any; leave it out")


# --- exact rules ----------------------------------------------------------------------------------------------------


def apportion(total: int, weights: Sequence[int], capacities: Sequence[int]) -> list[int]:
    """`total` in shares proportional to `weights`, none above its capacity: water-filling, largest remainders."""
    counts, open_ = list(capacities), list(range(len(weights)))
    left = total
    while open_:
        weight = sum(weights[i] for i in open_)
        full = [i for i in open_ if left * weights[i] >= capacities[i] * weight]
        if not full:
            break
        left -= sum(capacities[i] for i in full)
        open_ = [i for i in open_ if i not in full]
    for i in open_:
        counts[i] = left * weights[i] // weight
    spare = left - sum(counts[i] for i in open_)
    for i in sorted(open_, key=lambda i: -(left * weights[i] % weight))[:spare]:
        counts[i] += 1
    return counts


def _exact(weigh: Callable[[Shape], int]) -> Rule:
    def rule(shapes: Sequence[Shape], density: float, seed: int) -> list[int]:
        sizes = [math.prod(shape) for shape in shapes]
        return apportion(budget(sum(sizes), density), [weigh(shape) for shape in shapes], sizes)

    return rule


def _units(shape: Shape) -> int:
    """(in + out) * taps: every unit of a layer's input and output has as many connections, at each kernel position."""
    return sum(shape[:2]) * math.prod(shape[2:])


def _root(shape: Shape) -> int:
    """sqrt(n_l), in units of 2^-32: of all counts k_l with a given sum, these have the least sum of n_l / k_l.

    (By Lagrange n_l / k_l^2 is then the same for all layers.) `uniform` has the least maximum of these 1 / densities,
    at the price of few weights in small layers; `epl` the least sum of 1 / k_l, at the price of thin large layers.
    """
    return math.isqrt(math.prod(shape) << 64)


# --- equal per filter, strictly --------------------------------------------------------------------------------------


def strict_filter_counts(shapes: Sequence[Shape], density: float, seed: int) -> list[Int64]:
    """Weights per filter and layer: floor(m) or floor(m) + 1 in every filter, m the equal share, capped at its size.

    Which filters get the one more is a uniform draw from `seed` among those that have room.
    """
    fan_in = np.repeat([math.prod(shape[1:]) for shape in shapes], [shape[0] for shape in shapes])
    total = budget(int(fan_in.sum()), density)
    level = _water_level(fan_in, total)
    counts = np.minimum(fan_in, level)
    roomy = np.flatnonzero(fan_in > level)
    counts[roomy[sample(max(1, len(roomy)), total - int(counts.sum()), seed)]] += 1
    return np.split(counts, np.cumsum([shape[0] for shape in shapes])[:-1])


def _water_level(capacities: Int64, total: int) -> int:
    """The largest integer level with sum min(capacity, level) <= total, by bisection."""
    low, high = 0, int(capacities.max())
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if int(np.minimum(capacities, middle).sum()) <= total else (low, middle - 1)
    return low


def _per_filter(shape: Shape, counts: Int64, seed: int) -> Support:
    """A support with counts[f] random places in filter f."""
    import torch

    fan_in = math.prod(shape[1:])
    rows = [f * fan_in + sample(fan_in, int(c), derive_seed(seed, str(f))) for f, c in enumerate(counts) if c]
    return Support(tuple(shape), torch.from_numpy(np.concatenate([np.empty(0, dtype=np.int64), *rows])))


def _epf_strict(shapes: Sequence[Shape], density: float, seed: int) -> list[int]:
    return [int(counts.sum()) for counts in strict_filter_counts(shapes, density, seed)]


# --- the published code ----------------------------------------------------------------------------------------------


def _floor(density: float, size: int) -> int:
    return int(density * size)


def _ceil(density: float, size: int) -> int:
    return size - math.floor((1 - density) * size)


def _published(densities: Callable[[Sequence[Shape], float], list[float]], round_: Callable[[float, int], int]) -> Rule:
    def rule(shapes: Sequence[Shape], density: float, seed: int) -> list[int]:
        pairs = zip(densities(shapes, density), shapes, strict=True)
        return [round_(layer_density, math.prod(shape)) for layer_density, shape in pairs]

    return rule


def _uniform_densities(shapes: Sequence[Shape], density: float) -> list[float]:
    return [density] * len(shapes)


def _epl_densities(shapes: Sequence[Shape], density: float) -> list[float]:
    """What small layers cannot take goes to the last layer, and what the last cannot take is lost."""
    sizes = [math.prod(shape) for shape in shapes]
    target = density * sum(sizes)
    shares = [min(float(size), target / len(sizes)) for size in sizes]
    shares[-1] += target - sum(shares)
    return [min(share / size, 1.0) for share, size in zip(shares, sizes, strict=True)]


def _epf_densities(shapes: Sequence[Shape], density: float) -> list[float]:
    per_filter = density * sum(map(math.prod, shapes)) / sum(shape[0] for shape in shapes)
    return [min(1.0, per_filter * shape[0] / math.prod(shape)) for shape in shapes]


def _erk_densities(shapes: Sequence[Shape], density: float) -> list[float]:
    """Capped once, not re-normalised: the excess of full layers is lost."""
    epsilon = density * sum(map(math.prod, shapes)) / sum(map(sum, shapes))
    return [min(1.0, epsilon * sum(shape) / math.prod(shape)) for shape in shapes]


def _erk_google(shapes: Sequence[Shape], density: float, seed: int) -> list[int]:
    """Layers whose share exceeds them are made dense one density at a time; the rest is rounded up per layer."""
    sizes = [math.prod(shape) for shape in shapes]
    raw = [sum(shape) / size for shape, size in zip(shapes, sizes, strict=True)]
    total, dense = sum(_ceil(density, size) for size in sizes), set[int]()
    while True:
        rest = [i for i in range(len(sizes)) if i not in dense]
        if not rest:
            return sizes
        epsilon = (total - sum(sizes[i] for i in dense)) / sum(raw[i] * sizes[i] for i in rest)
        highest = max(raw[i] for i in rest)
        if epsilon * highest <= 1:
            return [n if i in dense else _ceil(epsilon * raw[i], n) for i, n in enumerate(sizes)]
        dense |= {i for i in rest if raw[i] == highest}


ALLOCATIONS: dict[str, Rule] = {
    "uniform": _exact(math.prod),
    "epl": _exact(lambda shape: 1),
    "epf": _exact(lambda shape: shape[0]),
    "erk": _exact(sum),
    "er": _exact(_units),
    "sqrt": _exact(_root),
    "epf_strict": _epf_strict,
    "uniform_paper": _published(_uniform_densities, _floor),
    "epl_paper": _published(_epl_densities, _floor),
    "epf_paper": _published(_epf_densities, _floor),
    "erk_paper": _published(_erk_densities, _floor),
    "epl_paper_rigl": _published(_epl_densities, _ceil),
    "erk_paper_rigl": _published(_erk_densities, _ceil),
    "erk_google": _erk_google,
}
