"""Measurements of speed and memory: what `dctps bench` runs.

Contenders of one comparison live in one process and take their steps in turn, so that whatever else the machine does
hits all of them alike. `memory(model)` says what training a network holds in weights, gradients and Adam's moments.
"""

from dctps.bench.footprint import memory

__all__ = ["memory"]
