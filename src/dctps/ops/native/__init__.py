"""The native kernels for CPUs. They are optional: without them, the backend `torch` computes the same."""

import importlib
import os
from typing import Any


def _load() -> tuple[Any, str]:
    """Return the compiled module and an empty string, or None and the reason why there is no such module."""
    if os.environ.get("DCTPS_NATIVE") == "0":
        return None, "the native kernels are switched off by DCTPS_NATIVE=0"
    try:
        # torch is imported first because the kernels use the threads of its OpenMP runtime
        importlib.import_module("torch")
        return importlib.import_module("dctps.ops.native._native"), ""
    except ImportError as error:
        why = (
            f"the native kernels are not there ({error}); they are built at installation where there is a C++ compiler"
        )
        return None, why


kernels, WHY_NOT = _load()


def instruction_set() -> str:
    """Return the instruction set that the kernels use on this machine: avx512, avx2, plain, or none without kernels."""
    return "none" if kernels is None else str(kernels.instruction_set())
