"""Dense for the price of sparse: network layers W = alpha D + S, where D is a fast transform that is never stored."""

from dctps import data, models, train
from dctps.allocation import ALLOCATIONS, allocate
from dctps.checkpoint import CheckpointError, save
from dctps.convert import densify, sparsify
from dctps.costs import count_ops
from dctps.layers import DpsConv1d, DpsConv2d, DpsConv3d, DpsLinear
from dctps.loading import load
from dctps.offsets import OFFSETS, Offset, TransformOffset
from dctps.report import report
from dctps.support import Support

__all__ = [
    "ALLOCATIONS",
    "OFFSETS",
    "CheckpointError",
    "DpsConv1d",
    "DpsConv2d",
    "DpsConv3d",
    "DpsLinear",
    "Offset",
    "Support",
    "TransformOffset",
    "allocate",
    "count_ops",
    "data",
    "densify",
    "load",
    "models",
    "report",
    "save",
    "sparsify",
    "train",
]
