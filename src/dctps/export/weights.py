"""How each weight of a network is stored in an ONNX file: as a recipe, as numbers, or in the base file."""

import math
from typing import Any, NamedTuple

import numpy as np

from dctps.core.offsets import PRETRAINED, offset_name
from dctps.export.recipe import Array, Call, NoRecipe, Stored, offset_recipe, weight_recipe
from dctps.export.report import WeightRow
from dctps.nn.dps_layer import DpsLayer


class Weight(NamedTuple):
    """A weight of the plain network: what makes it, by name, one or several stacked; its W0 if it is fine-tuned."""

    layers: dict[str, DpsLayer]
    base: Stored | None = None

    @property
    def size(self) -> int:
        """The number of its entries."""
        return sum(math.prod(layer.geometry.weight_shape) for layer in self.layers.values())


def content(weight: Weight, factor: Array | None, dense: bool, float16: bool) -> tuple[Call | Array, list[WeightRow]]:
    """Return the recipe or the numbers of a weight, and how it is stored.

    factor: what its rows are multiplied by, if it is not 1.
    """
    made, rows, first = [], [], 0
    for name, layer in weight.layers.items():
        last = first + layer.geometry.filters
        own, why_dense = _content(layer, weight.base, None if factor is None else factor[first:last], dense, float16)
        offset = PRETRAINED if weight.base else offset_name(layer.offset)
        made.append(own)
        rows.append(WeightRow(name, offset, layer.nnz, why_dense))
        first = last
    return made[0] if len(made) == 1 else Call("!Concat", tuple(made), {"axis": 0}), rows


def _content(
    layer: DpsLayer, base: Stored | None, factor: Array | None, dense: bool, float16: bool
) -> tuple[Call | Array, str | None]:
    """Return the recipe or the numbers of scale D + S, and why it is not the recipe."""
    shape = layer.geometry.weight_shape
    per_row = np.ones(1) if factor is None else factor
    try:
        if dense:
            raise NoRecipe("dense weights were asked for")
        offset = _offset(layer, base)
    except NoRecipe as error:
        entries = layer.dense_weight().detach().cpu().double().numpy()
        return (entries * per_row.reshape(-1, *[1] * (len(shape) - 1))).astype(np.float32), str(error)
    positions = layer.support.positions.cpu().numpy().astype(np.int64)
    rows = positions // math.prod(shape[1:]) if factor is not None else 0
    alpha = float(base is not None) if layer.alpha is None else layer.alpha.item()  # W0 need not have an alpha
    kind = np.float16 if float16 else np.float32
    values = (layer.values.detach().cpu().double().numpy() * per_row[rows]).astype(np.float32)
    return weight_recipe(shape, offset, narrow(alpha * per_row, kind), positions, narrow(values, kind)), None


def _offset(layer: DpsLayer, base: Stored | None) -> Call | None:
    """Return the recipe of D as a matrix; raise NoRecipe where there is none."""
    if base is not None:
        return Call("!Reshape", (base, np.array([base.shape[0], -1])))
    return None if layer.offset is None else offset_recipe(layer.offset)


def narrow(array: Array, kind: type[np.floating[Any]]) -> Array:
    """Return the array in a narrower type, or in float32 where its numbers are too large for that."""
    with np.errstate(over="ignore"):
        found = array.astype(kind)
    return found if np.isfinite(found).all() else array.astype(np.float32)
