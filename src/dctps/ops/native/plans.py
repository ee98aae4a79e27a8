"""An offset as the native kernels take it: a pointwise stage along the channels, then depthwise taps.

    D[k, (c, t)] = sum_r stage[(k, r), c] weights[k, r, t]

The stage is a Fourier transform (cosine, sine and Hartley transforms of linear and 1x1 layers; all of them in channel
order, where kernel positions only add a phase), a Walsh-Hadamard transform, or a product with (thin) factors.
"""

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dctps.base.cache import Cache
from dctps.core.geometry import Geometry
from dctps.core.offsets import PatchOffset
from dctps.ops import offset_torch
from dctps.ops.native import kernels

LARGEST_RADIX = 31  # of the native transform; other lengths go to the libraries
SMALL = 1 << 11  # entries of an offset that a product serves better than a transform
_plans = Cache(limit=1 << 29)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A native offset and the bytes of its tables."""

    own: Any
    nbytes: int


def offset_plan(offset: PatchOffset, geometry: Geometry, dtype: torch.dtype) -> Any | None:
    """The native form of an offset, shared between layers of one shape; None where there is no fast one."""
    if not has_plan(offset, geometry):
        return None
    steps = geometry.stride, geometry.dilation
    return _plans.get((offset, dtype, steps), lambda: _make(offset, geometry, dtype)).own


def has_plan(offset: PatchOffset, geometry: Geometry) -> bool:
    """Whether the native kernels have a fast way to apply an offset."""
    if geometry.groups > 1 or not offset.separable:
        return False
    if offset.transform.terms == 1 or geometry.taps > 1 or _is_small(offset):
        return True
    return _is_smooth(offset.length)


def _is_small(offset: PatchOffset) -> bool:
    return math.prod(offset.shape) <= SMALL


def _is_smooth(length: int) -> bool:
    for prime in range(2, LARGEST_RADIX + 1):
        while length % prime == 0:
            length //= prime
    return length == 1


def _make(offset: PatchOffset, geometry: Geometry, dtype: torch.dtype) -> Plan:
    stage = _stage(offset, dtype)
    weights = np.ascontiguousarray(stage.weights)  # (m, R, T)
    source = np.arange(weights.shape[0] * weights.shape[1], dtype=np.int32) if stage.source is None else stage.source
    make = kernels.Offset32 if dtype == torch.float32 else kernels.Offset64
    own = make(*weights.shape, source, weights)
    arguments = (*stage.arguments, geometry.pack()) if stage.kind == "product" else stage.arguments
    getattr(own, stage.kind)(*arguments)
    return Plan(own, own.nbytes)


@dataclasses.dataclass(frozen=True)
class Stage:
    """The pointwise stage: the name of a native constructor and its arguments; then the depthwise stage."""

    kind: str
    arguments: tuple[Any, ...]
    weights: np.ndarray  # (m, R, T)
    source: np.ndarray | None = None  # (m R): which plane each filter's term reads; by default its own


def stage_kind(offset: PatchOffset) -> str:
    """Which pointwise stage serves an offset: line or spectrum (both Fourier transforms), hadamard or product."""
    taps = len(offset.tap_slots)
    if offset.transform.terms == 1:
        return "hadamard"
    if taps == 1:
        return "product" if _is_small(offset) else "line"
    period = _period(offset)
    return "spectrum" if period and _is_smooth(period) else "product"


def operations(offset: PatchOffset) -> int:
    """Multiply-adds of the pointwise stage per pixel: n log n for the transforms, entries for the products."""
    kind = stage_kind(offset)
    if kind == "product":
        first, second, _ = _product(offset, torch.float32).arguments
        return sum(factor.size for factor in (*first, *second) if factor is not None)
    wide = offset.transform.padded(len(offset.channel_slots))
    length = {"hadamard": wide, "line": offset.length, "spectrum": _period(offset)}[kind]
    return round(length * math.log2(max(2, length)))


def _stage(offset: PatchOffset, dtype: torch.dtype) -> Stage:
    makers = {"hadamard": _hadamard, "line": _line, "spectrum": _spectrum}
    kind = stage_kind(offset)
    return _product(offset, dtype) if kind == "product" else makers[kind](offset)


def _product(offset: PatchOffset, dtype: torch.dtype) -> Stage:
    if len(offset.tap_slots) == 1:
        ones = np.ones((offset.shape[0], 1, 1))
        signs = np.ones(offset.shape[1])  # those of the offset are in its matrix
        return Stage("product", ([None], [_array(offset.matrix(torch.float64))], signs), ones)
    even, odd, weights = folded_factors(offset)
    parts = [offset_torch.thin(torch.from_numpy(part), torch.finfo(dtype).eps) for part in (even, odd)]
    if any(len(part) == 1 for part in parts):  # both or none
        parts = [[torch.from_numpy(part)] for part in (even, odd)]
    first = [_array(part[0]) if len(part) == 2 else None for part in parts]
    return Stage("product", (first, [_array(part[-1]) for part in parts], _signs(offset)), weights)


def folded_factors(offset: PatchOffset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Factors of the separable way, with channels counted from their middle: (m, n/2), (m, n/2) and (m, 2, T).

    With p = a_c + b_t and A0 = a_0 + a_(n-1), twice the middle, the angle of k p is that of k (2 a_c - A0) plus that of
    k (2 b_t + A0): the cosine of the first is even and its sine odd under c -> n-1-c, so half of the channels suffice.
    """
    q, kind = offset.length, offset.recipe.transform
    k, a, b = (t.numpy() for t in (offset.rows, offset.channel_slots, offset.tap_slots))
    middle, n = a[0] + a[-1], len(a)
    frequency, period = (k + 1 if kind == "dst" else k), (2 * q if kind == "hartley" else 4 * q)
    left = _angles(frequency, 2 * a - middle, period)
    right = _angles(frequency, 2 * b + middle + (kind != "hartley"), period)
    cos, sin = np.cos(right), np.sin(right)
    terms = {"dct": (cos, -sin), "dst": (sin, cos), "hartley": (cos + sin, cos - sin)}[kind]
    weights = offset_norm(offset)[:, None, None] * np.stack(terms, axis=1)
    return np.cos(left)[:, : (n + 1) // 2], np.sin(left)[:, : n // 2], weights


def _angles(k: np.ndarray, j: np.ndarray, period: int) -> np.ndarray:
    """2 pi k j / period, reduced as integers before anything is rounded."""
    angles: np.ndarray = 2 * np.pi / period * (np.multiply.outer(k, j) % period)
    return angles


def offset_norm(offset: PatchOffset) -> np.ndarray:
    """The factors s_k that make the rows of a cosine, sine or Hartley transform orthonormal."""
    q, k, kind = offset.length, offset.rows.numpy(), offset.recipe.transform
    if kind == "hartley":
        return np.full(len(k), 1 / math.sqrt(q))
    return np.sqrt(np.where(k == (q - 1 if kind == "dst" else 0), 1.0, 2.0) / q)


def _taps(offset: PatchOffset) -> np.ndarray:
    """The depthwise stage (m, R, T) of the separable way; ones where there is one kernel position."""
    if len(offset.tap_slots) == 1:
        return np.ones((offset.shape[0], 1, 1))
    _, right = offset.transform.split(offset.rows, offset.channel_slots[:1], offset.tap_slots, offset.length)
    return right.transpose(0, 1).numpy()


def _array(values: Tensor) -> np.ndarray:
    return values.contiguous().numpy()


def _signs(offset: PatchOffset) -> np.ndarray:
    return np.ascontiguousarray(offset.signs.flatten().numpy())


# --- Fourier: out_k = real_k Re X[f_k] + imaginary_k Im X[f_k] -------------------------------------------------------


def _line(offset: PatchOffset) -> Stage:
    """One kernel position: the transform itself, of length q."""
    q, n, rows = offset.length, len(offset.channel_slots), offset.rows.numpy()
    channels, signs, norm = np.arange(n), _signs(offset), offset_norm(offset)
    if offset.recipe.transform == "hartley":
        return _fourier(offset, q, channels, signs, rows, norm, -norm)
    if offset.recipe.transform == "dst":  # row k is row q-1-k of the cosine transform with every other column negated
        rows, signs = q - 1 - rows, signs * (1 - 2 * (channels % 2))
    # Makhoul: even entries, then odd ones backwards; y_k = s_k Re exp(-i pi k / 2q) V_k
    place = np.where(channels % 2 == 0, channels // 2, q - 1 - channels // 2)
    phase = np.pi * rows / (2 * q)
    return _fourier(offset, q, place, signs, rows, norm * np.cos(phase), norm * np.sin(phase))


def _period(offset: PatchOffset) -> int:
    """In channel order and without padding the channels see frequencies of period 2n (Hartley: n); else 0."""
    n, taps = len(offset.channel_slots), len(offset.tap_slots)
    if offset.recipe.order != "channel" or offset.length != n * taps:
        return 0
    return n if offset.recipe.transform == "hartley" else 2 * n


def _spectrum(offset: PatchOffset) -> Stage:
    """cos(A + phi) and sin(A + phi) for A = 2 pi f c / period: the two terms of the separable way."""
    q, k, period = offset.length, offset.rows.numpy(), _period(offset)
    kind = offset.recipe.transform
    frequency = k + 1 if kind == "dst" else k
    phase, norm = (0 if kind == "hartley" else 2 * np.pi / (4 * q)) * frequency, offset_norm(offset)
    cos = norm * np.cos(phase), norm * np.sin(phase)  # weights of Re X and Im X
    sin = norm * np.sin(phase), -norm * np.cos(phase)
    terms = (sin, cos) if kind == "dst" else (cos, sin)
    real, imaginary = (np.stack([term[part] for term in terms], axis=1).ravel() for part in (0, 1))
    channels = np.arange(len(offset.channel_slots))
    return _fourier(offset, period, channels, _signs(offset), np.repeat(frequency % period, 2), real, imaginary)


def _fourier(
    offset: PatchOffset,
    length: int,
    place: np.ndarray,
    signs: np.ndarray,
    frequency: np.ndarray,
    real: np.ndarray,
    imaginary: np.ndarray,
) -> Stage:
    rows, steps = place.astype(np.int32), frequency.astype(np.int32)
    return Stage("fourier", (length, rows, signs, steps, real, imaginary), _taps(offset))


# --- Hadamard -------------------------------------------------------------------------------------------------------


def _hadamard(offset: PatchOffset) -> Stage:
    """The bits of a row that belong to the channels choose a plane; those of the kernel positions are in the taps."""
    channels, taps = len(offset.channel_slots), len(offset.tap_slots)
    wide = offset.transform.padded(channels)
    first_bit = 1 if offset.recipe.order == "spatial" else offset.transform.padded(taps)
    rows = (offset.rows.numpy() // first_bit) % wide
    scale = 1 / math.sqrt(offset.length)
    if taps == 1:
        return Stage("hadamard", (wide, _signs(offset), rows.astype(np.int32), scale), _taps(offset))
    used, source = np.unique(rows, return_inverse=True)
    arguments = wide, _signs(offset), used.astype(np.int32), scale
    return Stage("hadamard", arguments, _taps(offset), source.astype(np.int32))
