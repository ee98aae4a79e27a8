"""The measurement behind `backend="auto"`: how long a layer takes by each backend, on random numbers.

A layer runs forwards and, where gradients are wanted, backwards. It runs on a few images of the batch first. If the
times differ little, it runs on the whole batch too, because a few images may fit into a cache that the batch does not
fit into. `plain` is the time of torch's own layer of that size, with a stored weight and its dense gradient. It is no
backend; it tells where even the fastest one is slower.

The measurement has a thread of its own. Modes, hooks, autocast, inference mode and traces of torch belong to the thread
that entered them, so they neither see the measurement nor change it.
"""

import functools
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from dctps.base.machine import cpu
from dctps.core.geometry import Geometry, convolve
from dctps.ops import native
from dctps.ops.bound import BoundLayer
from dctps.ops.weight import offset_by_name

FIRST_IMAGES = 16  # images of a batch that are measured first
CLEAR_RATIO = 1.6  # ratio of the slowest to the fastest time on the first images above which these decide
LONGEST_RUN = 100  # milliseconds; where one run on the whole batch would take longer, the first images decide
REPEATS = 5  # timed runs of each contender at least, after one that is not timed
MOST_REPEATS = 50  # timed runs of each contender at most
LEAST_TIME = 10  # milliseconds over which the timed runs of all contenders extend at least, up to MOST_REPEATS
PLAIN = "plain"  # torch's own layer

Times = dict[str, float]  # backend, or PLAIN -> milliseconds


class Case(NamedTuple):
    """All that the times of a layer depend on; layers and batches of nearly the same size share a case."""

    geometry: Geometry
    nnz_class: int  # `autotune.nnz_class` of the layer's nnz
    offset: str  # name of the offset, "" without one
    shape: tuple[int, ...]  # (batch, *spatial) of the input that is measured
    channels_last: bool
    dtype: torch.dtype
    threads: int  # 0 on an accelerator
    gradients: bool  # whether the gradients of values and alpha are wanted
    input_gradient: bool
    device: torch.device


def candidates(device: str) -> list[str]:
    """Return the backends among which `auto` chooses on a type of device: `dense` and its fastest rival."""
    return ["dense", "native" if device == "cpu" and native.kernels is not None else "torch"]


def measure(case: Case) -> Times:
    """Return the milliseconds of the candidates and of torch's own layer."""
    with ThreadPoolExecutor(1, "dctps measurement") as thread:
        return thread.submit(_measure, case).result()


def _measure(case: Case) -> Times:
    backends = candidates(case.device.type)
    contenders = [*backends, PLAIN]
    if not case.geometry.axes or case.shape[0] <= FIRST_IMAGES:
        return _time(case, contenders)
    times = _time(case._replace(shape=(FIRST_IMAGES, *case.shape[1:])), contenders)
    slowest, fastest = (extreme(times[backend] for backend in backends) for extreme in (max, min))
    if slowest > CLEAR_RATIO * fastest or slowest * case.shape[0] > LONGEST_RUN * FIRST_IMAGES:
        return times
    return _time(case, contenders)


def _time(case: Case, contenders: list[str]) -> Times:
    """Return the shortest run of each contender, infinite for one that fails, for example for want of memory.

    The contenders take turns, so that whatever else the machine does slows all of them alike. The shortest run is the
    least disturbed one. Short runs are repeated more often, because a disturbance can outlast several of them.
    """
    times = dict.fromkeys(contenders, math.inf)
    try:
        runs = _runs(case, contenders)
    except (RuntimeError, MemoryError):
        return times
    rounds, spent = -1, 0.0  # the first round is not timed
    while rounds < REPEATS or (spent < LEAST_TIME and rounds < MOST_REPEATS):
        for name, run in list(runs.items()):
            try:
                milliseconds = _milliseconds(run, case.device)
            except (RuntimeError, ValueError, MemoryError):
                del runs[name]
                times[name] = math.inf
                continue
            if rounds >= 0:
                times[name] = min(times[name], milliseconds)
                spent += milliseconds
        rounds += 1
    return times


def _runs(case: Case, contenders: list[str]) -> dict[str, Callable[[], None]]:
    """Return functions that run a layer of this case on random numbers, forwards and, if wanted, backwards."""
    g, generator = case.geometry, torch.Generator("cpu").manual_seed(0)
    layout = torch.channels_last if case.channels_last else torch.contiguous_format

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cpu").to(case.device, case.dtype)

    x = draw(case.shape[0], g.channels, *case.shape[1:]).contiguous(memory_format=layout)
    x.requires_grad_(case.input_gradient)
    size = math.prod(g.weight_shape)
    nnz = min(size, round(2 ** (case.nnz_class / 2)))
    positions = torch.randperm(size, generator=generator, device="cpu")[:nnz].sort().values.to(case.device, torch.int32)
    values = draw(nnz).requires_grad_(case.gradients)
    offset = offset_by_name(case.offset, g.weight_shape)
    alpha = (
        None
        if offset is None
        else torch.ones(1, dtype=case.dtype, device=case.device).requires_grad_(values.requires_grad)
    )
    weight = draw(*g.weight_shape).contiguous(memory_format=layout).requires_grad_(case.gradients)

    layers = {contender: BoundLayer(offset, g) for contender in contenders}

    def run(contender: str) -> None:
        with torch.set_grad_enabled(case.gradients):
            if contender == PLAIN:
                y, leaves = convolve(x, weight, None, g), [x, weight]
            else:
                layer = layers[contender]
                y = layer.multiply(x, values, positions, alpha, None, contender, lambda _: contender)
                leaves = [x, values] if alpha is None else [x, values, alpha]
            if wanted := [leaf for leaf in leaves if leaf.requires_grad]:
                torch.autograd.grad(y, wanted, torch.ones_like(y))

    return {contender: functools.partial(run, contender) for contender in contenders}


# --- the device -----------------------------------------------------------------------------------------------------


def _milliseconds(run: Callable[[], None], device: torch.device) -> float:
    """Return the duration of a run, to the end of the work that it leaves to an accelerator."""
    _finish(device)
    start = time.perf_counter()
    run()
    _finish(device)
    return 1e3 * (time.perf_counter() - start)


def _finish(device: torch.device) -> None:
    """Wait until an accelerator has done all that it was told to do."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@functools.cache
def can_measure_on(device_type: str) -> bool:
    """Return whether the processor, or the accelerator of this machine, is of this type."""
    if device_type == "cpu":
        return True
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found is not None and found.type == device_type


@functools.cache
def accelerator_name(device: torch.device) -> str:
    """Return the type and the name of an accelerator, where torch knows one; accelerators of one name share times."""
    name = {"mps": torch.backends.mps}.get(device.type, torch.get_device_module(device))
    ask = getattr(name, "get_name", None) or getattr(name, "get_device_name", None)
    return f"{device.type} {cpu() if ask is None else ask() if device.type == 'mps' else ask(device)}"
