"""The machine that a process runs on: its processor and instruction set, its freed memory, its denormal numbers."""

import contextlib
import ctypes
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # constants of <malloc.h>


def cpu() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def torch_instruction_set() -> str:
    """Return the instruction set that torch's own kernels use: avx512, avx2, or another name of torch's."""
    return torch.backends.cpu.get_cpu_capability().lower()


def keep_memory() -> bool:
    """Tell the C library to keep freed memory for later; return False where it has no such setting (only glibc has).

    glibc gives every tensor above 32 MB pages of its own and returns them when the tensor dies. A training step that
    allocates its activations anew pays for their page faults each time. The setting holds for the whole process and
    cannot be undone: the process keeps the largest amount of memory that it ever used.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is None:
        return False
    # -1 stands for the largest size, so that the top of the heap is never given back
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, -1))


@contextlib.contextmanager
def flushed_denormals() -> Iterator[None]:
    """Make the processor replace denormal numbers by zero inside this context.

    Sparse networks without BatchNorm underflow, and arithmetic on denormal numbers is several times slower.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
