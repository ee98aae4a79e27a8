"""Native kernels for CPUs: optional, and shadowed by the torch reference that every device has."""

import os

import torch
from torch import Tensor

try:
    if os.environ.get("DCTPS_NATIVE") == "0":
        raise ImportError("switched off by DCTPS_NATIVE=0")
    from dctps.kernels import _native as native

    WHY_NOT = ""
except ImportError as error:
    native = None
    WHY_NOT = f"the native kernels are not there ({error}); install a C++ compiler and reinstall dctps to have them"


def serves(x: Tensor) -> bool:
    """Whether the native kernels are there and take this tensor."""
    return native is not None and x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)


def instruction_set() -> str:
    """What the kernels run on here: avx512, avx2, plain, or none."""
    return "none" if native is None else str(native.instruction_set())
