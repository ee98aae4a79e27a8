"""The choice that `backend="auto"` makes: the backend that was measured to be the fastest for a layer on this machine.

When a layer meets an input of a new shape, `measurement.py` measures `dense` and its rival. `stored_times.py` keeps the
times. `dense` is always among the measured backends, so `auto` never chooses a backend that was measured slower than
`dense`.

    DCTPS_TUNE=0             measure nothing and choose by a rule that looks at the sizes of the layer alone
    DCTPS_BACKEND=dense      use this backend wherever a layer says "auto"
"""

import contextlib
import contextvars
import math
import os
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from dctps.core.geometry import Geometry
from dctps.ops import functional, native, stored_times
from dctps.ops.measurement import Case, Times, can_measure_on, candidates
from dctps.ops.stored_times import times_of

MOST_IMAGES = 128  # images of a batch that are measured at most
MOST_ROWS = 512  # rows of a linear layer's input that are measured at most
# the rule without a measurement
LARGEST_DENSE = 1 << 24  # weights of a layer above which no dense weight is built, not even to measure it
FEW_WEIGHTS = 1 << 11  # weights of a layer up to which `dense` is faster than the native kernels
FEW_WEIGHTS_TORCH = 1 << 17  # weights of a layer up to which `dense` is faster than the backend `torch`
HIGH_DENSITY = 0.1  # density above which `dense` is the fastest backend

_measuring_is_off = contextvars.ContextVar("measuring_is_off", default=False)


class Input(NamedTuple):
    """What the choice depends on in an input (batch, channels, *spatial)."""

    shape: tuple[int, ...]
    channels_last: bool
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool


def choose_for(x: Input, nnz: int, offset: str | None, geometry: Geometry, *, may_measure: bool) -> str:
    """Return the choice for a layer whose offset has this name; None stands for an offset without a name."""
    if backend := forced():
        return backend
    times: Times = {}
    if offset is not None and _times_decide(x, geometry):
        times = times_of(_case_of(x, nnz, offset, geometry), may_measure=may_measure)
    timed = [backend for backend in candidates(x.device.type) if math.isfinite(times.get(backend, math.inf))]
    return min(timed, key=lambda backend: times[backend]) if timed else backend_by_rule(geometry, nnz, x.device.type)


def forced() -> str:
    """Return the backend that DCTPS_BACKEND asks for, or nothing."""
    backend = os.environ.get("DCTPS_BACKEND", functional.AUTO)
    functional.check_backend(backend)
    return "" if backend == functional.AUTO else backend


def settings() -> tuple[object, ...]:
    """Return all that a choice depends on beside its arguments, gradients, autocast and the number of threads."""
    return _environment.get(_FORCED), _environment.get(_TUNE), _measuring_is_off.get(), stored_times.preferred_changes()


# `os.environ` translates names and values in each access, which takes longer than a small layer can wait
_environment = os.environ._data  # type: ignore[attr-defined]
_FORCED, _TUNE = (os.environ.encodekey(name) for name in ("DCTPS_BACKEND", "DCTPS_TUNE"))


@contextlib.contextmanager
def by_rule() -> Iterator[None]:
    """Choose by the rule and measure nothing inside of this context, where a measurement would not pay off."""
    token = _measuring_is_off.set(True)
    try:
        yield
    finally:
        _measuring_is_off.reset(token)


def backend_by_rule(geometry: Geometry, nnz: int, device: str = "cpu") -> str:
    """Return the backend by sizes alone: `dense` for few weights and for high densities, else one that builds no W."""
    size = math.prod(geometry.weight_shape)
    compiled = native.kernels is not None and device == "cpu"
    few = FEW_WEIGHTS if compiled else FEW_WEIGHTS_TORCH
    if size <= few or (HIGH_DENSITY * size < nnz and size <= LARGEST_DENSE):
        return "dense"
    return "native" if compiled else "torch"


def _times_decide(x: Input, geometry: Geometry) -> bool:
    """Return whether times decide for this input, and not the rule."""
    if os.environ.get("DCTPS_TUNE") == "0" or _measuring_is_off.get() or not can_measure_on(x.device.type):
        return False
    return math.prod(x.shape) > 0 and math.prod(geometry.weight_shape) <= LARGEST_DENSE


def _case_of(x: Input, nnz: int, offset: str, geometry: Geometry) -> Case:
    kind = x.device.type
    autocast = torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    gradients = torch.is_grad_enabled()
    return Case(
        geometry,
        nnz_class=nnz_class(nnz),
        offset=offset,
        shape=(_measured_batch(x.shape[0], geometry), *x.shape[2:]),
        channels_last=x.channels_last,
        dtype=torch.get_autocast_dtype(kind) if autocast else x.dtype,
        threads=torch.get_num_threads() if kind == "cpu" else 0,
        gradients=gradients,
        input_gradient=gradients and x.requires_grad,
        device=x.device,
    )


def nnz_class(nnz: int) -> int:
    """Return 2 log2(nnz), rounded: supports whose nnz differ by less than about a factor of sqrt(2) share a class."""
    return round(2 * math.log2(max(1, nnz)))


def is_channels_last(x: Tensor) -> bool:
    """Return whether x holds images whose channels are neighbours in memory."""
    return x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


def _measured_batch(batch: int, geometry: Geometry) -> int:
    """Return the batch size that is measured for a batch: the next power of two, but no more than the limit."""
    return min(MOST_IMAGES if geometry.axes else MOST_ROWS, 1 << (batch - 1).bit_length())
