"""An offset as the native kernels take it: a pointwise stage along the channels, then a depthwise stage.

    D[k, (c, t)] = sum_r stage[(k, r), c] weights[k, r, t]

The pointwise stage is a Fourier transform, a Walsh-Hadamard transform, or a product with factors, which may be thin.
Everything here follows from the form of the transform (`core/transforms/forms.py`), never from its name.
"""

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dctps.base.cache import Cache
from dctps.core.patch_offset import PatchOffset
from dctps.core.transforms import Spectrum, Walsh, Waves
from dctps.ops.native import kernels
from dctps.ops.separable import thin_factors

_compiled = Cache(limit=1 << 29)  # compiled offsets, up to this many bytes, shared by layers of one shape


@dataclasses.dataclass(frozen=True)
class Compiled:
    """An object of the native kernels, with the size of its tables in bytes."""

    native: Any
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Stage:
    """The two stages of an offset: a native method that makes the pointwise stage, and weights of the depthwise one."""

    constructor: str  # name of the method of the native offset: product, fourier or hadamard
    arguments: tuple[Any, ...]
    weights: np.ndarray  # (m, R, T)
    source: np.ndarray | None = None  # (m R,) the plane that each term of each filter reads; by default one plane each


def compiled_offset(kind: str, offset: PatchOffset, dtype: torch.dtype) -> Any:
    """Return the native object of an offset with a pointwise stage of this kind; layers of one shape share it."""
    key = kind, offset, dtype
    return _compiled.get(key, lambda: _compile(kind, offset, dtype)).native


def _compile(kind: str, offset: PatchOffset, dtype: torch.dtype) -> Compiled:
    stage = folded_product(offset, dtype) if kind == "product" else STAGES[kind](offset)
    weights = np.ascontiguousarray(stage.weights)
    source = np.arange(weights.shape[0] * weights.shape[1], dtype=np.int32) if stage.source is None else stage.source
    make = kernels.Offset32 if dtype == torch.float32 else kernels.Offset64
    native = make(*weights.shape, source, weights)
    getattr(native, stage.constructor)(*stage.arguments)
    return Compiled(native, native.nbytes)


# --- products -------------------------------------------------------------------------------------------------------


def matrix_product(offset: PatchOffset) -> Stage:
    """Return a product with the matrix D itself, for layers with one kernel position and few weights."""
    ones = np.ones((offset.shape[0], 1, 1))
    signs = np.ones(offset.shape[1])  # the matrix of the offset already contains its signs
    return Stage("product", ([None], [_array(offset.matrix(torch.float64))], signs), ones)


def folded_product(offset: PatchOffset, dtype: torch.dtype) -> Stage:
    """Return one product for the cosines and one for the sines, with thin factors where they are smaller."""
    even, odd, weights = folded_factors(offset)
    parts = [thin_factors(torch.from_numpy(part), torch.finfo(dtype).eps) for part in (even, odd)]
    if any(len(part) == 1 for part in parts):  # the kernels take thin factors for both products or for none
        parts = [[torch.from_numpy(part)] for part in (even, odd)]
    first = [_array(part[0]) if len(part) == 2 else None for part in parts]
    return Stage("product", (first, [_array(part[-1]) for part in parts], _signs(offset)), weights)


