"""Native kernels for CPUs: optional, and shadowed by the torch reference that every device has."""

import importlib
import os
from typing import Any


def _load() -> tuple[Any, str]:
    """The compiled module, or None and why it is not there."""
    if os.environ.get("DCTPS_NATIVE") == "0":
        return None, "the native kernels are switched off by DCTPS_NATIVE=0"
    try:
        # torch comes first: the kernels use the threads of its OpenMP runtime
        importlib.import_module("torch")
        return importlib.import_module("dctps.ops.native._native"), ""
    except ImportError as error:
        why = (
            f"the native kernels are not there ({error}); they are built at installation where there is a C++ compiler"
        )
        return None, why


kernels, WHY_NOT = _load()


def instruction_set() -> str:
    """What the kernels run on here: avx512, avx2, plain, or none."""
    return "none" if kernels is None else str(kernels.instruction_set())
