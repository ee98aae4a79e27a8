"""Importing packages that bring an OpenMP library of their own."""

import importlib
import os
from typing import Any

import torch


def import_with_threads(module: str) -> Any:
    """Import a module so that an OpenMP library which it loads takes as many threads as torch has.

    Where the module does not share torch's OpenMP library, its own reads the number when it is loaded, and never again.
    """
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    try:
        return importlib.import_module(module)
    finally:
        del os.environ["OMP_NUM_THREADS"]
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before
