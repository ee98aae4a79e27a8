"""The entries of the manifest, one for each sparse layer, to and from JSON; reading checks every field."""

import dataclasses
import math
from typing import Any, TypeVar

import torch

from dctps.core.elias_fano import coded_length
from dctps.core.offsets import PRETRAINED, TransformOffset
from dctps.core.support import Support

# The names of the packed tensors; behind the first two stands a dtype.
VALUES, NORMS, ALPHA, POSITIONS = "dctps/values/", "dctps/BatchNorm/", "dctps/alpha", "dctps/positions"
DTYPES = {str(d).removeprefix("torch."): d for d in (torch.float32, torch.float64, torch.float16, torch.bfloat16)}
E = TypeVar("E", bound="Entry")


@dataclasses.dataclass(frozen=True)
class Entry:
    """The entry of one sparse layer: its name, its support (as positions or by a seed) and the dtype of its values."""

    name: str
    shape: tuple[int, ...]
    nnz: int
    seed: int | None = None  # of the support; None if the file holds the positions
    dtype: str = "float32"

    def to_json(self) -> dict[str, Any]:
        """Return name, shape, nnz, and the fields that differ from their defaults."""
        pairs = ((field, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {f.name: value for f, value in pairs if f.default is dataclasses.MISSING or value != f.default}

    @classmethod
    def from_json(cls: type[E], entry: dict[str, Any]) -> E:
        """Return an entry from its JSON; raise ValueError if a field is unknown or has an impossible value."""
        unknown = set(entry) - {field.name for field in dataclasses.fields(cls)}
        if unknown:
            raise ValueError(f"the entry of a layer has unknown keys {sorted(unknown)}")
        result = cls(**{**entry, "shape": tuple(entry["shape"])})
        result._check()
        return result

    def _check(self) -> None:
        """Raise ValueError if a field has an impossible value."""
        sizes = [self.nnz, 0 if self.seed is None else self.seed, *self.shape]
        if not all(type(n) is int and 0 <= n < 2**63 for n in sizes) or type(self.name) is not str:
            raise ValueError("names must be strings; counts, seeds and sizes must be non-negative integers")
        if not self.shape or not self.nnz <= math.prod(self.shape) < 2**62:
            raise ValueError(f"a weight of shape {self.shape} cannot have {self.nnz} values")
        if self.dtype not in DTYPES:
            raise ValueError(f"values of dtype {self.dtype!r} cannot be; a file holds {', '.join(DTYPES)}")

    def lengths(self) -> dict[str, int]:
        """Return the number of elements that this entry has in each packed tensor, by the name of the tensor."""
        coded = {POSITIONS: coded_length(math.prod(self.shape), self.nnz)} if self.seed is None else {}
        return coded | self._value_lengths()

    def _value_lengths(self) -> dict[str, int]:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class LayerEntry(Entry):
    """The entry of a linear layer or a convolution."""

    offset: str | None = "dct"
    train_alpha: bool = True

    def _check(self) -> None:
        super()._check()
        if len(self.shape) < 2 or type(self.train_alpha) is not bool:
            raise ValueError(f"a layer cannot have shape {self.shape} and train_alpha {self.train_alpha!r}")
        if self.offset not in (None, PRETRAINED):
            TransformOffset.parse(self.offset)

    def _value_lengths(self) -> dict[str, int]:
        has_alpha = self.train_alpha if self.offset == PRETRAINED else self.offset is not None
        return {VALUES + self.dtype: self.nnz} | ({ALPHA: 1} if has_alpha else {})


@dataclasses.dataclass(frozen=True)
class NormEntry(Entry):
    """The entry of a BatchNorm layer in which `nnz` channels have a scale and a shift; its values are both."""

    def _check(self) -> None:
        super()._check()
        if len(self.shape) != 1:
            raise ValueError(f"there cannot be a BatchNorm layer of shape {self.shape}, only of (channels,)")

    def _value_lengths(self) -> dict[str, int]:
        return {NORMS + self.dtype: 2 * self.nnz}


def valid_seed(support: Support, seed: int | None) -> int | None:
    """Return the seed if sampling with it gives this support, else None."""
    return seed if seed is not None and Support.sample(support.shape, support.nnz, seed) == support else None
