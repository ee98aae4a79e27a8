"""The recipe of a weight: calls of the functions of `functions.py` on a few small arrays.

A recipe is a tree of calls. `graph.py` writes equal calls and equal arrays once, so layers of one shape share their D.
"""

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dctps.core.offsets import Offset, TransformOffset
from dctps.core.patch_offset import PatchOffset
from dctps.core.transforms import Form, Waves

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of an ONNX function or operator with one result."""

    function: str
    inputs: "tuple[Call | Array | Stored, ...]" = ()
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Stored:
    """A tensor of float32 in another file, which lies beside the ONNX file or below."""

    shape: tuple[int, ...]
    file: str  # its path from the folder of the ONNX file, with slashes
    offset: int
    length: int


class NoRecipe(ValueError):  # noqa: N818
    """There is no recipe for an offset; the message says why, and D is written number by number."""


# --- D --------------------------------------------------------------------------------------------------------------


def offset_recipe(offset: Offset) -> Call:
    """Return the recipe of D as a matrix (m, n); raise NoRecipe where D follows no formula that ONNX can state."""
    if not isinstance(offset, PatchOffset):
        raise NoRecipe(f"{type(offset).__name__} is an offset of your own, whose numbers follow no known recipe")
    form = _form(offset)
    if form is None:
        raise NoRecipe(f"the transform {offset.recipe.transform!r} states no formula (method 'form')")
    columns = Call("Slots", (), _slots(offset))
    matrix = _waves(form, columns) if isinstance(form, Waves) else _walsh(form.rows, form.length, columns)
    return _signed(matrix, offset)


def _form(offset: PatchOffset) -> Form | None:
    """Return the formula of F at the rows of D, which signs do not change; it is compared with `entries`."""
    if isinstance(offset.recipe, TransformOffset):
        return dataclasses.replace(offset.recipe, signs="none").bind(offset.weight_shape).form
    return offset.form


def _slots(offset: PatchOffset) -> dict[str, int]:
    channels, taps = offset.channel_slots.tolist(), offset.tap_slots.tolist()
    steps = {"by_channel": channels[1] if len(channels) > 1 else 0, "by_tap": taps[1] if len(taps) > 1 else 0}
    return {"channels": len(channels), "taps": len(taps), **steps}


def _waves(form: Waves, columns: Call) -> Call:
    """Return norm_k (cosine cos A + sine sin A) as norm_k r cos(A - phase)."""
    norms = form.norm * math.hypot(form.cosine, form.sine)
    usual = float(np.sort(norms)[len(norms) // 2])  # of two norms one of them, not their mean
    odd = np.flatnonzero(~np.isclose(norms, usual, rtol=1e-9, atol=0))
    if len(odd) > 1:
        raise NoRecipe("the rows of its transform have more than two norms")
    attributes = {
        "period": form.period,
        "shift": form.shift,
        "unit": 2 * math.pi / form.period,
        "phase": math.atan2(form.sine, form.cosine),
        "norm": usual,
        "odd": int(odd[0]) if len(odd) else -1,
        "odd_norm": float(norms[odd[0]]) if len(odd) else usual,
    }
    return Call("Waves", (_increasing(form.frequency), columns), attributes)


def _walsh(rows: Int64, length: int, columns: Call) -> Call:
    return Call("Walsh", (_increasing(rows), columns), {"norm": 1 / math.sqrt(length)})


def _increasing(numbers: Int64) -> Call:
    """Return increasing integers: by their first one and their step where the step is always the same, else by gaps."""
    gaps = np.diff(numbers)
    if len(gaps) == 0 or (gaps == gaps[0]).all():
        step = int(gaps[0]) if len(gaps) else 0
        return Call("Count", (), {"first": int(numbers[0]), "step": step, "count": len(numbers)})
    if gaps.min() < 0:
        raise NoRecipe("the frequencies of its transform do not increase with the rows")
    gaps = np.diff(numbers, prepend=0)
    narrow = next(t for t in (np.uint8, np.uint16, np.int32, np.int64) if gaps.max() <= np.iinfo(t).max)
    return Call("Sums", (gaps.astype(narrow),))


def _signed(matrix: Call, offset: PatchOffset) -> Call:
    """Return D with its random signs as bits: their generator has words of 128 bits, which ONNX cannot compute."""
    if offset.recipe.signs == "none":
        return matrix
    negative, taps = offset.signs.numpy() < 0, len(offset.tap_slots)
    sizes = {"count": [negative.size], "per_channel": [len(negative), -1], "shape": [len(negative), taps]}
    return Call("Signs", (matrix, np.packbits(negative.flatten())), sizes)


# --- scale D + S ----------------------------------------------------------------------------------------------------


def weight_recipe(shape: tuple[int, ...], offset: Call | None, scale: Array, positions: Int64, values: Array) -> Call:
    """Return the recipe of the weight scale D + S.

    scale: (1,) or one number per row of D.
    values: (nnz,) the values of S, in the type in which they are stored.
    """
    attributes = {"shape": list(shape)}
    if offset is not None and not len(positions):
        return Call("Scaled", (offset, scale), attributes)
    gaps, values = gap_code(positions, values)
    if offset is None:
        return Call("Sparse", (gaps, values), attributes)
    return Call("Weight", (offset, scale, gaps, values), attributes)


def gap_code(positions: Int64, values: Array) -> tuple[Array, Array]:
    """Return sorted positions as gaps of one or two bytes, and their values, whichever takes fewer bytes.

    A gap that is too long is bridged by further positions with the value zero.
    """
    codes = [_bridged(positions, values, narrow) for narrow in (np.uint8, np.uint16)]
    return min(codes, key=lambda code: code[0].nbytes + code[1].nbytes)


def _bridged(positions: Int64, values: Array, narrow: type[np.unsignedinteger[Any]]) -> tuple[Array, Array]:
    longest = int(np.iinfo(narrow).max)
    gaps = np.diff(positions, prepend=0)
    bridges = np.maximum(gaps - 1, 0) // longest
    ends = np.cumsum(bridges + 1) - 1
    all_gaps = np.full(len(gaps) + int(bridges.sum()), longest, dtype=narrow)
    all_values = np.zeros(len(all_gaps), dtype=values.dtype)
    all_gaps[ends] = gaps - longest * bridges
    all_values[ends] = values
    return all_gaps, all_values
