"""Fixed random D x d matrices U whose columns have length one: bases of a random subspace of all weights together.

Three kinds (Li et al. 2018, section S7), each applied in both directions, U v and U' g:

    kind       what it is                                                   bytes (float32)    time
    dense      N(0, 1), each column divided by its length                   4 D d              D d
    sparse     one entry in sqrt(D) is not zero, +-c in each column         16 d sqrt(D)       d sqrt(D)
    fastfood   H G P H B: Hadamard, normal, permutation, Hadamard, signs    8 L + 4 d          L log L

with L the next power of two from D on; `sparse` also holds where its rows and columns begin, 4 (D + d) bytes.

The columns of the first two have length one up to rounding, those of fastfood nearly: within 0.003 of it for the
61,510 weights of LeNet. Everything follows from the sizes and the seed (`draws.py`), so that no file needs to hold U;
the first d columns are the same for every number of dimensions.
"""

import copy
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dctps.core.random import Float64, Stream, total
from dctps.core.support import Int64, index_dtype
from dctps.core.transforms import Hadamard
from dctps.ops.sparse import csr_works

P = TypeVar("P", bound="Projection")


class Projection:
    """A matrix U of shape (D, d); what it holds never changes, so that copies of a network share it."""

    shape: tuple[int, int]
    dtype: torch.dtype

    def apply(self, v: Tensor) -> Tensor:  # (d,) -> (D,)
        """U v."""
        raise NotImplementedError

    def adjoint(self, g: Tensor) -> Tensor:  # (D,) -> (d,)
        """U' g."""
        raise NotImplementedError

    @property
    def memory(self) -> int:
        """The bytes that it holds."""
        return sum(_bytes(tensor) for tensor in self._tensors().values())

    def to(self: P, device: torch.device, dtype: torch.dtype) -> P:
        """The same numbers there and in that type; itself if they are already."""
        moved = {k: t.to(device, dtype if t.is_floating_point() else t.dtype) for k, t in self._tensors().items()}
        if all(moved[key] is tensor for key, tensor in self._tensors().items()):
            return self
        new = copy.copy(self)
        vars(new).update(moved, dtype=dtype)
        return new

    def _tensors(self) -> dict[str, Tensor]:
        return {key: value for key, value in vars(self).items() if isinstance(value, Tensor)}

    def __deepcopy__(self: P, memo: Any) -> P:
        return self


def _bytes(tensor: Tensor) -> int:
    if tensor.layout == torch.sparse_csr:
        return _bytes(tensor.values()) + _bytes(tensor.col_indices()) + _bytes(tensor.crow_indices())
    return tensor.numel() * tensor.element_size()


class Dense(Projection):
    """Entries N(0, 1), each column divided by its length."""

    def __init__(self, sizes: Sequence[int], dimensions: int, seed: int, dtype: torch.dtype = torch.float32) -> None:
        self.shape, self.dtype = (sum(sizes), dimensions), dtype
        stream = Stream(seed, "projection/dense")
        self.columns = self._room()
        for column in self.columns:
            normals = stream.normals(self.shape[0])
            column.copy_(torch.from_numpy(normals / math.sqrt(total(normals * normals))))

    def _room(self) -> Tensor:  # (d, D): each column of U in one piece
        try:
            return torch.empty(self.shape[::-1], dtype=self.dtype, device="cpu")
        except RuntimeError as error:
            size = math.prod(self.shape) * self.dtype.itemsize
            raise ValueError(
                f"a dense projection of {self.shape[0]:,} weights on {self.shape[1]:,} dimensions takes {size:,} "
                "bytes, more than there are; use kind='sparse' or 'fastfood'"
            ) from error

    def apply(self, v: Tensor) -> Tensor:
        return v @ self.columns

    def adjoint(self, g: Tensor) -> Tensor:
        return self.columns @ g


