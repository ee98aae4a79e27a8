"""The sparse part: y = S x, x' = S' y and the gradient of S at its support only, for products and convolutions.

A convolution is a sum over kernel positions t of products S_t X_t, where X_t is the input as kernel position t sees
it, channels first: (channels, batch * outputs). Only channels that S_t reads and filters that it writes are touched.
Weights and their gradients cost O(nnz) memory; no dense weight, mask or gradient exists at any moment.

Each product has two ways: torch's CSR kernels where the device has them, else gather and scatter.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from dctps.core.geometry import Geometry

# torch says so once per process whenever a CSR tensor is made; ours are temporaries that no user ever sees
warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")

T = TypeVar("T")

SCRATCH = 1 << 22  # elements of the temporaries that gather and scatter may use


def forward(x: Tensor, values: Tensor, positions: Tensor, geometry: Geometry) -> Tensor:
    """S x: (batch, channels, *spatial) -> (batch, filters, *output)."""
    output = geometry.output_size(x.shape[2:])
    out = x.new_zeros(geometry.filters, len(x), *output)
    source = _channels_first(geometry.padded(x))
    for tap, window in _windows(positions, geometry, output):
        seen = source[window].index_select(0, tap.channels).flatten(1)
        part = product(tap.pattern, values[tap.entries], seen)
        out.index_add_(0, tap.filters, part.view(len(tap.filters), *out.shape[1:]))
    return out.transpose(0, 1)


def adjoint(y: Tensor, values: Tensor, positions: Tensor, geometry: Geometry, spatial: tuple[int, ...]) -> Tensor:
    """S' y: (batch, filters, *output) -> (batch, channels, *spatial)."""
    padded = [s + 2 * p for s, p in zip(spatial, geometry.padding, strict=True)]
    out = y.new_zeros(geometry.channels, len(y), *padded)
    source = _channels_first(y)
    for tap, window in _windows(positions, geometry, y.shape[2:]):
        seen = source.index_select(0, tap.filters)
        part = product(tap.transposed, values[tap.transposed_entries], seen.flatten(1))
        out[window].index_add_(0, tap.channels, part.view(len(tap.channels), *seen.shape[1:]))
    return geometry.unpadded(out.transpose(0, 1))


def sampled_gradient(y: Tensor, x: Tensor, positions: Tensor, geometry: Geometry) -> Tensor:
    """dL/dvalues: the entries at `positions` of the weight gradient, for a gradient y of the output and an input x."""
    source, grads = _channels_first(geometry.padded(x)), _channels_first(y)
    out = y.new_zeros(len(positions))
    for tap, window in _windows(positions, geometry, y.shape[2:]):
        seen = source[window].index_select(0, tap.channels).flatten(1)
        written = grads.index_select(0, tap.filters).flatten(1)
        out[tap.entries] = sampled(tap.pattern, written, seen)
    return out


def _channels_first(x: Tensor) -> Tensor:  # (batch, channels, ...) -> (channels, batch, ...)
    return x.transpose(0, 1).contiguous()


# --- S, kernel position by kernel position -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Pattern:
    """The places of a sparse matrix, sorted by row: coordinates, and where each row starts."""

    rows: Tensor
    cols: Tensor
    starts: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, rows: Tensor, cols: Tensor, shape: tuple[int, int]) -> "Pattern":
        starts = torch.searchsorted(rows, torch.arange(shape[0] + 1, device=rows.device))
        return cls(rows, cols, starts, shape)

    def csr(self, values: Tensor) -> Tensor:
        # the invariants hold by construction: a support is sorted, distinct and in range
        return torch.sparse_csr_tensor(self.starts, self.cols, values, self.shape, check_invariants=False)


@dataclasses.dataclass(frozen=True)
class Tap:
    """The part S_t of S at one kernel position, on the channels and filters that it uses."""

    index: int  # t
    filters: Tensor  # the filters in use, ascending; likewise channels
    channels: Tensor
    pattern: Pattern  # over (filters, channels)
    entries: Tensor  # (nnz_t,) which of the values; in the order of the pattern
    transposed: Pattern  # over (channels, filters)
    transposed_entries: Tensor


