"""The slow, obvious definitions that everything fast is compared with."""

import functools
import itertools
import math

import torch
from torch import Tensor

from dctps.core.offsets import TransformOffset
from dctps.core.random import Stream


def transform_entry(name: str, k: int, p: int, q: int) -> float:
    """F[k, p] of a transform of length q, as it stands in a textbook."""
    if name == "dct":
        return math.sqrt((1 if k == 0 else 2) / q) * math.cos(math.pi * k * (2 * p + 1) / (2 * q))
    if name == "dst":
        return math.sqrt((1 if k == q - 1 else 2) / q) * math.sin(math.pi * (k + 1) * (2 * p + 1) / (2 * q))
    if name == "hartley":
        angle = 2 * math.pi * k * p / q
        return (math.cos(angle) + math.sin(angle)) / math.sqrt(q)
    if name == "hadamard":
        return (-1) ** bin(k & p).count("1") / math.sqrt(q)
    if name == "rotation":
        return sum(a * b for a, b in zip(*_rotated(k, p, q), strict=True))
    raise KeyError(name)


def _rotated(k: int, p: int, q: int) -> tuple[tuple[float, ...], list[float]]:
    """Row k of H, and P E times column p of H: their product is the entry of the rotation H P E H."""
    signs, order = _drawn(q)
    column = _hadamard_row(p, q)
    return _hadamard_row(k, q), [signs[j] * column[j] for j in order]


@functools.cache
def _hadamard_row(k: int, q: int) -> tuple[float, ...]:
    return tuple(transform_entry("hadamard", k, p, q) for p in range(q))


@functools.cache
def _drawn(q: int) -> tuple[list[float], list[int]]:
    stream = Stream(0, f"rotation/{q}")
    return stream.signs(q).tolist(), stream.permutation(q).tolist()


def transform_matrix(name: str, q: int) -> Tensor:
    rows = [[transform_entry(name, k, p, q) for p in range(q)] for k in range(q)]
    return torch.tensor(rows, dtype=torch.float64)


def power_of_two(n: int) -> int:
    return 2 ** math.ceil(math.log2(n))


def offset_weight(recipe: TransformOffset, shape: tuple[int, ...], rows: Tensor, signs: Tensor) -> Tensor:
    """D as a weight (filters, channels, *kernel), entry by entry.

    `rows` and `signs` (channels, taps or 1) are the seeded choices; everything else is the definition.
    """
    filters, channels, *kernel = shape
    taps = math.prod(kernel)
    pad = power_of_two if recipe.transform in ("hadamard", "rotation") else int
    wide, tall = pad(channels), pad(taps)
    q = pad(max(wide * tall, filters))
    out = torch.zeros(filters, channels, taps, dtype=torch.float64)
    for f, c, t in itertools.product(range(filters), range(channels), range(taps)):
        p = t * wide + c if recipe.order == "spatial" else c * tall + t
        sign = float(signs[c, t if signs.shape[1] > 1 else 0])
        out[f, c, t] = sign * transform_entry(recipe.transform, int(rows[f]), p, q)
    return out.view(shape)


def convolution(x: Tensor, weight: Tensor, stride: tuple, padding: tuple, dilation: tuple, groups: int) -> Tensor:
    """Patch by patch, differentiable: x (batch, channels, *spatial), weight (filters, channels / groups, *kernel)."""
    filters, _, *kernel = weight.shape
    for axis, pad in enumerate(padding):
        zeros = list(x.shape)
        zeros[axis + 2] = pad
        x = torch.cat([x.new_zeros(zeros), x, x.new_zeros(zeros)], dim=axis + 2)
    per_axis = zip(x.shape[2:], kernel, stride, dilation, strict=True)
    output = [(size - d * (k - 1) - 1) // s + 1 for size, k, s, d in per_axis]
    pixels = []
    for place in itertools.product(*map(range, output)):
        reads = zip(place, kernel, stride, dilation, strict=True)
        window = tuple(slice(o * s, o * s + d * (k - 1) + 1, d) for o, k, s, d in reads)
        patch = x[(slice(None), slice(None), *window)]  # (batch, groups * channels, *kernel)
        per_group = patch.reshape(len(x), groups, -1)
        bank = weight.reshape(groups, filters // groups, -1)
        pixels.append(torch.einsum("bgn,gfn->bgf", per_group, bank).reshape(len(x), filters))
    return torch.stack(pixels, dim=-1).reshape(len(x), filters, *output)
