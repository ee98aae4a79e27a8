"""Allocations: how many trainable weights each layer gets.

The paper describes them in sections 2 and 4 and in its appendix "Layer-wise Parameter Allocation". Layer l has n_l
weights, all layers together have N, and P is the density. The exact rules place K = max(1, floor(P N + 1/2)) weights,
no more and no fewer. Layer l gets x_l = min(n_l, lambda w_l), where lambda makes the sum of the x_l equal to K
(water-filling). The proportions w_l distinguish the rules. Largest remainders round the x_l to integers, and ties go
to the earlier layer. All of this is done in integers, so that no rounding error of a float can change a count.

    uniform  w_l = n_l                 equal density
    epl      w_l = 1                   equal per layer (the paper's default)
    epf      w_l = filters of l        equal per filter on average over the layer
    erk      w_l = sum of l's shape    Erdos-Renyi kernel (Evci et al. 2020)
    er       w_l = (in + out) * taps   Erdos-Renyi (Mocanu et al. 2018), for each kernel position: equal per unit
    sqrt     w_l = sqrt(n_l)           halfway between uniform and epl: the least sum of 1 / density over the layers

`epf_strict` also gives every single filter its equal share. The `*_paper` rules repeat the published code, including
the weights that it loses to rounding and capping. The `*_paper_rigl` rules round as the published RigL runs do.
`erk_google` is the ERK of the RigL authors.
"""

import math
import numbers
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dctps.base.registry import lookup
from dctps.core.published_allocation import (
    Rule,
    Shape,
    dropped_rounded_down,
    epf_densities,
    epl_densities,
    erk_densities,
    erk_google,
    published_rule,
    rounded_down,
    uniform_densities,
)
from dctps.core.support import Int64, Support, derive_seed, sample


def allocate(shapes: Sequence[Shape], density: float, rule: str = "epl", seed: int = 0) -> list[int]:
    """Return the number of weights of each layer under `rule`; only `epf_strict` is random and uses `seed`.

    >>> allocate([(4, 3), (10, 10), (2, 10)], density=0.25, rule="epl")
    [11, 11, 11]
    """
    counts = lookup(ALLOCATIONS, rule, "allocation")
    _check_shapes(shapes)
    check_density(density)
    result = counts(shapes, density, seed)
    if sum(result) == 0:
        raise ValueError(
            f"density {density} with the allocation {rule!r} keeps none of the {sum(map(math.prod, shapes))} weights, "
            f"because this rule rounds every layer down; use a larger density or an exact rule such as 'epl'"
        )
    return result


def draw_supports(shapes: Mapping[str, Shape], density: float, rule: str, seed: int) -> dict[str, Support]:
    """Return random supports by layer name: `rule` gives the counts, and each layer draws from a seed of its own."""
    sizes = list(shapes.values())
    counts = allocate(sizes, density, rule, seed)
    if rule == "epf_strict":
        per_filter = strict_filter_counts(sizes, density, seed)
        return {
            name: _sample_per_filter(shape, filter_counts, derive_seed(seed, name))
            for (name, shape), filter_counts in zip(shapes.items(), per_filter, strict=True)
        }
    return {
        name: Support.sample(shape, count, derive_seed(seed, name))
        for (name, shape), count in zip(shapes.items(), counts, strict=True)
    }


def check_density(density: float) -> None:
    """Raise ValueError unless the density is in (0, 1], and TypeError unless it is a number."""
    if isinstance(density, bool) or not isinstance(density, numbers.Real):
        raise TypeError(f"density is a number such as 0.01, not {density!r}")
    if not 0 < density <= 1:  # also false for NaN
        raise ValueError(f"density must be in (0, 1], not {density}; 0.01 keeps one weight in a hundred")


def check_at_least_one(size: int, density: float, what: str = "weights") -> None:
    """Raise ValueError where this density keeps less than one of `size` weights (`budget` would round it up to one)."""
    if density * size < 0.5:
        raise ValueError(f"density {density} of {size:,} {what} is less than one; at least {1 / size:.2g} keeps one")


def budget(size: int, density: float) -> int:
    """Return K = max(1, floor(P N + 1/2)), the number of weights that density P keeps of N = `size` weights."""
    check_density(density)
    return max(1, math.floor(density * size + 0.5))


def _check_shapes(shapes: Sequence[Shape]) -> None:
    if not shapes:
        raise ValueError("there is no layer to allocate weights to")
    for index, shape in enumerate(shapes):
        if math.prod(shape) < 1:
            raise ValueError(
                f"layer {index} has a weight of shape {tuple(shape)}, which has no place for a trainable value; "
                f"leave it out"
            )


