"""The sparse part: y = S x, x' = S' y and the gradient of S at its support only, for products and convolutions.

A convolution is a sum over kernel positions t of products S_t X_t, where X_t is the input as kernel position t sees
it, channels first: (channels, batch * outputs). Only channels that S_t reads and filters that it writes are touched.
Weights and their gradients cost O(nnz) memory; no dense weight, mask or gradient exists at any moment.

Each product has two ways: torch's CSR kernels where the device has them, else gather and scatter.
"""

import dataclasses
import functools
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from dctps.geometry import Geometry

# torch says so once per process whenever a CSR tensor is made; ours are temporaries that no user ever sees
warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")

SCRATCH = 1 << 22  # elements of the temporaries that gather and scatter may use


def forward(x: Tensor, values: Tensor, positions: Tensor, geometry: Geometry) -> Tensor:
    """S x: (batch, channels, *spatial) -> (batch, filters, *output)."""
    output = geometry.output_size(x.shape[2:])
    source = geometry.padded(x).transpose(0, 1)  # (channels, batch, *padded)
    out = x.new_zeros(geometry.filters, len(x), *output)
    for tap, window in _taps(positions, geometry, output):
        seen = source[window].index_select(0, tap.channels).flatten(1)
        part = product(tap.matrix(values), seen)
        out.index_add_(0, tap.filters, part.view(len(tap.filters), *out.shape[1:]))
    return out.transpose(0, 1)


def adjoint(y: Tensor, values: Tensor, positions: Tensor, geometry: Geometry, spatial: tuple[int, ...]) -> Tensor:
    """S' y: (batch, filters, *output) -> (batch, channels, *spatial)."""
    source = y.transpose(0, 1)
    padded = [s + 2 * p for s, p in zip(spatial, geometry.padding, strict=True)]
    out = y.new_zeros(geometry.channels, len(y), *padded)
    for tap, window in _taps(positions, geometry, y.shape[2:]):
        seen = source.index_select(0, tap.filters)
        part = product(tap.matrix(values).transposed(), seen.flatten(1))
        out[window].index_add_(0, tap.channels, part.view(len(tap.channels), *seen.shape[1:]))
    return geometry.unpadded(out.transpose(0, 1))


def sampled_gradient(y: Tensor, x: Tensor, positions: Tensor, geometry: Geometry) -> Tensor:
    """dL/dvalues: the entries at `positions` of the weight gradient, for a gradient y of the output and an input x."""
    source, grads = geometry.padded(x).transpose(0, 1), y.transpose(0, 1)
    out = y.new_zeros(len(positions))
    for tap, window in _taps(positions, geometry, y.shape[2:]):
        seen = source[window].index_select(0, tap.channels).flatten(1)
        written = grads.index_select(0, tap.filters).flatten(1)
        out[tap.entries] = sampled(tap.matrix(out), written, seen)
    return out


@dataclasses.dataclass(frozen=True)
class Coo:
    """A sparse matrix by coordinates, sorted by row."""

    rows: Tensor
    cols: Tensor
    values: Tensor
    shape: tuple[int, int]

    def csr(self) -> Tensor:
        starts = torch.searchsorted(self.rows, torch.arange(self.shape[0] + 1, device=self.rows.device))
        return _csr(starts, self.cols, self.values, self.shape)

    def transposed(self) -> "Coo":
        order = torch.argsort(self.cols, stable=True)
        return Coo(self.cols[order], self.rows[order], self.values[order], (self.shape[1], self.shape[0]))


@dataclasses.dataclass(frozen=True)
class Tap:
    """The part S_t of S at one kernel position, on the channels and filters that it uses."""

    entries: Tensor  # (nnz_t,) which of the values
    filters: Tensor  # the filters in use, ascending; likewise channels
    channels: Tensor
    rows: Tensor  # (nnz_t,) index into `filters`; likewise cols
    cols: Tensor

    def matrix(self, values: Tensor) -> Coo:
        return Coo(self.rows, self.cols, values[self.entries], (len(self.filters), len(self.channels)))


def _taps(positions: Tensor, geometry: Geometry, output: tuple[int, ...]) -> Iterator[tuple[Tap, tuple[slice, ...]]]:
    """The non-empty taps, each with the window of the padded input that it sees."""
    flat = positions.long()
    filters, inner = flat // (geometry.group_channels * geometry.taps), flat % (geometry.group_channels * geometry.taps)
    group = filters // (geometry.filters // geometry.groups)
    channels = group * geometry.group_channels + inner // geometry.taps
    for index, window in enumerate(geometry.windows(output)):
        entries = (inner % geometry.taps == index).nonzero().flatten()
        if len(entries):
            used_filters, rows = torch.unique(filters[entries], return_inverse=True)
            used_channels, cols = torch.unique(channels[entries], return_inverse=True)
            yield Tap(entries, used_filters, used_channels, rows, cols), (slice(None), slice(None), *window)


# --- the two products, each in two ways -----------------------------------------------------------------------------


def product(matrix: Coo, x: Tensor) -> Tensor:  # (rows, cols) @ (cols, L) -> (rows, L)
    """S x for a sparse S."""
    if csr_works(x.device.type, x.dtype):
        result: Tensor = matrix.csr() @ x
        return result
    out = x.new_zeros(matrix.shape[0], x.shape[1])
    for part in _chunks(matrix, x.shape[1]):
        out.index_add_(0, matrix.rows[part], x.index_select(0, matrix.cols[part]) * matrix.values[part, None])
    return out


def sampled(matrix: Coo, y: Tensor, x: Tensor) -> Tensor:  # (rows, L), (cols, L) -> (nnz,)
    """The entries of y x' at the places of the matrix, in the order of its values."""
    if csr_works(x.device.type, x.dtype):
        entries: Tensor = torch.sparse.sampled_addmm(matrix.csr(), y, x.T, beta=0.0)
        return entries.values()
    parts = [y[matrix.rows[p]].mul_(x[matrix.cols[p]]).sum(1) for p in _chunks(matrix, x.shape[1])]
    return torch.cat([y.new_empty(0), *parts])


def _chunks(matrix: Coo, width: int) -> Iterator[slice]:
    step = max(1, SCRATCH // max(1, width))
    return (slice(i, i + step) for i in range(0, len(matrix.rows), step))


@functools.cache
def csr_works(device: str, dtype: torch.dtype) -> bool:
    """Whether this build of torch multiplies CSR matrices there (a CPU build without MKL does not)."""
    try:
        index = torch.arange(2, device=device)
        one = _csr(index, index[:1], torch.ones(1, dtype=dtype, device=device), (1, 1))
        dense = torch.ones(1, 1, dtype=dtype, device=device)
        torch.sparse.sampled_addmm(one, one @ dense, dense, beta=0.0)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def _csr(starts: Tensor, cols: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    # the invariants hold by construction: a support is sorted, distinct and in range
    return torch.sparse_csr_tensor(starts, cols, values, shape, check_invariants=False)
