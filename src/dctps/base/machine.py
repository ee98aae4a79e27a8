"""The machine that a process runs on: its processor, the memory that it keeps, and its denormal numbers."""

import contextlib
import ctypes
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # constants of <malloc.h>


def cpu() -> str:
    """The name of the processor."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def keep_memory() -> bool:
    """Tell the C library to keep freed memory for later; False where the library has no such setting (only glibc has).

    glibc gives every tensor above 32 MB pages of its own and returns them when the tensor dies. A training step that
    allocates its activations anew pays for their page faults each time. The setting holds for the whole process and
    cannot be undone: the process keeps the largest amount of memory that it ever used.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is None:
        return False
    # -1 becomes the largest size: the top of the heap is never given back
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, -1))


@contextlib.contextmanager
def flushed_denormals() -> Iterator[None]:
    """Inside this context the processor replaces denormal numbers by zero.

    Sparse networks without BatchNorm underflow, and arithmetic on denormal numbers is several times slower.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