def folded_factors(offset: PatchOffset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return separable factors with channels counted from their middle, of shapes (m, n/2), (m, n/2) and (m, 2, T).

    Let p = a_c + b_t, and let A0 = a_0 + a_(n-1) be twice the middle. The angle of 2p + shift is then the angle of
    2 a_c - A0 plus the angle of 2 b_t + A0 + shift. The cosine of the first is even and its sine is odd under
    c -> n-1-c, so half of the channels suffice.
    """
    waves = _waves(offset)
    a, b = offset.channel_slots.numpy(), offset.tap_slots.numpy()
    middle, n = a[0] + a[-1], len(a)
    left, right = waves.angles(2 * a - middle), waves.angles(2 * b + middle + waves.shift)
    weights = waves.norm[:, None, None] * _taps_of_waves(waves, right)
    return np.cos(left)[:, : (n + 1) // 2], np.sin(left)[:, : n // 2], weights


def _taps_of_waves(waves: Waves, angles: np.ndarray) -> np.ndarray:  # (m, T) -> (m, 2, T)
    """Return the factors of cos L and sin L in cosine cos(L + R) + sine sin(L + R), for the angles R of the taps."""
    cos, sin = np.cos(angles), np.sin(angles)
    return np.stack([waves.cosine * cos + waves.sine * sin, waves.sine * cos - waves.cosine * sin], axis=1)


# --- Fourier transforms ---------------------------------------------------------------------------------------------


def line(offset: PatchOffset) -> Stage:
    """Return the transform itself, for layers with one kernel position."""
    spectrum = _waves(offset).spectrum(offset.shape[1])
    return _fourier(spectrum, _signs(offset), np.ones((offset.shape[0], 1, 1)))


def channel_period(offset: PatchOffset) -> int:
    """Return the period of the waves along the channels of a patch, or 0 unless it has channel order and no padding."""
    taps, waves = len(offset.tap_slots), offset.form
    if offset.recipe.order != "channel" or offset.length != offset.shape[1] or not isinstance(waves, Waves):
        return 0
    return waves.period // (2 * taps) if waves.period % (2 * taps) == 0 else 0


def channel_spectrum(offset: PatchOffset) -> Stage:
    """Return the Fourier transform that gives cos(L + phase) and sin(L + phase) with L = 2 pi f c / period.

    It serves layers with several kernel positions in channel order.
    """
    waves, period = _waves(offset), channel_period(offset)
    phase = waves.angles(np.array([waves.shift]))[:, 0]
    cos, sin = waves.norm * np.cos(phase), waves.norm * np.sin(phase)
    real, imaginary = np.stack([cos, sin], axis=1).ravel(), np.stack([sin, -cos], axis=1).ravel()
    channels, frequency = np.arange(len(offset.channel_slots)), np.repeat(waves.frequency % period, 2)
    spectrum = Spectrum(period, channels, np.ones(len(channels)), frequency, real, imaginary)
    taps = _taps_of_waves(waves, waves.angles(2 * offset.tap_slots.numpy()))
    return _fourier(spectrum, _signs(offset), taps)


def _fourier(spectrum: Spectrum, signs: np.ndarray, weights: np.ndarray) -> Stage:
    place, frequency = spectrum.place.astype(np.int32), spectrum.frequency.astype(np.int32)
    tables = place, spectrum.sign * signs, frequency, spectrum.real, spectrum.imaginary
    return Stage("fourier", (spectrum.length, *tables), weights)


# --- Walsh-Hadamard transforms --------------------------------------------------------------------------------------


def hadamard(offset: PatchOffset) -> Stage:
    """Return a Walsh-Hadamard transform along the channels.

    The channel bits of a row of D say which plane of the transform it reads. Its kernel position bits give the signs of
    the depthwise weights.
    """
    assert isinstance(offset.form, Walsh)
    channels, taps = len(offset.channel_slots), len(offset.tap_slots)
    wide = offset.transform.padded(channels)
    first_bit = 1 if offset.recipe.order == "spatial" else offset.transform.padded(taps)
    rows = (offset.form.rows // first_bit) % wide
    scale = 1 / math.sqrt(offset.length)
    if taps == 1:
        ones = np.ones((offset.shape[0], 1, 1))
        return Stage("hadamard", (wide, _signs(offset), rows.astype(np.int32), scale), ones)
    signs_of_taps = np.sign(offset.form.entries(offset.tap_slots.numpy()))
    used, source = np.unique(rows, return_inverse=True)
    arguments = wide, _signs(offset), used.astype(np.int32), scale
    return Stage("hadamard", arguments, signs_of_taps[:, None, :], source.astype(np.int32))


STAGES = {"matrix": matrix_product, "line": line, "spectrum": channel_spectrum, "hadamard": hadamard}


def _waves(offset: PatchOffset) -> Waves:
    assert isinstance(offset.form, Waves)
    return offset.form


def _array(values: Tensor) -> np.ndarray:
    return values.contiguous().numpy()


def _signs(offset: PatchOffset) -> np.ndarray:
    return np.ascontiguousarray(offset.signs.flatten().numpy())
