"""The support of a layer: the sorted flat positions of its trainable weights.

A file may store the seed of a support instead of its positions. Sampling must therefore give the same support for the
same seed on every platform and in every version, and it uses only the raw stream of numpy's PCG64, which numpy
guarantees. To draw k of N positions:

    Take the 64-bit words in turn. Keep the low bits of each, as many as N - 1 has. Skip numbers >= N and numbers
    seen before. The first k numbers that remain, sorted, are the sample.

This draws every set of k positions with the same probability, in O(k) memory. For k > N/2, the N - k positions to
leave out are drawn instead.
"""

import dataclasses
import hashlib
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Int64 = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class Support:
    """The positions of the trainable weights of one layer.

    `positions` are flat indices into a row-major tensor of shape `shape`: sorted, distinct, int32 where they fit.

    >>> Support.sample((4, 6), 5, seed=0).positions.tolist()
    [1, 5, 12, 13, 14]
    """

    shape: tuple[int, ...]
    positions: Tensor  # (nnz,)
    seed: int | None = None  # the seed with `Support.sample(shape, nnz, seed)` equal to this support, if there is one

    def __post_init__(self) -> None:
        shape = tuple(int(size) for size in self.shape)
        if min(shape, default=0) < 1:
            raise ValueError(f"a support needs a shape with at least one weight, not {shape}")
        object.__setattr__(self, "shape", shape)
        positions = self.positions
        if not isinstance(positions, Tensor):
            positions = torch.tensor(list(positions) or np.empty(0, dtype=np.int64), device="cpu")
        object.__setattr__(self, "positions", _checked(positions, shape))

    @property
    def nnz(self) -> int:
        """The number of positions."""
        return len(self.positions)

    @property
    def size(self) -> int:
        """The number of weights of the layer, those that do not train included."""
        return math.prod(self.shape)

    @property
    def density(self) -> float:
        """The fraction of the weights that trains."""
        return self.nnz / self.size

    def mask(self) -> Tensor:  # bool, of shape `shape`
        """Return a tensor that is True at the positions and False elsewhere."""
        mask = torch.zeros(self.size, dtype=torch.bool, device=self.positions.device)
        mask[self.positions.long()] = True
        return mask.view(self.shape)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Support):
            return NotImplemented
        return self.shape == other.shape and torch.equal(self.positions.cpu(), other.positions.cpu())

    def __repr__(self) -> str:
        return f"Support(shape={self.shape}, nnz={self.nnz}, density={self.density:.3g})"

    @classmethod
    def sample(cls, shape: Sequence[int], nnz: int, seed: int = 0) -> "Support":
        """Draw `nnz` positions uniformly without replacement; a seed gives the same ones on every platform."""
        size = math.prod(shape)
        if not 0 <= nnz <= size:
            raise ValueError(f"cannot place {nnz} weights in the shape {tuple(shape)}, which has {size} places")
        return cls(tuple(shape), torch.from_numpy(sample(size, nnz, seed)), seed)

    @classmethod
    def from_mask(cls, mask: Tensor) -> "Support":
        """Return the support at whose positions a boolean tensor is True."""
        if mask.dtype != torch.bool:
            raise ValueError(f"a mask is a boolean tensor, not {mask.dtype}; compare it first, as in mask != 0")
        return cls(tuple(mask.shape), mask.flatten().nonzero().flatten())

    @classmethod
    def from_sparse(cls, tensor: Tensor) -> "Support":
        """Return the places that a sparse tensor of torch names, in whatever layout; zeros that it stores count.

        >>> Support.from_sparse(torch.eye(3).to_sparse_csr()).positions.tolist()
        [0, 4, 8]
        """
        if tensor.layout == torch.strided or tensor.dense_dim() > 0:
            raise ValueError("expected a sparse tensor whose entries are single numbers; a mask goes to from_mask")
        if tensor.layout == torch.sparse_coo:
            places = tensor.detach().coalesce().indices()
        else:  # ones in place of the values, because a conversion may drop zeros
            compressed = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
            outer = tensor.crow_indices() if compressed else tensor.ccol_indices()
            inner = tensor.col_indices() if compressed else tensor.row_indices()
            ones = torch.ones_like(tensor.values())
            same = torch.sparse_compressed_tensor(outer, inner, ones, tensor.shape, layout=tensor.layout)
            places = same.to_sparse_coo().coalesce().indices()
        flat = places.new_zeros(places.shape[1])
        for axis, size in zip(places, tensor.shape, strict=True):
            flat = flat * size + axis
        return cls(tuple(tensor.shape), flat.sort().values)

    @classmethod
    def from_rows(cls, shape: Sequence[int], rows: Sequence[int]) -> "Support":
        """Return the support of whole rows of a matrix, as of some tokens of an embedding."""
        mask = torch.zeros(tuple(shape), dtype=torch.bool)
        mask[torch.as_tensor(rows, dtype=torch.int64)] = True
        return cls.from_mask(mask)


def _checked(positions: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the positions in the narrowest index type; raise ValueError where they are no support of this shape."""
    size = math.prod(shape)
    if positions.dim() != 1 or positions.is_floating_point() or positions.dtype == torch.bool:
        raise ValueError(f"positions must be a 1-D integer tensor, not {positions.dim()}-D {positions.dtype}")
    if len(positions) and not (int(positions.min()) >= 0 and int(positions.max()) < size):
        bad = positions[(positions < 0) | (positions >= size)][0]
        raise ValueError(f"position {int(bad)} is out of range: shape {shape} has positions 0 to {size - 1}")
    steps = positions[1:].long() - positions[:-1].long()
    if bool((steps < 0).any()):
        raise ValueError("positions must be sorted; sort them first")
    if bool((steps == 0).any()):
        raise ValueError(f"position {int(positions[1:][steps == 0][0])} is repeated; positions must be distinct")
    return positions.to(index_dtype(size)).contiguous()


def index_dtype(size: int) -> torch.dtype:
    """Return int32 where the positions of a tensor of `size` elements fit, else int64."""
    return torch.int32 if size <= 2**31 else torch.int64


def sample(size: int, count: int, seed: int) -> Int64:
    """Draw `count` different numbers of range(size) uniformly, as the top of this file defines; return them sorted."""
    check_seed(seed)
    if count > size - count:
        keep = np.ones(size, dtype=bool)
        keep[sample(size, size - count, seed)] = False
        return np.flatnonzero(keep).astype(np.int64)
    stream, span = np.random.PCG64(seed), 1 << (size - 1).bit_length()
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < count:  # a word is new and in range with probability (size - len(drawn)) / span >= 1/4
        missing = count - len(drawn)
        words = stream.random_raw(missing * span // (size - len(drawn)) + 16) & np.uint64(span - 1)
        words = words.astype(np.int64)
        drawn = _distinct(np.concatenate([drawn, words[words < size]]))
    return np.sort(drawn[:count])


def _distinct(drawn: Int64) -> Int64:
    """Return the numbers without repetitions, in the order of their first appearance."""
    _, first = np.unique(drawn, return_index=True)
    return drawn[np.sort(first)]


def check_seed(seed: int) -> None:
    """Raise ValueError unless the seed is a non-negative integer."""
    if seed < 0:
        raise ValueError(f"a seed is a non-negative integer, not {seed}")


def derive_seed(seed: int, name: str) -> int:
    """Return a separate seed for the part called `name` of whatever `seed` seeds: 32 bits of a SHA-256."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4], "big")
