"""Dense for the price of sparse: network layers W = alpha D + S, where D is a fast transform that is never stored.

Names are imported when they are first used, so `import dctps` takes no time and does not import torch. For type
checkers and editors they stand under TYPE_CHECKING; a test compares these imports with `PLACES` and `__all__`.
"""

from typing import TYPE_CHECKING, Any

from dctps.base.lazy import lazy_names

if TYPE_CHECKING:
    from dctps import data, federated, models, train
    from dctps.checkpoint.adapters import Adapter, detach
    from dctps.checkpoint.contents import CheckpointError
    from dctps.checkpoint.folder import from_pretrained, save_pretrained
    from dctps.checkpoint.load import load
    from dctps.checkpoint.save import save
    from dctps.checkpoint.shira import export_shira, import_shira
    from dctps.core.allocation import ALLOCATIONS, allocate
    from dctps.core.alphas import ALPHAS, Leverage
    from dctps.core.offsets import OFFSETS, Offset, TransformOffset
    from dctps.core.support import Support
    from dctps.export.onnx_file import export_onnx
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
    from dctps.nn.fuse import fuse
    from dctps.nn.layer_kinds import LAYER_KINDS, LayerKind
    from dctps.nn.layers import DpsConv1d, DpsConv2d, DpsConv3d, DpsLinear
    from dctps.nn.masks import masked_supports
    from dctps.nn.merging import unmerge
    from dctps.nn.report import report
    from dctps.nn.running_statistics import recalibrate
    from dctps.nn.streamline import streamline

    __version__: str

__all__ = [
    "ALLOCATIONS",
    "ALPHAS",
    "DSR",
    "LAYER_KINDS",
    "METHODS",
    "OFFSETS",
    "PROJECTIONS",
    "SET",
    "Adapter",
    "CheckpointError",
    "CollapseError",
    "DpsConv1d",
    "DpsConv2d",
    "DpsConv3d",
    "DpsLinear",
    "LayerKind",
    "Leverage",
    "Offset",
    "RigL",
    "Subspace",
    "Support",
    "TransformOffset",
    "allocate",
    "count_ops",
    "data",
    "densify",
    "detach",
    "export_onnx",
    "export_shira",
    "federated",
    "from_pretrained",
    "fuse",
    "imp",
    "import_shira",
    "load",
    "masked_supports",
    "models",
    "param_groups",
    "project",
    "prune",
    "recalibrate",
    "report",
    "save",
    "save_pretrained",
    "set_density",
    "sparsify",
    "sparsify_norms",
    "streamline",
    "train",
    "unmerge",
]

PLACES = {
    "ALLOCATIONS": "dctps.core.allocation",
    "ALPHAS": "dctps.core.alphas",
    "DSR": "dctps.methods.rewiring.dsr",
    "LAYER_KINDS": "dctps.nn.layer_kinds",
    "METHODS": "dctps.methods.pruning",
    "OFFSETS": "dctps.core.offsets",
    "PROJECTIONS": "dctps.methods.subspace.projections",
    "SET": "dctps.methods.rewiring.set",
    "Adapter": "dctps.checkpoint.adapters",
    "CheckpointError": "dctps.checkpoint.contents",
    "CollapseError": "dctps.methods.pruning.collapse",
    "DpsConv1d": "dctps.nn.layers",
    "DpsConv2d": "dctps.nn.layers",
    "DpsConv3d": "dctps.nn.layers",
    "DpsLinear": "dctps.nn.layers",
    "LayerKind": "dctps.nn.layer_kinds",
    "Leverage": "dctps.core.alphas",
    "Offset": "dctps.core.offsets",
    "RigL": "dctps.methods.rewiring.rigl",
    "Subspace": "dctps.methods.subspace.subspace",
    "Support": "dctps.core.support",
    "TransformOffset": "dctps.core.offsets",
    "allocate": "dctps.core.allocation",
    "count_ops": "dctps.nn.costs",
    "data": "dctps.data",
    "densify": "dctps.nn.convert",
    "detach": "dctps.checkpoint.adapters",
    "export_onnx": "dctps.export.onnx_file",
    "export_shira": "dctps.checkpoint.shira",
    "federated": "dctps.federated",
    "from_pretrained": "dctps.checkpoint.folder",
    "fuse": "dctps.nn.fuse",
    "imp": "dctps.methods.lottery",
    "import_shira": "dctps.checkpoint.shira",
    "load": "dctps.checkpoint.load",
    "masked_supports": "dctps.nn.masks",
    "models": "dctps.models",
    "param_groups": "dctps.nn.decay",
    "project": "dctps.methods.subspace.subspace",
    "prune": "dctps.methods.pruning.prune",
    "recalibrate": "dctps.nn.running_statistics",
    "report": "dctps.nn.report",
    "save": "dctps.checkpoint.save",
    "save_pretrained": "dctps.checkpoint.folder",
    "set_density": "dctps.methods.density",
    "sparsify": "dctps.nn.convert",
    "sparsify_norms": "dctps.nn.convert",
    "streamline": "dctps.nn.streamline",
    "train": "dctps.train",
    "unmerge": "dctps.nn.merging",
}

if not TYPE_CHECKING:  # with `__getattr__`, every name would exist for a type checker
    _public, __dir__ = lazy_names(__name__, PLACES)

    def __getattr__(name: str) -> Any:
        if name != "__version__":
            return _public(name)
        from importlib.metadata import version

        return version("dctps")