def _windows(positions: Tensor, geometry: Geometry, output: Sequence[int]) -> Iterator[tuple[Tap, tuple[slice, ...]]]:
    """The non-empty taps, each with the window of the padded input that it sees."""
    windows = list(geometry.windows(output))
    for tap in taps_of(positions, geometry):
        yield tap, (slice(None), slice(None), *windows[tap.index])


def _make_taps(positions: Tensor, geometry: Geometry) -> list[Tap]:
    flat, patch = positions.long(), geometry.group_channels * geometry.taps
    filters, inner = flat // patch, flat % patch
    group = filters // (geometry.filters // geometry.groups)
    channels = group * geometry.group_channels + inner // geometry.taps
    taps = []
    for index in range(geometry.taps):
        entries = (inner % geometry.taps == index).nonzero().flatten()
        if len(entries):
            taps.append(_tap(index, entries, filters[entries], channels[entries]))
    return taps


def _tap(index: int, entries: Tensor, filters: Tensor, channels: Tensor) -> Tap:
    used_filters, rows = torch.unique(filters, return_inverse=True)
    used_channels, cols = torch.unique(channels, return_inverse=True)
    shape = len(used_filters), len(used_channels)
    order = torch.argsort(cols, stable=True)
    transposed = Pattern.of(cols[order], rows[order], shape[::-1])
    return Tap(index, used_filters, used_channels, Pattern.of(rows, cols, shape), entries, transposed, entries[order])


_derived = (
    WeakIdKeyDictionary()
)  # positions -> {kind: (the geometry and positions that it was made for, what was made)}


def derived(positions: Tensor, geometry: Geometry, kind: str, make: Callable[[Tensor], T]) -> T:
    """What `make(positions)` gave, kept for as long as the tensor of positions lives.

    It is used only if the positions are still the same numbers, so loading or rewiring a layer in place can never meet
    a stale one; a layer that is moved or copied has another tensor.
    """
    kinds = _derived.setdefault(positions, {})
    known_geometry, known_positions, made = kinds.get(kind, (None, None, None))
    if known_geometry != geometry or not torch.equal(known_positions, positions):
        made = make(positions)
        kinds[kind] = geometry, positions.clone(), made
    result: T = made
    return result


def taps_of(positions: Tensor, geometry: Geometry) -> list[Tap]:
    """The parts S_t of S, kernel position by kernel position."""
    return derived(positions, geometry, "taps", lambda places: _make_taps(places, geometry))


# --- the two products, each in two ways -----------------------------------------------------------------------------


def product(pattern: Pattern, values: Tensor, x: Tensor) -> Tensor:  # (rows, cols) @ (cols, L) -> (rows, L)
    """S x for the sparse S with these values."""
    if csr_works(x.device.type, x.dtype):
        result: Tensor = pattern.csr(values) @ x
        return result
    out = x.new_zeros(pattern.shape[0], x.shape[1])
    for part in _chunks(pattern, x.shape[1]):
        out.index_add_(0, pattern.rows[part], x.index_select(0, pattern.cols[part]) * values[part, None])
    return out


def sampled(pattern: Pattern, y: Tensor, x: Tensor) -> Tensor:  # (rows, L), (cols, L) -> (nnz,)
    """The entries of y x' at the places of the pattern."""
    if csr_works(x.device.type, x.dtype):
        places = pattern.csr(y.new_zeros(len(pattern.rows)))
        entries: Tensor = torch.sparse.sampled_addmm(places, y, x.T, beta=0.0)
        return entries.values()
    parts = [y[pattern.rows[p]].mul_(x[pattern.cols[p]]).sum(1) for p in _chunks(pattern, x.shape[1])]
    return torch.cat([y.new_empty(0), *parts])


def _chunks(pattern: Pattern, width: int) -> Iterator[slice]:
    step = max(1, SCRATCH // max(1, width))
    return (slice(i, i + step) for i in range(0, len(pattern.rows), step))


@functools.cache
def csr_works(device: str, dtype: torch.dtype) -> bool:
    """Whether this build of torch multiplies CSR matrices there (a CPU build without MKL does not)."""
    try:
        zero, one = torch.zeros(1, dtype=torch.int64, device=device), torch.ones(1, 1, dtype=dtype, device=device)
        places = Pattern.of(zero, zero, (1, 1))
        torch.sparse.sampled_addmm(places.csr(one[0]), places.csr(one[0]) @ one, one, beta=0.0)
    except (RuntimeError, NotImplementedError):
        return False
    return True
