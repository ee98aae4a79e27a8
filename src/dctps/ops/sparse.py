"""The sparse part of a layer: S x, S' y and the gradient of S at its support, for linear layers and convolutions.

A convolution is a sum over kernel positions t of products S_t X_t. X_t is the part of the input that kernel position t
reads, as a matrix (channels, batch * outputs). Only channels that S_t reads and filters that it writes are touched.
Weights and their gradients cost O(nnz) memory: no dense weight, mask or gradient exists at any moment.

Each product is computed by torch's CSR kernels where the device has them, else by gather and scatter.
"""

import dataclasses
import functools
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from dctps.core.geometry import Geometry
from dctps.core.support import Support

# torch warns once per process when a CSR tensor is made; ours are temporary tensors that no user sees
warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")

T = TypeVar("T")

SCRATCH = 1 << 22  # elements of a temporary tensor of gather and scatter


def forward(x: Tensor, values: Tensor, positions: Tensor, geometry: Geometry) -> Tensor:
    """Return S x; it maps (batch, channels, *spatial) to (batch, filters, *output)."""
    output = geometry.output_size(x.shape[2:])
    out = x.new_zeros(geometry.filters, len(x), *output)
    source = _channels_first(geometry.padded(x))
    for tap, window in _windows(positions, geometry, output):
        seen = source[window].index_select(0, tap.channels).flatten(1)
        part = product(tap.pattern, values[tap.entries], seen)
        out.index_add_(0, tap.filters, part.view(len(tap.filters), *out.shape[1:]))
    return out.transpose(0, 1)


def adjoint(y: Tensor, values: Tensor, positions: Tensor, geometry: Geometry, spatial: tuple[int, ...]) -> Tensor:
    """Return S' y; it maps (batch, filters, *output) to (batch, channels, *spatial)."""
    out = y.new_zeros(geometry.channels, len(y), *geometry.padded_size(spatial))
    source = _channels_first(y)
    for tap, window in _windows(positions, geometry, y.shape[2:]):
        seen = source.index_select(0, tap.filters)
        part = product(tap.transposed, values[tap.transposed_entries], seen.flatten(1))
        out[window].index_add_(0, tap.channels, part.view(len(tap.channels), *seen.shape[1:]))
    return geometry.unpadded(out.transpose(0, 1))


def sampled_gradient(y: Tensor, x: Tensor, positions: Tensor, geometry: Geometry) -> Tensor:
    """Return dL/dvalues: the weight gradient at `positions`, for a gradient y of the output and an input x."""
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
    """The places of a sparse matrix, sorted by row: their coordinates, and the index at which each row starts."""

    rows: Tensor
    cols: Tensor
    starts: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, rows: Tensor, cols: Tensor, shape: tuple[int, int]) -> "Pattern":
        """Return the pattern of places that are sorted by row."""
        starts = torch.searchsorted(rows, torch.arange(shape[0] + 1, device=rows.device))
        return cls(rows, cols, starts, shape)

    def csr(self, values: Tensor) -> Tensor:
        """Return the CSR matrix with these values; a support is sorted, distinct and in range, so it needs no check."""
        return torch.sparse_csr_tensor(self.starts, self.cols, values, self.shape, check_invariants=False)


@dataclasses.dataclass(frozen=True)
class Tap:
    """The part S_t of S at one kernel position, restricted to the channels and filters that it uses."""

    index: int  # t
    filters: Tensor  # filters in use, ascending
    channels: Tensor  # channels in use, ascending
    pattern: Pattern  # places of S_t over (filters, channels)
    entries: Tensor  # (nnz_t,) indices into the values, in the order of the pattern
    transposed: Pattern  # places of S_t' over (channels, filters)
    transposed_entries: Tensor  # (nnz_t,) indices into the values, in the order of the transposed pattern


def _windows(positions: Tensor, geometry: Geometry, output: Sequence[int]) -> Iterator[tuple[Tap, tuple[slice, ...]]]:
    """Yield the taps that have values, each with the window of the padded input that it reads."""
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


# id of the positions -> (the positions, weakly; {kind: (shape, a copy of the positions, the object made for both)})
_derived: dict[int, tuple["weakref.ref[Tensor]", dict[str, tuple[Hashable, Tensor, Any]]]] = {}


