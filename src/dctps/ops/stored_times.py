"""The times that `backend="auto"` chooses by: in memory, in the state of a run, and in a file.

The file belongs to one processor, one version of torch, and the instruction sets of our kernels and of torch with its
libraries, which the environment may limit. On an accelerator its name is part of the name of a case.
`DCTPS_CACHE=folder` keeps the file in this folder (default: dctps in the user's cache folder).
"""

import json
import math
import os
import threading
from pathlib import Path

import torch

from dctps.base.files import cache_folder, write_atomically
from dctps.base.machine import cpu, torch_instruction_set
from dctps.ops import native
from dctps.ops.measurement import PLAIN, Case, Times, accelerator_name, measure

FILE_FORMAT = 5  # version of the file of times, raised when kernels change so much that old times mislead
LIBRARY_LIMITS = "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"  # variables of torch's libraries

_lock = threading.RLock()
_times: dict[Case, Times] = {}  # times that this process has used
_preferred_changes = 0  # how often `_preferred` has changed
_preferred: dict[str, Times] = {}  # times by the name of a case, which come before those in the file


def times_of(case: Case, *, may_measure: bool = True) -> Times:
    """Return the milliseconds of every backend: from memory, from a resumed run, from the file, or measured now.

    Where they are not known and cannot be measured now, nothing is returned.
    """
    with _lock:
        if case in _times:
            return _times[case]
        name = _name_of(case)
        times = _preferred.get(name) or _read_file().get(name)
        if not times and may_measure:
            times = measure(case)
            _write_file(_read_file() | {name: times})
        if times:
            _times[case] = times
        return times or {}


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


def preferred_changes() -> int:
    """Return how often `prefer_times` was called; choices that were made before the last call no longer hold."""
    return _preferred_changes


def slower_than_plain(ratio: float = 1.1) -> dict[Case, float]:
    """Return the cases in which even the fastest backend takes more than `ratio` times as long as torch's own layer.

    They are those that this process has used, each with its ratio.
    """
    with _lock:
        cases = {case: times for case, times in _times.items() if 0 < times.get(PLAIN, math.inf) < math.inf}
    ratios = {case: min(ms for name, ms in t.items() if name != PLAIN) / t[PLAIN] for case, t in cases.items()}
    return {case: found for case, found in ratios.items() if found > ratio}


# --- the file -------------------------------------------------------------------------------------------------------


def cache_file() -> Path:
    """Return the path of the file with the times of this processor, its instruction sets and version of torch."""
    limits = [f"{name}={os.environ[name]}" for name in LIBRARY_LIMITS if name in os.environ]
    parts = [cpu(), native.instruction_set(), f"torch{torch.__version__}", torch_instruction_set(), *limits]
    machine = "".join(c if c.isalnum() else "_" for c in "-".join(parts))
    return cache_folder() / f"tuning-{FILE_FORMAT}-{machine}.json"


def _name_of(case: Case) -> str:
    """Return the name of a case in the file and in the state of a run."""
    g = case.geometry
    parts: list[object] = [g.pack(), case.nnz_class, case.offset or "none", case.shape, case.channels_last, case.dtype]
    parts += [case.threads, case.gradients, case.input_gradient]
    if case.device.type != "cpu":
        parts.append(accelerator_name(case.device))
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
