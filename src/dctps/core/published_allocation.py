"""The allocations of the published code, with the weights that it loses to rounding and capping.

`allocation.py` has the exact rules and the registry.
"""

import math
from collections.abc import Callable, Sequence

Shape = Sequence[int]
Rule = Callable[[Sequence[Shape], float, int], list[int]]  # shapes, density, seed -> a count per layer


def rounded_down(density: float, size: int) -> int:
    """Round the number of kept weights down, as the published code does outside of RigL."""
    return int(density * size)


def dropped_rounded_down(density: float, size: int) -> int:
    """Round the number of dropped weights down, as RigL does."""
    return size - math.floor((1 - density) * size)


def published_rule(
    densities: Callable[[Sequence[Shape], float], list[float]], round_: Callable[[float, int], int]
) -> Rule:
    """Return the rule that rounds the density of each layer to a count, layer by layer."""

    def rule(shapes: Sequence[Shape], density: float, seed: int) -> list[int]:
        pairs = zip(densities(shapes, density), shapes, strict=True)
        return [round_(layer_density, math.prod(shape)) for layer_density, shape in pairs]

    return rule


def uniform_densities(shapes: Sequence[Shape], density: float) -> list[float]:
    return [density] * len(shapes)


def epl_densities(shapes: Sequence[Shape], density: float) -> list[float]:
    """Return equal shares as densities: the last layer takes what small layers cannot, and what it cannot is lost."""
    sizes = [math.prod(shape) for shape in shapes]
    target = density * sum(sizes)
    shares = [min(float(size), target / len(sizes)) for size in sizes]
    shares[-1] += target - sum(shares)
    return [min(share / size, 1.0) for share, size in zip(shares, sizes, strict=True)]


def epf_densities(shapes: Sequence[Shape], density: float) -> list[float]:
    per_filter = density * sum(map(math.prod, shapes)) / sum(shape[0] for shape in shapes)
    return [min(1.0, per_filter * shape[0] / math.prod(shape)) for shape in shapes]


def erk_densities(shapes: Sequence[Shape], density: float) -> list[float]:
    """Return the densities of ERK, capped at 1 without another normalisation: the excess of full layers is lost."""
    epsilon = density * sum(map(math.prod, shapes)) / sum(map(sum, shapes))
    return [min(1.0, epsilon * sum(shape) / math.prod(shape)) for shape in shapes]


def erk_google(shapes: Sequence[Shape], density: float, seed: int) -> list[int]:
    """Return the counts of the RigL authors' ERK.

    As long as some layer would get more weights than it has, the layers with the highest raw density become dense. The
    others are rounded up, layer by layer.
    """
    sizes = [math.prod(shape) for shape in shapes]
    raw = [sum(shape) / size for shape, size in zip(shapes, sizes, strict=True)]
    total, dense = sum(dropped_rounded_down(density, size) for size in sizes), set[int]()
    while True:
        rest = [i for i in range(len(sizes)) if i not in dense]
        if not rest:
            return sizes
        epsilon = (total - sum(sizes[i] for i in dense)) / sum(raw[i] * sizes[i] for i in rest)
        highest = max(raw[i] for i in rest)
        if epsilon * highest <= 1:
            return [n if i in dense else dropped_rounded_down(epsilon * raw[i], n) for i, n in enumerate(sizes)]
        dense |= {i for i in rest if raw[i] == highest}
