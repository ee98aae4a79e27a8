"""Fixed random D x d matrices U whose columns have length one: bases of a random subspace of all weights together.

There are three kinds (Li et al. 2018, section S7), each applied in both directions, U v and U' g:

    kind       what it is                                                   bytes (float32)    time
    dense      N(0, 1), each column divided by its length                   4 D d              D d
    sparse     one entry in sqrt(D) is not zero, +-c in each column         16 d sqrt(D)       d sqrt(D)
    fastfood   H G P H B: Hadamard, normal, permutation, Hadamard, signs    8 L + 4 d          L log L

L is the smallest power of two that is not below D. `sparse` also holds where its rows and columns begin, in 4 (D + d)
bytes.

The columns of the first two kinds have length one up to rounding. Those of fastfood nearly have: for the 61,510 weights
of LeNet their length is within 0.003 of one. U follows from the sizes and the seed (core/random.py), so that no file
needs to hold it. A smaller number of dimensions gives the first columns of the same matrix.
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
    """A matrix U of shape (D, d). Its numbers never change, so all copies of a network share it."""

    shape: tuple[int, int]
    dtype: torch.dtype

    def apply(self, v: Tensor) -> Tensor:  # (d,) -> (D,)
        """Return U v."""
        raise NotImplementedError

    def adjoint(self, g: Tensor) -> Tensor:  # (D,) -> (d,)
        """Return U' g."""
        raise NotImplementedError

    @property
    def memory(self) -> int:
        """The number of bytes that the matrix takes."""
        return sum(_bytes(tensor) for tensor in self._tensors().values())

    def to(self: P, device: torch.device, dtype: torch.dtype) -> P:
        """Return the matrix on this device and in this type: itself if it is there already, else a copy."""
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
    """A dense U: entries from N(0, 1), each column divided by its length."""

    def __init__(self, sizes: Sequence[int], dimensions: int, seed: int, dtype: torch.dtype = torch.float32) -> None:
        self.shape, self.dtype = (sum(sizes), dimensions), dtype
        stream = Stream(seed, "projection/dense")
        self.columns = self._empty_columns()
        for column in self.columns:
            normals = stream.normals(self.shape[0])
            column.copy_(torch.from_numpy(normals / math.sqrt(total(normals * normals))))

    def _empty_columns(self) -> Tensor:  # (d, D), so that each column of U is contiguous
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
    """A sparse U: in a block of n rows an entry is +-n^(1/4) with probability 1/sqrt(n), else zero.

    Then each column is divided by its length. By default all weights are one block, n = D. With `per_tensor` each
    tensor is a block, as in the code of Li et al.: the entries then have the same variance everywhere, but small
    tensors have a larger fraction of entries that are not zero. A column without any such entry, which happens only for
    very small D, is drawn again.
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
        self.transposed = _csr(columns, rows, values, (d, D), dtype)  # U' too, so that both products are fast

    def apply(self, v: Tensor) -> Tensor:
        return _product(self.matrix, v)

    def adjoint(self, g: Tensor) -> Tensor:
        return _product(self.transposed, g)


def _entries(blocks: Sequence[int], dimensions: int, seed: int, attempt: int = 0) -> tuple[Int64, Int64, Float64]:
    """Return row, column and value of every entry, before columns are divided by their lengths; none is empty."""
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
    """Return a matrix in torch's CSR format from the rows, columns and values of its entries, in any order."""
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
    """Return a CSR matrix times a vector, by torch's kernel where there is one, else by gather and scatter."""
    if csr_works(x.device.type, x.dtype):
        return matrix @ x
    lengths = matrix.crow_indices().diff()
    rows = torch.arange(len(lengths), device=x.device).repeat_interleave(lengths)
    terms = matrix.values() * x.index_select(0, matrix.col_indices())
    return x.new_zeros(len(lengths)).index_add_(0, rows, terms)


class Fastfood(Projection):
    """A structured U = c T H G P H B (Le et al. 2013), by transforms of length L = 2^ceil(log2 D) over all weights.

    B gives v random signs and pads it with zeros, H is the Hadamard matrix, P a random permutation, G a diagonal matrix
    of N(0, 1), and T keeps the first D entries. c = 1 / sqrt(D sum G^2) makes the mean square of a column's length one.
    """

    def __init__(self, sizes: Sequence[int], dimensions: int, seed: int, dtype: torch.dtype = torch.float32) -> None:
        self.shape, self.dtype = (sum(sizes), dimensions), dtype
        length = Hadamard().padded(self.shape[0])
        stream = Stream(seed, "projection/fastfood")
        self.order = torch.from_numpy(stream.permutation(length)).to(index_dtype(length))
        normals = stream.normals(length)
        # The two transforms are orthonormal, H / sqrt(L) each, which the factor L undoes.
        gains = normals * (length / math.sqrt(self.shape[0] * total(normals * normals)))
        self.gains = torch.from_numpy(gains).to(dtype)
        self.signs = torch.from_numpy(stream.signs(dimensions)).to(dtype)  # the padding needs none

    def apply(self, v: Tensor) -> Tensor:
        mixed = Hadamard().apply(self._padded(v * self.signs)).index_select(0, self.order)
        return Hadamard().apply(mixed * self.gains)[: self.shape[0]]

    def adjoint(self, g: Tensor) -> Tensor:
        mixed = Hadamard().apply(self._padded(g)) * self.gains
        back = torch.empty_like(mixed)
        back[self.order] = mixed
        return Hadamard().apply(back)[: self.shape[1]] * self.signs

    def _padded(self, x: Tensor) -> Tensor:
        """Return x with zeros behind it, up to the length L."""
        return F.pad(x, (0, len(self.order) - len(x)))


PROJECTIONS: dict[str, Callable[[Sequence[int], int, int, torch.dtype], Projection]] = {
    "dense": Dense,
    "sparse": Sparse,
    "sparse_per_tensor": functools.partial(Sparse, per_tensor=True),
    "fastfood": Fastfood,
}
"""The kinds of U by name: each is made from the sizes of the weight tensors, the dimensions, a seed and a dtype."""