class Sparse(Projection):
    """In a block of n rows an entry is +-n^(1/4) with probability 1/sqrt(n), else zero; columns then get length one.

    By default all weights are one block, n = D. With `per_tensor` each tensor is one (as in the code of Li et al.):
    the entries then have the same variance everywhere, but small tensors have more that are not zero. A column that
    would be empty (only where D is a handful) is drawn again.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        dimensions: int,
        seed: int,
        dtype: torch.dtype = torch.float32,
        per_tensor: bool = False,
    ) -> None:
        D, d = self.shape = sum(sizes), dimensions
        self.dtype = dtype
        rows, columns, values = _entries(sizes if per_tensor else [D], d, seed)
        values = values / np.sqrt(np.bincount(columns, values * values, minlength=d))[columns]
        self.matrix = _csr(rows, columns, values, (D, d), dtype)
        self.transposed = _csr(columns, rows, values, (d, D), dtype)  # both orders, for the speed of both products

    def apply(self, v: Tensor) -> Tensor:
        return _product(self.matrix, v)

    def adjoint(self, g: Tensor) -> Tensor:
        return _product(self.transposed, g)


def _entries(blocks: Sequence[int], dimensions: int, seed: int, attempt: int = 0) -> tuple[Int64, Int64, Float64]:
    """Row, column and value of every entry before the columns are divided by their lengths; no column is empty."""
    rows, columns, values, start = list[Int64](), list[Int64](), list[Float64](), 0
    for index, size in enumerate(blocks):
        name = f"projection/sparse/{attempt}/{index}"
        places = Stream(seed, name).successes(size * dimensions, 1 / math.sqrt(size))  # column after column
        rows.append(start + places % size)
        columns.append(places // size)
        values.append(Stream(seed, f"{name}/signs").signs(len(places)) * math.sqrt(math.sqrt(size)))
        start += size
    parts = np.concatenate(rows), np.concatenate(columns), np.concatenate(values)
    empty = np.flatnonzero(np.bincount(parts[1], minlength=dimensions) == 0)
    if not len(empty):
        return parts
    more_rows, more_columns, more_values = _entries(blocks, len(empty), seed, attempt + 1)
    more = more_rows, empty[more_columns], more_values
    return np.concatenate([parts[0], more[0]]), np.concatenate([parts[1], more[1]]), np.concatenate([parts[2], more[2]])


def _csr(rows: Int64, columns: Int64, values: Float64, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    order = np.lexsort((columns, rows))
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))])
    index = index_dtype(max(*shape, len(rows) + 1))
    return torch.sparse_csr_tensor(
        torch.from_numpy(starts).to(index),
        torch.from_numpy(columns[order]).to(index),
        torch.from_numpy(values[order]).to(dtype),
        shape,
        check_invariants=False,  # they hold by construction
    )


def _product(matrix: Tensor, x: Tensor) -> Tensor:
    """A sparse matrix times a vector: torch's CSR kernel where there is one, else gather and scatter."""
    if csr_works(x.device.type, x.dtype):
        return matrix @ x
    lengths = matrix.crow_indices().diff()
    rows = torch.arange(len(lengths), device=x.device).repeat_interleave(lengths)
    terms = matrix.values() * x.index_select(0, matrix.col_indices())
    return x.new_zeros(len(lengths)).index_add_(0, rows, terms)


class Fastfood(Projection):
    """U = c T H G P H B (Le et al. 2013): one transform of length L = 2^ceil(log2 D) for all weights together.

    B pads v with zeros and gives it random signs, H is the Hadamard matrix, P a random permutation, G a diagonal of
    N(0, 1), T keeps the first D entries; c = 1 / sqrt(D sum G^2) makes the mean square of a column's length one.
    """

    def __init__(self, sizes: Sequence[int], dimensions: int, seed: int, dtype: torch.dtype = torch.float32) -> None:
        self.shape, self.dtype = (sum(sizes), dimensions), dtype
        length = Hadamard().padded(self.shape[0])
        stream = Stream(seed, "projection/fastfood")
        self.order = torch.from_numpy(stream.permutation(length)).to(index_dtype(length))
        normals = stream.normals(length)
        # our transforms are orthonormal, H / sqrt(L) each: hence the factor L
        gains = normals * (length / math.sqrt(self.shape[0] * total(normals * normals)))
        self.gains = torch.from_numpy(gains).to(dtype)
        self.signs = torch.from_numpy(stream.signs(dimensions)).to(dtype)  # of what is not padding

    def apply(self, v: Tensor) -> Tensor:
        mixed = Hadamard().apply(self._padded(v * self.signs)).index_select(0, self.order)
        return Hadamard().apply(mixed * self.gains)[: self.shape[0]]

    def adjoint(self, g: Tensor) -> Tensor:
        mixed = Hadamard().apply(self._padded(g)) * self.gains
        back = torch.empty_like(mixed)
        back[self.order] = mixed
        return Hadamard().apply(back)[: self.shape[1]] * self.signs

    def _padded(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, len(self.order) - len(x)))


# sizes of the tensors, dimensions, seed, type of the numbers -> U
PROJECTIONS: dict[str, Callable[[Sequence[int], int, int, torch.dtype], Projection]] = {
    "dense": Dense,
    "sparse": Sparse,
    "sparse_per_tensor": functools.partial(Sparse, per_tensor=True),
    "fastfood": Fastfood,
}
