"""BatchNorm layers with few channels whose scale and shift train (paper: section 5.1 and "Further Work").

    y = scale * (x - mean) / sqrt(variance + eps) + shift

BatchNorm holds four numbers for each channel, and pruning the weights of a network does not remove them. Here scale is
1 and shift is 0, neither trained nor stored, except at `nnz` channels: the positions of a `Support` over the channels.
The other two numbers are the running statistics (`running_statistics.py`).
"""

import collections
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dctps.core.support import Support
from dctps.nn.built_weight import refuse_changes
from dctps.nn.fused_norm import FUSED
from dctps.nn.running_statistics import STATISTICS
from dctps.nn.supported import SupportedLayer


class SparseBatchNorm(SupportedLayer, _BatchNorm):
    """A BatchNorm layer with scale = 1 and shift = 0 outside its support; everything else is as in torch.

    It is a subclass of torch's layer, so that code which looks for BatchNorm (to freeze it, to average weights) finds
    it.
    """

    scale: nn.Parameter  # (nnz,)
    shift: nn.Parameter  # (nnz,)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        support: Support,
    ) -> None:
        if support.shape != (num_features,):
            raise ValueError(f"a support of shape {support.shape} cannot serve {num_features} channels")
        super().__init__(num_features, eps, momentum, False, track_running_stats, device, dtype)
        del self._parameters["weight"], self._parameters["bias"]  # here they are properties
        self.affine = True
        self._hold(support, device)
        self.scale = nn.Parameter(torch.ones(support.nnz, device=device, dtype=dtype))
        self.shift = nn.Parameter(torch.zeros(support.nnz, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Set every scale to 1, every shift to 0, and the running statistics to where torch starts them."""
        self.reset_running_stats()
        if "scale" in self._parameters:  # the constructor of torch's layer calls this before there is a scale
            self._sign()
            nn.init.ones_(self.scale)
            nn.init.zeros_(self.shift)

    @property
    def support(self) -> Support:
        """The channels whose scale and shift train."""
        return Support((self.num_features,), self.positions)

    @property
    def nnz(self) -> int:
        """The number of channels whose scale and shift train."""
        return self.scale.numel()

    @property
    def weight(self) -> Tensor:  # type: ignore[override]  # (num_features,)
        """The scale of every channel, built anew at each access; it refuses changes in place."""
        return refuse_changes(self._for_all_channels(self.scale, 1.0), _ADVICE["weight"])

    @property
    def bias(self) -> Tensor:  # type: ignore[override]  # (num_features,)
        """The shift of every channel, built anew at each access; it refuses changes in place."""
        return refuse_changes(self._for_all_channels(self.shift, 0.0), _ADVICE["bias"])

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _ADVICE and "_positions" in self.__dict__:  # the constructor of torch's layer sets both
            raise AttributeError(f"{name} of a {type(self).__name__} cannot be set: {_ADVICE[name]}")
        super().__setattr__(name, value)

    def forward(self, x: Tensor) -> Tensor:
        self._check_positions()
        return super().forward(x)

    def _for_all_channels(self, values: Tensor, default: float) -> Tensor:
        full = torch.full((self.num_features,), default, device=values.device, dtype=values.dtype)
        return full.index_copy(0, self.positions.to(values.device).long(), values)

    def extra_repr(self) -> str:
        arguments = f"eps={self.eps}, momentum={self.momentum}, track_running_stats={self.track_running_stats}"
        return f"{self.num_features}, {arguments}, nnz={self.nnz}, density={self.nnz / self.num_features:.3g}"

    def _weight_shape(self) -> tuple[int, ...]:
        return (self.num_features,)

    def _why_not_values(self, state: dict[str, Any], prefix: str) -> str | None:
        if prefix + "weight" in state:
            return "the state holds a scale for every channel; load it into the network before sparsify_norms"
        return None


_ADVICE = {  # attributes that a layer does not let others set, and what to do instead
    "weight": "it is 1 outside the support; change norm.scale, the scales at the support",
    "bias": "it is 0 outside the support; change norm.shift, the shifts at the support",
    "positions": "densify the network and call sparsify_norms again",
}


class SparseBatchNorm1d(SparseBatchNorm, nn.BatchNorm1d):
    """torch.nn.BatchNorm1d with few scales and shifts that train."""


class SparseBatchNorm2d(SparseBatchNorm, nn.BatchNorm2d):
    """torch.nn.BatchNorm2d with few scales and shifts that train."""


class SparseBatchNorm3d(SparseBatchNorm, nn.BatchNorm3d):
    """torch.nn.BatchNorm3d with few scales and shifts that train."""


NORMS: dict[type[nn.Module], type[SparseBatchNorm]] = {  # the layers of torch, and their sparse versions
    nn.BatchNorm1d: SparseBatchNorm1d,
    nn.BatchNorm2d: SparseBatchNorm2d,
    nn.BatchNorm3d: SparseBatchNorm3d,
}
_KINDS: dict[type[nn.Module], type[nn.Module]] = {kind: kind for kind in NORMS}
_KINDS |= {FUSED[kind]: kind for kind in NORMS}  # a fused layer may become a sparse one, which is not fused


def prunable_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Return the BatchNorm layers, by name, whose scale and shift train and are shared with no other layer."""
    owners = collections.Counter(id(p) for module in model.modules() for p in module._parameters.values())

    def trains_alone(p: nn.Parameter | None) -> bool:
        return p is not None and p.requires_grad and owners[id(p)] == 1 and not nn.parameter.is_lazy(p)

    return {
        name: norm
        for name, norm in model.named_modules()
        if type(norm) in _KINDS
        and isinstance(norm, _BatchNorm)
        and all(trains_alone(norm._parameters.get(key)) for key in ("weight", "bias"))
    }


def sparse_norm(norm: _BatchNorm, support: Support, device: torch.device) -> SparseBatchNorm:
    """Return a sparse BatchNorm layer with the scales and shifts that `norm` has at the support.

    Both layers share their running statistics. A layer on the meta device is made on `device`.
    """
    scale, shift = norm._parameters["weight"], norm._parameters["bias"]
    assert scale is not None
    assert shift is not None
    place = device if scale.is_meta else scale.device
    make = NORMS[_KINDS[type(norm)]]
    new = make(
        norm.num_features, norm.eps, norm.momentum, norm.track_running_stats, place, scale.dtype, support=support
    )
    if not scale.is_meta:
        new.scale.data, new.shift.data = (p.detach()[new.positions.long()].clone() for p in (scale, shift))
    new._buffers.update({key: norm._buffers[key] for key in STATISTICS})
    return new


def plain_norm(norm: SparseBatchNorm) -> _BatchNorm:
    """Return the layer of torch with the same outputs; both layers share their running statistics."""
    kind = next(torch_type for torch_type, ours in NORMS.items() if isinstance(norm, ours))
    new: _BatchNorm = nn.utils.skip_init(
        kind, norm.num_features, norm.eps, norm.momentum, True, norm.track_running_stats, device="meta"
    )
    for key, values, default in (("weight", norm.scale, 1.0), ("bias", norm.shift, 0.0)):
        full = norm._for_all_channels(values, default).detach()
        new._parameters[key] = nn.Parameter(full, requires_grad=values.requires_grad)
    new._buffers.update({key: norm._buffers[key] for key in STATISTICS})
    return new
