"""Which backend a layer with `backend="auto"` uses for an input: measured by `autotune`, also inside of a trace."""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from dctps.core.geometry import Geometry
from dctps.core.offsets import Offset
from dctps.core.patch_offset import PatchOffset
from dctps.ops.autotune import Input, backend_by_rule, choose_for, forced, is_channels_last
from dctps.ops.weight import torch_func_is_active


def choose(x: Tensor, nnz: int, offset: Offset | None, geometry: Geometry) -> str:
    """Return the backend that a layer with the backend `auto` uses for the input x."""
    name = "" if offset is None else offset.name if isinstance(offset, PatchOffset) else None
    if torch.compiler.is_compiling() or isinstance(x, FakeTensor):
        from dctps.ops import traced_choice  # torch's compiler takes most of a second to load

        return traced_choice.choose(x, nnz, name, geometry)
    if torch_func_is_active() or torch._C._get_tracing_state() is not None:
        return forced() or backend_by_rule(geometry, nnz, x.device.type)
    seen = Input(x.shape, is_channels_last(x), x.dtype, x.device, x.requires_grad)
    may_measure = not (x.is_cuda and torch.cuda.is_current_stream_capturing())
    return choose_for(seen, nnz, name, geometry, may_measure=may_measure)