# --- exact rules ----------------------------------------------------------------------------------------------------


def apportion(total: int, proportions: Sequence[int], capacities: Sequence[int]) -> list[int]:
    """Divide `total` into shares with these proportions, none above its capacity (top of this file)."""
    counts, open_ = list(capacities), list(range(len(proportions)))
    left = total
    while open_:
        whole = sum(proportions[i] for i in open_)
        full = [i for i in open_ if left * proportions[i] >= capacities[i] * whole]
        if not full:
            break
        left -= sum(capacities[i] for i in full)
        open_ = [i for i in open_ if i not in full]
    for i in open_:
        counts[i] = left * proportions[i] // whole
    spare = left - sum(counts[i] for i in open_)
    for i in sorted(open_, key=lambda i: -(left * proportions[i] % whole))[:spare]:
        counts[i] += 1
    return counts


def _exact(proportion: Callable[[Shape], int]) -> Rule:
    """Return the exact rule in which a layer has the proportion w_l = proportion(shape of its weight)."""

    def rule(shapes: Sequence[Shape], density: float, seed: int) -> list[int]:
        sizes = [math.prod(shape) for shape in shapes]
        return apportion(budget(sum(sizes), density), [proportion(shape) for shape in shapes], sizes)

    return rule


def _units(shape: Shape) -> int:
    """Return (in + out) * taps: each input and output unit then has equally many connections per kernel position."""
    return sum(shape[:2]) * math.prod(shape[2:])


def _root(shape: Shape) -> int:
    """Return sqrt(n_l) in units of 2^-32: of all counts k_l with a given sum, these have the least sum of n_l / k_l.

    By Lagrange, n_l / k_l^2 is then the same for all layers. `uniform` has the least maximum of the n_l / k_l, but
    leaves few weights to small layers. `epl` has the least sum of the 1 / k_l, but leaves large layers thin.
    """
    return math.isqrt(math.prod(shape) << 64)


# --- equal per filter, strictly --------------------------------------------------------------------------------------


def strict_filter_counts(shapes: Sequence[Shape], density: float, seed: int) -> list[Int64]:
    """Return the number of weights of every filter, layer by layer.

    With m the equal share, each filter gets floor(m) or floor(m) + 1 weights, but no more than it has. A uniform draw
    from `seed` decides which of the filters with room get the additional weight.
    """
    fan_in = np.repeat([math.prod(shape[1:]) for shape in shapes], [shape[0] for shape in shapes])
    total = budget(int(fan_in.sum()), density)
    level = _water_level(fan_in, total)
    counts = np.minimum(fan_in, level)
    roomy = np.flatnonzero(fan_in > level)
    counts[roomy[sample(max(1, len(roomy)), total - int(counts.sum()), seed)]] += 1
    return np.split(counts, np.cumsum([shape[0] for shape in shapes])[:-1])


def _water_level(capacities: Int64, total: int) -> int:
    """Return the largest integer level with sum min(capacity, level) <= total, found by bisection."""
    low, high = 0, int(capacities.max())
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if int(np.minimum(capacities, middle).sum()) <= total else (low, middle - 1)
    return low


def _sample_per_filter(shape: Shape, counts: Int64, seed: int) -> Support:
    """Return a support with counts[f] random positions in filter f."""
    import torch

    fan_in = math.prod(shape[1:])
    rows = [f * fan_in + sample(fan_in, int(c), derive_seed(seed, str(f))) for f, c in enumerate(counts) if c]
    return Support(tuple(shape), torch.from_numpy(np.concatenate([np.empty(0, dtype=np.int64), *rows])))


def _epf_strict(shapes: Sequence[Shape], density: float, seed: int) -> list[int]:
    return [int(counts.sum()) for counts in strict_filter_counts(shapes, density, seed)]


ALLOCATIONS: dict[str, Rule] = {
    "uniform": _exact(math.prod),
    "epl": _exact(lambda shape: 1),
    "epf": _exact(lambda shape: shape[0]),
    "erk": _exact(sum),
    "er": _exact(_units),
    "sqrt": _exact(_root),
    "epf_strict": _epf_strict,
    "uniform_paper": published_rule(uniform_densities, rounded_down),
    "epl_paper": published_rule(epl_densities, rounded_down),
    "epf_paper": published_rule(epf_densities, rounded_down),
    "erk_paper": published_rule(erk_densities, rounded_down),
    "epl_paper_rigl": published_rule(epl_densities, dropped_rounded_down),
    "erk_paper_rigl": published_rule(erk_densities, dropped_rounded_down),
    "erk_google": erk_google,
}
"""The rules that share weights out among layers by name: functions of the layers' shapes, a density and a seed."""
