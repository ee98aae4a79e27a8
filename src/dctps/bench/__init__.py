"""Measurements of speed and memory: what `dctps bench` runs.

Contenders of one comparison live in one process and take their steps in turn, so that whatever else the machine does
hits all of them alike. `memory(model)` says what training a network holds in weights, gradients and Adam's moments.
"""

from typing import TYPE_CHECKING

from dctps.base.lazy import lazy_names

if TYPE_CHECKING:
    from dctps.bench.footprint import memory

__all__ = ["memory"]

PLACES = {"memory": "dctps.bench.footprint"}

if not TYPE_CHECKING:  # with `__getattr__`, every name would exist for a type checker
    __getattr__, __dir__ = lazy_names(__name__, PLACES)
