"""The choice that `backend="auto"` makes: the backend that was measured to be the fastest for a layer on this machine.

When a layer meets an input of a new shape, the backends run a few times on random numbers, forwards and, where
gradients are wanted, backwards. They run on a few images of the batch first. If the times differ little, they run on
the whole batch too, because a few images may fit into a cache that the batch does not fit into. The times are kept in
memory and in a file, which belongs to one processor and one version of torch. `dense` is always among the measured
backends, so `auto` never chooses a backend that was measured slower than `dense`.

    DCTPS_TUNE=0             measure nothing and choose by a rule that looks at the sizes of the layer alone
    DCTPS_BACKEND=dense      use this backend wherever a layer says "auto"
    DCTPS_CACHE=folder       keep the times in this folder (default: dctps in the user's cache folder)
"""

import contextlib
import contextvars
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from dctps.base.files import cache_folder, write_atomically
from dctps.base.machine import cpu
from dctps.core.geometry import Geometry
from dctps.core.offsets import Offset
from dctps.core.patch_offset import PatchOffset
from dctps.ops import functional, native
from dctps.ops.bound import BoundLayer
from dctps.ops.weight import offset_by_name, torch_func_is_active

# the measurement
FIRST_IMAGES = 16  # images of a batch that are measured first
MOST_IMAGES = 128  # images of a batch that are measured at most
MOST_ROWS = 512  # rows of a linear layer's input that are measured at most
CLEAR_RATIO = 1.6  # ratio of the slowest to the fastest time on the first images above which these decide
LONGEST_RUN = 100  # milliseconds; where one run on the whole batch would take longer, the first images decide
REPEATS = 5  # timed runs of each backend, after one that is not timed
FILE_FORMAT = 3  # version of the file of times, raised when kernels change so much that old times mislead
# the rule without a measurement
LARGEST_DENSE = 1 << 24  # weights of a layer above which no dense weight is built, not even to measure it
FEW_WEIGHTS = 1 << 11  # weights of a layer up to which `dense` is faster than the native kernels
FEW_WEIGHTS_TORCH = 1 << 17  # weights of a layer up to which `dense` is faster than the backend `torch`
HIGH_DENSITY = 0.1  # density above which `dense` is the fastest backend


class Case(NamedTuple):
    """All that the times of a layer depend on; layers and batches of nearly the same size share a case."""

    geometry: Geometry
    nnz_class: int  # `nnz_class` of the layer's nnz
    offset: str  # name of the offset, "" without one
    shape: tuple[int, ...]  # (batch, *spatial) of the input that is measured
    channels_last: bool
    dtype: torch.dtype
    threads: int
    gradients: bool  # whether the gradients of values and alpha are wanted
    input_gradient: bool


Times = dict[str, float]  # backend -> milliseconds

_measuring_is_off = contextvars.ContextVar("measuring_is_off", default=False)
_lock = threading.RLock()
_times: dict[Case, Times] = {}  # times that this process has used
_preferred_changes = 0  # how often `_preferred` has changed
_preferred: dict[str, Times] = {}  # times by the name of a case, which come before those in the file


def choose(x: Tensor, nnz: int, offset: Offset | None, geometry: Geometry) -> str:
    """Return the backend that a layer with the backend `auto` uses for the input x."""
    forced = os.environ.get("DCTPS_BACKEND", functional.AUTO)
    if forced != functional.AUTO:
        functional.check_backend(forced)
        return forced
    if not _can_measure(x, offset, geometry):
        return backend_by_rule(geometry, nnz, x.device.type)
    times = measured_times(_case_of(x, nnz, offset, geometry))
    timed = [backend for backend in functional.backends() if math.isfinite(times.get(backend, math.inf))]
    return min(timed, key=lambda backend: times[backend]) if timed else backend_by_rule(geometry, nnz)


def settings() -> tuple[object, ...]:
    """Return all that `choose` depends on beside its arguments, gradients, autocast and the number of threads."""
    return _environment.get(_FORCED), _environment.get(_TUNE), _measuring_is_off.get(), _preferred_changes


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


def _can_measure(x: Tensor, offset: Offset | None, geometry: Geometry) -> bool:
    if torch.compiler.is_compiling() or isinstance(x, FakeTensor) or torch_func_is_active():
        return False
    if torch._C._get_tracing_state() is not None:  # a trace would record the measurement, too
        return False
    if _get_current_dispatch_mode() is not None:  # a mode that counts operations would count the measurement, too
        return False
    if os.environ.get("DCTPS_TUNE") == "0" or _measuring_is_off.get():
        return False
    if x.device.type != "cpu" or x.numel() == 0 or math.prod(geometry.weight_shape) > LARGEST_DENSE:
        return False
    return offset is None or isinstance(offset, PatchOffset)


