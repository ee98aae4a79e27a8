"""BatchNorm of which few channels have a scale and a shift that train (paper: section 5.1 and "Further Work").

    y = scale * (x - mean) / sqrt(variance + eps) + shift

Networks with BatchNorm have a floor below which pruning weights alone cannot take them: four numbers a channel. Here
scale is 1 and shift 0, neither trained nor stored, except at `nnz` channels, the positions of a `Support` over them.
The other two numbers, the running statistics, are no parameters: evaluation needs them, and they follow from the
weights and some data, so a file may leave them out and `recalibrate` find them again.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dctps.core.support import Support

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class SparseBatchNorm(_BatchNorm):
    """BatchNorm with scale = 1 and shift = 0 outside its support; everything else is torch's own.

    A subclass of torch's layer, so that whatever looks for BatchNorm (freezing, averaging of weights) finds it.
    """

    scale: nn.Parameter  # (nnz,)
    shift: nn.Parameter  # (nnz,)
    positions: Tensor  # (nnz,)

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
        del self._parameters["weight"], self._parameters["bias"]  # they are properties, which nothing may assign to
        self.affine, self.seed = True, support.seed  # a file holds the seed instead of the positions while it holds
        self.register_buffer("positions", support.positions.to(device or torch.get_default_device()).clone())
        self.scale = nn.Parameter(torch.ones(support.nnz, device=device, dtype=dtype))
        self.shift = nn.Parameter(torch.zeros(support.nnz, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        self.reset_running_stats()
        if "scale" in self._parameters:  # not yet when torch's own constructor calls this
            nn.init.ones_(self.scale)
            nn.init.zeros_(self.shift)

    @property
    def support(self) -> Support:
        """The channels that have a scale and a shift of their own."""
        return Support((self.num_features,), self.positions)

    @property
    def nnz(self) -> int:
        return self.scale.numel()

    @property
    def weight(self) -> Tensor:  # type: ignore[override]  # (num_features,)
        """The scale of every channel, built anew at each access; torch's forward pass reads it."""
        return self._everywhere(self.scale, 1.0)

    @property
    def bias(self) -> Tensor:  # type: ignore[override]  # (num_features,)
        """The shift of every channel."""
        return self._everywhere(self.shift, 0.0)

    def _everywhere(self, values: Tensor, fixed: float) -> Tensor:
        full = torch.full((self.num_features,), fixed, device=values.device, dtype=values.dtype)
        return full.index_copy(0, self.positions.long(), values)

    def extra_repr(self) -> str:
        arguments = f"eps={self.eps}, momentum={self.momentum}, track_running_stats={self.track_running_stats}"
        return f"{self.num_features}, {arguments}, nnz={self.nnz}, density={self.nnz / self.num_features:.3g}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        problem = self._why_not_load(state_dict, prefix)
        if problem:
            arguments[-1].append(f"{prefix[:-1] or 'layer'}: {problem}")
            return
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def _why_not_load(self, state_dict: dict[str, Any], prefix: str) -> str | None:
        positions = state_dict.get(prefix + "positions")
        if prefix + "weight" in state_dict:
            return "the state holds a scale for every channel; load it before sparsify_norms"
        if positions is None:
            return None
        if positions.shape != self.positions.shape:
            return f"the state holds {positions.numel()} positions, this layer {self.nnz}; use the same density"
        try:
            Support((self.num_features,), positions)
        except ValueError as error:
            return str(error)
        return None


class SparseBatchNorm1d(SparseBatchNorm, nn.BatchNorm1d):
    """torch.nn.BatchNorm1d with few scales and shifts."""


class SparseBatchNorm2d(SparseBatchNorm, nn.BatchNorm2d):
    """torch.nn.BatchNorm2d with few scales and shifts."""


class SparseBatchNorm3d(SparseBatchNorm, nn.BatchNorm3d):
    """torch.nn.BatchNorm3d with few scales and shifts."""


