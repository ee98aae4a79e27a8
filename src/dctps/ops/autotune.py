"""`backend="auto"`: the fastest of the correct ways for each layer, measured once on this machine.

The first time a layer meets a shape of input, its ways run a few times on random numbers, forwards and (where
gradients are wanted) backwards: on a small part of the batch, and where that leaves a doubt on all of it, since what
fits a cache is no measure of what does not. The fastest is kept in memory and on disk, per processor, threads and
versions. The dense way (W built, torch's operator) is always among the measured ones: none that is slower is chosen.

    DCTPS_TUNE=0             no measurement: a rule by sizes alone, which depends on nothing but the layer
    DCTPS_BACKEND=dense      this backend wherever a layer says "auto"
    DCTPS_CACHE=folder       where measurements are kept (default: dctps in the user's cache folder)
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

from dctps.base.files import write_atomically
from dctps.base.machine import cpu
from dctps.core.geometry import Geometry
from dctps.core.offsets import Offset, PatchOffset
from dctps.ops import functional, native
from dctps.ops.weight import offset_by_name, transformed

FEW = 16  # images that are measured first
MANY = 128  # images that are measured at most
CLEAR = 1.6  # times faster than dense, or slower, on a few images: then that decides
PATIENCE = 100  # milliseconds of one run on many images, beyond which the few decide all the same
REPEATS = 5  # after one warm-up; the fastest counts
LARGE = 1 << 24  # weights above which no dense weight is built, not even to measure it
ROWS = 512  # of a linear layer's input, at most
FORMAT = 3  # of the file; raised when kernels change so that old measurements mislead


class Case(NamedTuple):
    """What a measurement depends on; supports and batches of nearly one size share it."""

    geometry: Geometry
    size: int  # of the support: 2^(size / 2)
    offset: str
    shape: tuple[int, ...]  # of the input that is measured
    channels_last: bool
    dtype: torch.dtype
    threads: int
    gradients: bool  # of the parameters
    input_gradient: bool


Times = dict[str, float]  # backend -> milliseconds

_by_rule = contextvars.ContextVar("by_rule", default=False)
_lock = threading.RLock()
_known: dict[Case, Times] = {}
_recalled: dict[str, Times] = {}


def choose(x: Tensor, nnz: int, offset: Offset | None, geometry: Geometry) -> str:
    """The backend of a layer that says `auto`, for this input."""
    forced = os.environ.get("DCTPS_BACKEND", functional.AUTO)
    if forced != functional.AUTO:
        functional.check_backend(forced)
        return forced
    if not _can_measure(x, offset, geometry):
        return rule(geometry, nnz, x.device.type)
    times = measured(_case(x, nnz, offset, geometry))
    there = [backend for backend in functional.backends() if math.isfinite(times.get(backend, math.inf))]
    return min(there, key=lambda backend: times[backend]) if there else rule(geometry, nnz)


@contextlib.contextmanager
def by_rule() -> Iterator[None]:
    """No measurements inside: for a forward pass that only looks at a network."""
    token = _by_rule.set(True)
    try:
        yield
    finally:
        _by_rule.reset(token)


def rule(geometry: Geometry, nnz: int, device: str = "cpu") -> str:
    """Without a measurement: dense weights for small or well-filled layers, else never a dense weight."""
    size = math.prod(geometry.weight_shape)
    compiled = native.kernels is not None and device == "cpu"
    if size <= (TINY if compiled else SMALL) or (WELL_FILLED * size < nnz and size <= LARGE):
        return "dense"
    return "native" if compiled else "torch"


TINY = 1 << 11  # weights
SMALL = 1 << 17  # likewise, for torch's own operators
WELL_FILLED = 0.1  # density


def _can_measure(x: Tensor, offset: Offset | None, geometry: Geometry) -> bool:
    if torch.compiler.is_compiling() or isinstance(x, FakeTensor) or transformed():
        return False
    if _get_current_dispatch_mode() is not None:  # as one that counts operations, which would count ours
        return False
    if os.environ.get("DCTPS_TUNE") == "0" or _by_rule.get():
        return False
    if x.device.type != "cpu" or x.numel() == 0 or math.prod(geometry.weight_shape) > LARGE:
        return False
    return offset is None or isinstance(offset, PatchOffset)


def _case(x: Tensor, nnz: int, offset: Offset | None, geometry: Geometry) -> Case:
    autocast = torch.is_autocast_enabled("cpu") and x.dtype != torch.float64
    gradients = torch.is_grad_enabled()
    return Case(
        geometry,
        size=support_size(nnz),
        offset=offset.name if isinstance(offset, PatchOffset) else "",
        shape=(_part(len(x), geometry), *x.shape[2:]),
        channels_last=is_channels_last(x),
        dtype=torch.get_autocast_dtype("cpu") if autocast else x.dtype,
        threads=torch.get_num_threads(),
        gradients=gradients,
        input_gradient=gradients and x.requires_grad,
    )


def support_size(nnz: int) -> int:
    """In steps of the square root of two: supports of nearly one size share a case."""
    return round(2 * math.log2(max(1, nnz)))


def is_channels_last(x: Tensor) -> bool:
    """Whether images have their channels as neighbours in memory."""
    return x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


def _part(batch: int, geometry: Geometry) -> int:
    """How many of a batch stand for it: batches up to the next power of two share a measurement."""
    return min(MANY if geometry.axes else ROWS, 1 << (batch - 1).bit_length())


def measured(case: Case) -> Times:
    """Milliseconds of every backend, from memory, from a run that goes on, from disk or from a measurement made now."""
    with _lock:
        if case not in _known:
            name = _name(case)
            times = _recalled.get(name) or _read().get(name)
            if not times:
                times = _measure(case)
                _write(_read() | {name: times})
            _known[case] = times
        return _known[case]


def choices() -> dict[str, Times]:
    """Every measurement that this process has used; a run keeps them, so as to go on with the same backends."""
    with _lock:
        return {_name(case): times for case, times in _known.items()}


def recall(table: dict[str, Times]) -> None:
    """Use these measurements before any other."""
    with _lock:
        _recalled.update(table)
        _known.clear()


# --- the measurement ------------------------------------------------------------------------------------------------


def _measure(case: Case) -> Times:
    """In surroundings of its own: hooks on saved tensors, autocast, default devices of the caller do not reach in."""
    backends = ["dense", "torch" if native.kernels is None else "native"]
    with (
        torch.inference_mode(False),
        torch.autocast("cpu", enabled=False),
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor),
        torch.device("cpu"),
    ):
        if not case.geometry.axes or case.shape[0] <= FEW:
            return _race(case, backends)
        times = _race(case._replace(shape=(FEW, *case.shape[1:])), backends)
        slow, fast = max(times.values()), min(times.values())
        if slow > CLEAR * fast or slow * case.shape[0] > PATIENCE * FEW:
            return times
        return _race(case, backends)


def _race(case: Case, backends: list[str]) -> Times:
    """The fastest run of each, in turn, so that whatever else the machine does hits all alike.

    Infinite where a backend fails, as for want of memory: the others remain.
    """
    times = dict.fromkeys(backends, math.inf)
    runs = {backend: _trial(case, backend) for backend in backends}
    for warm in [False] + [True] * REPEATS:
        for backend, run in list(runs.items()):
            try:
                taken = _milliseconds(run)
            except (RuntimeError, ValueError, MemoryError):
                del runs[backend]
                times[backend] = math.inf
                continue
            if warm:  # what else a machine does only ever makes a run slower
                times[backend] = min(times[backend], taken)
    return times


def _milliseconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def _trial(case: Case, backend: str) -> Callable[[], None]:
    """A layer of the case's shape on random numbers, forwards and, if wanted, backwards."""
    g, generator = case.geometry, torch.Generator("cpu").manual_seed(0)
    layout = torch.channels_last if case.channels_last else torch.contiguous_format

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(case.dtype)

    x = draw(case.shape[0], g.channels, *case.shape[1:]).contiguous(memory_format=layout)
    x.requires_grad_(case.input_gradient)
    size = math.prod(g.weight_shape)
    nnz = min(size, round(2 ** (case.size / 2)))
    positions = torch.randperm(size, generator=generator)[:nnz].sort().values.to(torch.int32)
    values = draw(nnz).requires_grad_(case.gradients)
    offset = offset_by_name(case.offset, g.weight_shape)
    alpha = None if offset is None else torch.ones((), dtype=case.dtype, requires_grad=case.gradients)
    wanted = [t for t in (x, values, alpha) if t is not None and t.requires_grad]

    def run() -> None:
        with torch.set_grad_enabled(case.gradients):
            y = functional.multiply(x, values, positions, alpha, None, offset, g, backend)
            if wanted:
                torch.autograd.grad(y, wanted, torch.ones_like(y))

    return run


# --- the file -------------------------------------------------------------------------------------------------------


def cache_file() -> Path:
    """Where the measurements of this processor and these versions are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.environ.get("DCTPS_CACHE") or os.path.expanduser(f"{home}/dctps"))
    machine = "".join(c if c.isalnum() else "_" for c in f"{cpu()}-{native.instruction_set()}-torch{torch.__version__}")
    return folder / f"tuning-{FORMAT}-{machine}.json"


def _name(case: Case) -> str:
    g = case.geometry
    parts: list[object] = [g.pack(), case.size, case.offset or "none", case.shape, case.channels_last, case.dtype]
    parts += [case.threads, case.gradients, case.input_gradient]
    return " ".join(str(part).replace(" ", "") for part in parts)


def _read() -> dict[str, Times]:
    try:
        table = json.loads(cache_file().read_text())
        return {str(k): {str(b): float(t) for b, t in v.items()} for k, v in table.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}  # not there, or not ours: measured again


def _write(table: dict[str, Times]) -> None:
    try:
        cache_file().parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cache_file(), lambda path: path.write_text(json.dumps(table, indent=0)))
    except OSError:
        pass  # a read-only home: the next process measures again
