"""Dense for the price of sparse: network layers W = alpha D + S, where D is a fast transform that is never stored."""

from dctps import data, models, train
from dctps.allocation import ALLOCATIONS, allocate
from dctps.alphas import ALPHAS
from dctps.checkpoint import CheckpointError, save
from dctps.convert import densify, sparsify, sparsify_norms
from dctps.costs import count_ops
from dctps.imp import imp
from dctps.layers import DpsConv1d, DpsConv2d, DpsConv3d, DpsLinear
from dctps.loading import load
from dctps.normalisation import recalibrate
from dctps.offsets import OFFSETS, Offset, TransformOffset
from dctps.projections import PROJECTIONS
from dctps.pruning import METHODS, CollapseError, prune
from dctps.reparameterisation import DSR
from dctps.report import report
from dctps.rewiring import SET, RigL
from dctps.subspace import Subspace, project
from dctps.support import Support

__all__ = [
    "ALLOCATIONS",
    "ALPHAS",
    "DSR",
    "METHODS",
    "OFFSETS",
    "PROJECTIONS",
    "SET",
    "CheckpointError",
    "CollapseError",
    "DpsConv1d",
    "DpsConv2d",
    "DpsConv3d",
    "DpsLinear",
    "Offset",
    "RigL",
    "Subspace",
    "Support",
    "TransformOffset",
    "allocate",
    "count_ops",
    "data",
    "densify",
    "imp",
    "load",
    "models",
    "project",
    "prune",
    "recalibrate",
    "report",
    "save",
    "sparsify",
    "sparsify_norms",
    "train",
]