NORMS: dict[type[nn.Module], type[SparseBatchNorm]] = {
    nn.BatchNorm1d: SparseBatchNorm1d,
    nn.BatchNorm2d: SparseBatchNorm2d,
    nn.BatchNorm3d: SparseBatchNorm3d,
}


def prunable_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorm layers, by name, whose scale and shift train and are theirs alone."""
    norms = {name: m for name, m in model.named_modules() if type(m) in NORMS and isinstance(m, _BatchNorm)}
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    return {
        name: norm
        for name, norm in norms.items()
        if all(
            p is not None and p.requires_grad and owners[id(p)] == 1 and not nn.parameter.is_lazy(p)
            for p in (norm._parameters.get("weight"), norm._parameters.get("bias"))
        )
    }


def sparse_norm(norm: _BatchNorm, support: Support, device: torch.device) -> SparseBatchNorm:
    """The layer with a scale and a shift at the support alone, which keep their values; statistics are shared."""
    scale, shift = norm._parameters["weight"], norm._parameters["bias"]
    assert scale is not None
    assert shift is not None
    place = device if scale.is_meta else scale.device
    make = NORMS[type(norm)]
    new = make(
        norm.num_features, norm.eps, norm.momentum, norm.track_running_stats, place, scale.dtype, support=support
    )
    if not scale.is_meta:
        new.scale.data, new.shift.data = (p.detach()[new.positions.long()].clone() for p in (scale, shift))
    new._buffers.update({key: norm._buffers[key] for key in STATISTICS})
    return new


def plain_norm(norm: SparseBatchNorm) -> _BatchNorm:
    """torch's own layer with the same outputs; statistics are shared."""
    kind = next(torch_type for torch_type, ours in NORMS.items() if isinstance(norm, ours))
    new: _BatchNorm = nn.utils.skip_init(
        kind, norm.num_features, norm.eps, norm.momentum, True, norm.track_running_stats, device="meta"
    )
    for key, values in (("weight", norm.scale), ("bias", norm.shift)):
        full = getattr(norm, key).detach()
        new._parameters[key] = nn.Parameter(full, requires_grad=values.requires_grad)
    new._buffers.update({key: norm._buffers[key] for key in STATISTICS})
    return new


# --- running statistics ----------------------------------------------------------------------------------------------


def tracked_norms(model: nn.Module) -> list[_BatchNorm]:
    """The BatchNorm layers, of any kind, that keep running statistics."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]


def recalibrate(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Estimate the running statistics of every BatchNorm layer anew; returns the model.

    One forward pass per batch, without gradients, every other layer in eval mode. Each statistic is the mean over the
    batches of what the layer saw, so a few batches of the size that was trained with will do.

    batches: inputs, or (inputs, labels) pairs, on the model's device.
    """
    norms = tracked_norms(model)
    if not norms:
        raise ValueError("there is no BatchNorm layer with running statistics in this network")
    with _as_before(model, norms), torch.no_grad():
        model.eval()
        for norm in norms:
            norm.train()
            norm.momentum = None  # torch's word for the mean over all batches
            norm.reset_running_stats()
        count = 0
        for batch in batches:
            model(batch[0] if isinstance(batch, tuple | list) else batch)
            count += 1
        if not count:
            raise ValueError("there is no batch to estimate running statistics from")
    return model


@contextlib.contextmanager
def _as_before(model: nn.Module, norms: list[_BatchNorm]) -> Iterator[None]:
    """Modes and momenta as they were, and after an error the statistics too."""
    modes, momenta = [(m, m.training) for m in model.modules()], [norm.momentum for norm in norms]
    statistics = [{key: norm._buffers[key] for key in STATISTICS} for norm in norms]
    kept = [{key: None if b is None else b.clone() for key, b in own.items()} for own in statistics]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for own, old in zip(statistics, kept, strict=True):
                for key in STATISTICS:
                    if (buffer := own[key]) is not None and (value := old[key]) is not None:
                        buffer.copy_(value)
        raise
    finally:
        for module, training in modes:
            module.training = training
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
