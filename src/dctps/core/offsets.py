"""The m x n offset D of a layer: the pad-and-truncate rule of the paper, applied to a fast transform.

The rows of D are the layer's filters. Its columns are the entries of a patch in the row-major order of the weight
(channel, then kernel position), so `D.matrix().view(weight.shape)` is a weight. With a transform F of length
q = max(n, m) (paper: section 3 and appendix "DCTpS Implementation"):

    D = F[rows, slots] * signs        pad the patch to q, transform it, keep m of the q outputs

- `order` says which slot of the line of length q a patch entry takes. `spatial` (published) goes kernel position by
  kernel position, with the channels fastest. `channel` goes channel by channel, with the kernel positions fastest.
- `signs` multiplies the patch by seeded random signs: `none` (published), one per `channel`, or one per `position`.
- `rows` keeps the `lowest` m outputs (published) or `random` ones, in ascending order.

D depends on the shape of the weight alone. In a grouped convolution, the first filters belong to the first group and so
on, as published; all of them are rows of this one matrix. Hadamard transforms pad the number of kernel positions and
the number of channels separately to powers of two, so that each index has bits of its own. Where m exceeds the padded
patch, the rows of a Hadamard offset repeat.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from dctps.base.registry import NONE, is_none, lookup, unknown
from dctps.core.patch_offset import PatchOffset
from dctps.core.support import check_seed
from dctps.core.transforms import TRANSFORMS


@runtime_checkable
class Offset(Protocol):
    """A fixed dense m x n matrix D that is applied and never stored."""

    @property
    def shape(self) -> tuple[int, int]:
        """The pair (m, n)."""

    def apply(self, x: Tensor) -> Tensor:  # (..., n) -> (..., m)
        """Return D x."""

    def adjoint(self, v: Tensor) -> Tensor:  # (..., m) -> (..., n)
        """Return D' v."""

    def matrix(self) -> Tensor:  # (m, n)
        """Return D as a dense matrix, for the dense backend and for tests."""


@dataclasses.dataclass(frozen=True)
class TransformOffset:
    """A recipe for the offsets of all layers; `recipe.bind(weight.shape)` is the `Offset` of one layer.

    >>> TransformOffset("dct").bind((2, 2)).matrix()
    tensor([[ 0.7071,  0.7071],
            [ 0.7071, -0.7071]])
    """

    transform: str = "dct"
    order: str = "spatial"
    signs: str = "none"
    rows: str = "lowest"
    seed: int = 0

    def __post_init__(self) -> None:
        lookup(TRANSFORMS, self.transform, "transform")
        for field, values in CHOICES.items():
            if getattr(self, field) not in values:
                raise ValueError(f"unknown {field} {getattr(self, field)!r}; choose one of: {', '.join(values)}")
        check_seed(self.seed)

    def bind(self, weight_shape: Sequence[int]) -> "PatchOffset":
        """Return the offset for a weight of shape (filters, channels per group, *kernel)."""
        return _bind(self, tuple(weight_shape))

    @property
    def name(self) -> str:
        """The name of the recipe in `OFFSETS`, or else its fields joined by slashes; `parse` reads both."""
        for name, recipe in OFFSETS.items():
            if recipe == self:
                return name
        return "/".join(map(str, dataclasses.astuple(self)))

    @classmethod
    def parse(cls, name: str) -> "TransformOffset":
        """Return the recipe with this name: an entry of `OFFSETS`, or transform/order/signs/rows/seed."""
        fields = name.split("/")
        if len(fields) == 5 and fields[4].isascii() and fields[4].isdigit():
            transform, order, signs, rows, seed = fields
            return cls(transform, order, signs, rows, int(seed))
        if name not in OFFSETS:
            raise ValueError(unknown("offset", name, [*OFFSETS, NONE], ", or say transform/order/signs/rows/seed"))
        return OFFSETS[name]


# the values that the fields of a recipe may have
CHOICES = {"order": ("spatial", "channel"), "signs": ("none", "channel", "position"), "rows": ("lowest", "random")}


@functools.lru_cache(maxsize=256)
@torch.inference_mode(False)  # the cached tensors must also serve training, which inference tensors cannot
def _bind(recipe: TransformOffset, weight_shape: tuple[int, ...]) -> PatchOffset:
    return PatchOffset(recipe, weight_shape)


PRETRAINED = "pretrained"  # the name of W0, the weight that a layer has already; `sparsify` alone can take it
OffsetLike = str | TransformOffset | Offset | Callable[[tuple[int, ...]], Offset] | None


def resolve(offset: OffsetLike, weight_shape: Sequence[int]) -> Offset | None:
    """Return the offset of a weight; a user may pass a name, a recipe, an `Offset`, or a function of the shape.

    None and the names "none" and "None" mean no offset. The name "pretrained" is refused: that offset has no rule.
    """
    if is_none(offset):
        return None
    if offset == PRETRAINED:
        raise ValueError(
            "offset='pretrained' is the weight that a layer has already, so it is for sparsify alone: "
            "dctps.sparsify(model, density, offset='pretrained')"
        )
    if isinstance(offset, str):
        offset = TransformOffset.parse(offset)
    if isinstance(offset, TransformOffset):
        return offset.bind(weight_shape)
    if not isinstance(offset, Offset) and not callable(offset):
        raise ValueError(f"an offset is a name, a TransformOffset, an Offset or a function of a shape, not {offset!r}")
    bound = offset if isinstance(offset, Offset) else offset(tuple(weight_shape))
    expected = (weight_shape[0], math.prod(weight_shape[1:]))
    if tuple(bound.shape) != expected:
        raise ValueError(
            f"an offset of shape {tuple(bound.shape)} cannot serve a weight of shape {tuple(weight_shape)}, "
            f"which needs {expected}; pass a name or a TransformOffset, which serve every shape"
        )
    return bound


def offset_name(offset: Offset | None) -> str | None:
    """Return the name of an offset in reports and files: one that `parse` reads, or the name of a user's class."""
    if offset is None:
        return None
    return offset.name if isinstance(offset, PatchOffset) else type(offset).__name__


OFFSETS: dict[str, TransformOffset] = {
    "dct": TransformOffset("dct"),
    "dct_signed": TransformOffset("dct", order="channel", signs="channel"),
    "dst": TransformOffset("dst"),
    "hartley": TransformOffset("hartley"),
    "hadamard": TransformOffset("hadamard"),
    "srht": TransformOffset("hadamard", signs="channel", rows="random"),
    "rotation": TransformOffset("rotation"),
}
"""The recipes of D by name; any other is named by its fields, such as hadamard/spatial/channel/lowest/0."""
