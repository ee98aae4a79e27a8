"""Memory that is freed stays with the process, so that the next step does not pay for it again.

glibc gives every tensor above 32 MB pages of its own and returns them when the tensor dies. A training step that
allocates its activations anew pays for their page faults each time.
"""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of <malloc.h>


def keep_memory() -> bool:
    """Tell the C library to keep freed memory for later; False where it has no such setting (only glibc has).

    It holds for the whole process and cannot be undone: the process keeps the largest amount it ever used.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is None:
        return False
    # -1 becomes the largest size: never give the top of the heap back
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, -1))
