"""Dense for the price of sparse: network layers W = alpha D + S, where D is a fast transform that is never stored."""

from dctps import data, models, train
from dctps.checkpoint.contents import CheckpointError
from dctps.checkpoint.load import load
from dctps.checkpoint.save import save
from dctps.core.allocation import ALLOCATIONS, allocate
from dctps.core.alphas import ALPHAS
from dctps.core.offsets import OFFSETS, Offset, TransformOffset
from dctps.core.support import Support
from dctps.methods.density import set_density
from dctps.methods.lottery import imp
from dctps.methods.pruning import METHODS
from dctps.methods.pruning.collapse import CollapseError
from dctps.methods.pruning.prune import prune
from dctps.methods.rewiring.dsr import DSR
from dctps.methods.rewiring.rigl import RigL
from dctps.methods.rewiring.set import SET
from dctps.methods.subspace.projections import PROJECTIONS
from dctps.methods.subspace.subspace import Subspace, project
from dctps.nn.convert import densify, sparsify, sparsify_norms
from dctps.nn.costs import count_ops
from dctps.nn.decay import param_groups
from dctps.nn.layers import DpsConv1d, DpsConv2d, DpsConv3d, DpsLinear
from dctps.nn.report import report
from dctps.nn.running_statistics import recalibrate

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
    "param_groups",
    "project",
    "prune",
    "recalibrate",
    "report",
    "save",
    "set_density",
    "sparsify",
    "sparsify_norms",
    "train",
]