def derived(positions: Tensor, shape: Hashable, kind: str, make: Callable[[Tensor], T]) -> T:
    """Return `make(positions)`, which is kept for as long as the tensor of positions lives.

    shape: the geometry, or what else the result depends on.

    A kept object is used only if the positions are still the same numbers, so loading or rewiring a layer in place
    never meets a stale one. A layer that is moved or copied has another tensor of positions.
    """
    kinds = _kinds(positions)
    if kind in kinds:
        known_shape, known_positions, made = kinds[kind]
        if (known_shape is shape or known_shape == shape) and torch.equal(known_positions, positions):
            result: T = made
            return result
    made = make(positions)
    kinds[kind] = shape, positions.clone(), made
    return made


def _kinds(positions: Tensor) -> dict[str, tuple[Hashable, Tensor, Any]]:
    """Return what is kept for this tensor of positions; another tensor may have had its id before."""
    key = id(positions)
    kept = _derived.get(key)
    if kept is None or kept[0]() is not positions:
        kept = weakref.ref(positions, lambda dead: _forget(key, dead)), {}
        _derived[key] = kept
    return kept[1]


def _forget(key: int, dead: "weakref.ref[Tensor]") -> None:
    if key in _derived and _derived[key][0] is dead:
        del _derived[key]


def check_positions(positions: Tensor, shape: Sequence[int]) -> None:
    """Raise ValueError unless the positions are those of a support; those that are known to be are not sorted again."""
    if not positions.is_meta:
        derived(positions, tuple(shape), "support", lambda places: Support(tuple(shape), places).nnz)


def taps_of(positions: Tensor, geometry: Geometry) -> list[Tap]:
    """Return the parts S_t of S, kernel position by kernel position; raise ValueError if this is no support."""

    def make(places: Tensor) -> list[Tap]:
        return _make_taps(Support(geometry.weight_shape, places).positions, geometry)

    return derived(positions, geometry, "taps", make)


# --- the two products -----------------------------------------------------------------------------------------------


def product(pattern: Pattern, values: Tensor, x: Tensor) -> Tensor:  # (rows, cols) @ (cols, L) -> (rows, L)
    """Return S x, where S has these values at the places of the pattern."""
    if csr_works(x.device.type, x.dtype):
        result: Tensor = pattern.csr(values) @ x
        return result
    out = x.new_zeros(pattern.shape[0], x.shape[1])
    for part in _chunks(pattern, x.shape[1]):
        out.index_add_(0, pattern.rows[part], x.index_select(0, pattern.cols[part]) * values[part, None])
    return out


def sampled(pattern: Pattern, y: Tensor, x: Tensor) -> Tensor:  # (rows, L), (cols, L) -> (nnz,)
    """Return the entries of y x' at the places of the pattern."""
    if csr_works(x.device.type, x.dtype):
        places = pattern.csr(y.new_zeros(len(pattern.rows)))
        entries: Tensor = torch.sparse.sampled_addmm(places, y, x.T, beta=0.0)
        return entries.values()
    parts = [y[pattern.rows[p]].mul_(x[pattern.cols[p]]).sum(1) for p in _chunks(pattern, x.shape[1])]
    return torch.cat([y.new_empty(0), *parts])


def _chunks(pattern: Pattern, width: int) -> Iterator[slice]:
    """Return slices of the places, so short that rows of this width do not exceed SCRATCH elements."""
    step = max(1, SCRATCH // max(1, width))
    return (slice(i, i + step) for i in range(0, len(pattern.rows), step))


@functools.cache
def csr_works(device: str, dtype: torch.dtype) -> bool:
    """Return whether this build of torch multiplies CSR matrices on the device; a CPU build without MKL does not."""
    try:
        zero, one = torch.zeros(1, dtype=torch.int64, device=device), torch.ones(1, 1, dtype=dtype, device=device)
        places = Pattern.of(zero, zero, (1, 1))
        torch.sparse.sampled_addmm(places.csr(one[0]), places.csr(one[0]) @ one, one, beta=0.0)
    except (RuntimeError, NotImplementedError):
        return False
    return True