def _case_of(x: Tensor, nnz: int, offset: Offset | None, geometry: Geometry) -> Case:
    autocast = torch.is_autocast_enabled("cpu") and x.dtype != torch.float64
    gradients = torch.is_grad_enabled()
    return Case(
        geometry,
        nnz_class=nnz_class(nnz),
        offset=offset.name if isinstance(offset, PatchOffset) else "",
        shape=(_measured_batch(len(x), geometry), *x.shape[2:]),
        channels_last=is_channels_last(x),
        dtype=torch.get_autocast_dtype("cpu") if autocast else x.dtype,
        threads=torch.get_num_threads(),
        gradients=gradients,
        input_gradient=gradients and x.requires_grad,
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


def measured_times(case: Case) -> Times:
    """Return the milliseconds of every backend: from memory, from a resumed run, from the file, or measured now."""
    with _lock:
        if case not in _times:
            name = _name_of(case)
            times = _preferred.get(name) or _read_file().get(name)
            if not times:
                times = _measure(case)
                _write_file(_read_file() | {name: times})
            _times[case] = times
        return _times[case]


def used_times() -> dict[str, Times]:
    """Return all times that this process has used, by the names of their cases; a run saves them for its resumption."""
    with _lock:
        return {_name_of(case): times for case, times in _times.items()}


def prefer_times(times_by_name: dict[str, Times]) -> None:
    """Use these times before any other, so that a resumed run chooses the same backends as before."""
    global _preferred_changes
    with _lock:
        _preferred.update(times_by_name)
        _preferred_changes += 1
        _times.clear()


# --- the measurement ------------------------------------------------------------------------------------------------


def _measure(case: Case) -> Times:
    """Measure `dense` and its rival, in isolation from the caller's inference mode, autocast, hooks and device."""
    backends = ["dense", "torch" if native.kernels is None else "native"]
    with (
        torch.inference_mode(False),
        torch.autocast("cpu", enabled=False),
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor),
        torch.device("cpu"),
    ):
        if not case.geometry.axes or case.shape[0] <= FIRST_IMAGES:
            return _time_backends(case, backends)
        times = _time_backends(case._replace(shape=(FIRST_IMAGES, *case.shape[1:])), backends)
        slowest, fastest = max(times.values()), min(times.values())
        if slowest > CLEAR_RATIO * fastest or slowest * case.shape[0] > LONGEST_RUN * FIRST_IMAGES:
            return times
        return _time_backends(case, backends)


def _time_backends(case: Case, backends: list[str]) -> Times:
    """Return the shortest run of each backend, infinite for a backend that fails, for example for want of memory.

    The backends take turns, so that whatever else the machine does slows all of them alike.
    """
    times = dict.fromkeys(backends, math.inf)
    runs = {backend: _layer_run(case, backend) for backend in backends}
    for is_timed in [False] + [True] * REPEATS:
        for backend, run in list(runs.items()):
            try:
                milliseconds = _milliseconds(run)
            except (RuntimeError, ValueError, MemoryError):
                del runs[backend]
                times[backend] = math.inf
                continue
            if is_timed:  # the shortest run is the least disturbed one
                times[backend] = min(times[backend], milliseconds)
    return times


def _milliseconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def _layer_run(case: Case, backend: str) -> Callable[[], None]:
    """Return a function that runs a layer of this case on random numbers, forwards and, if wanted, backwards."""
    g, generator = case.geometry, torch.Generator("cpu").manual_seed(0)
    layout = torch.channels_last if case.channels_last else torch.contiguous_format

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(case.dtype)

    x = draw(case.shape[0], g.channels, *case.shape[1:]).contiguous(memory_format=layout)
    x.requires_grad_(case.input_gradient)
    size = math.prod(g.weight_shape)
    nnz = min(size, round(2 ** (case.nnz_class / 2)))
    positions = torch.randperm(size, generator=generator)[:nnz].sort().values.to(torch.int32)
    values = draw(nnz).requires_grad_(case.gradients)
    offset = offset_by_name(case.offset, g.weight_shape)
    alpha = None if offset is None else torch.ones((), dtype=case.dtype, requires_grad=case.gradients)
    wanted = [t for t in (x, values, alpha) if t is not None and t.requires_grad]

    layer = BoundLayer(offset, g)

    def run() -> None:
        with torch.set_grad_enabled(case.gradients):
            y = layer.multiply(x, values, positions, alpha, None, backend, lambda _: backend)
            if wanted:
                torch.autograd.grad(y, wanted, torch.ones_like(y))

    return run


# --- the file -------------------------------------------------------------------------------------------------------


def cache_file() -> Path:
    """Return the path of the file with the times of this processor, instruction set and version of torch."""
    machine = "".join(c if c.isalnum() else "_" for c in f"{cpu()}-{native.instruction_set()}-torch{torch.__version__}")
    return cache_folder() / f"tuning-{FILE_FORMAT}-{machine}.json"


def _name_of(case: Case) -> str:
    """Return the name of a case in the file and in the state of a run."""
    g = case.geometry
    parts: list[object] = [g.pack(), case.nnz_class, case.offset or "none", case.shape, case.channels_last, case.dtype]
    parts += [case.threads, case.gradients, case.input_gradient]
    return " ".join(str(part).replace(" ", "") for part in parts)


def _read_file() -> dict[str, Times]:
    try:
        content = json.loads(cache_file().read_text())
        return {str(name): {str(b): float(ms) for b, ms in times.items()} for name, times in content.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}  # a missing or damaged file means that everything is measured again


def _write_file(times_by_name: dict[str, Times]) -> None:
    try:
        cache_file().parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cache_file(), lambda path: path.write_text(json.dumps(times_by_name, indent=0)))
    except OSError:
        pass  # where the folder cannot be written, the next process measures again
