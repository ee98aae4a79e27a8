"""What the manifest of a file says of each sparse layer, in and out of JSON; every field is checked on the way in."""

import dataclasses
import math
from typing import Any, TypeVar

import torch

from dctps.core.elias_fano import coded_length
from dctps.core.offsets import TransformOffset
from dctps.core.support import Support

VALUES, NORMS, ALPHA, POSITIONS = "dctps/values/", "dctps/BatchNorm/", "dctps/alpha", "dctps/positions"
DTYPES = {str(d).removeprefix("torch."): d for d in (torch.float32, torch.float64, torch.float16, torch.bfloat16)}
E = TypeVar("E", bound="Entry")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A name, a support (in so many positions, or by its seed) and the type of the values."""

    name: str
    shape: tuple[int, ...]
    nnz: int
    seed: int | None = None  # None: the positions are in the file
    dtype: str = "float32"

    def to_json(self) -> dict[str, Any]:
        """Name, shape and nnz, and what differs from its default."""
        pairs = ((field, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {f.name: value for f, value in pairs if f.default is dataclasses.MISSING or value != f.default}

    @classmethod
    def from_json(cls: type[E], entry: dict[str, Any]) -> E:
        unknown = set(entry) - {field.name for field in dataclasses.fields(cls)}
        if unknown:
            raise ValueError(f"unknown keys {sorted(unknown)}")
        result = cls(**{**entry, "shape": tuple(entry["shape"])})
        result._check()
        return result

    def _check(self) -> None:
        sizes = [self.nnz, 0 if self.seed is None else self.seed, *self.shape]
        if not all(type(n) is int and 0 <= n < 2**63 for n in sizes) or type(self.name) is not str:
            raise ValueError("names must be strings, counts and shapes non-negative integers")
        if not self.shape or not self.nnz <= math.prod(self.shape) < 2**62:
            raise ValueError(f"{self.nnz} values in a weight of shape {self.shape}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r}")

    def lengths(self) -> dict[str, int]:
        """How many elements of which packed tensors are its own."""
        coded = {POSITIONS: coded_length(math.prod(self.shape), self.nnz)} if self.seed is None else {}
        return coded | self._values()

    def _values(self) -> dict[str, int]:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class LayerEntry(Entry):
    """A linear layer or a convolution."""

    offset: str | None = "dct"
    train_alpha: bool = True

    def _check(self) -> None:
        super()._check()
        if len(self.shape) < 2 or type(self.train_alpha) is not bool:
            raise ValueError(f"shape {self.shape}, train_alpha {self.train_alpha!r}")
        if self.offset is not None:
            TransformOffset.parse(self.offset)

    def _values(self) -> dict[str, int]:
        return {VALUES + self.dtype: self.nnz} | ({} if self.offset is None else {ALPHA: 1})


@dataclasses.dataclass(frozen=True)
class NormEntry(Entry):
    """A BatchNorm layer of which `nnz` channels have a scale and a shift: all scales, then all shifts."""

    def _check(self) -> None:
        super()._check()
        if len(self.shape) != 1:
            raise ValueError(f"a BatchNorm layer of shape {self.shape}")

    def _values(self) -> dict[str, int]:
        return {NORMS + self.dtype: 2 * self.nnz}


def valid_seed(support: Support, seed: int | None) -> int | None:
    """The seed from which a support was sampled, if it still is that support."""
    return seed if seed is not None and Support.sample(support.shape, support.nnz, seed) == support else None
