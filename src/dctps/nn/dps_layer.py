"""The base class of the layers W = alpha D + S: parameters, support, offset and state (paper: section 3).

`values` is a Parameter whose object never changes. The positions of the values are not among the buffers
(`supported.py` says why). Both are in `state_dict`, with `alpha` and `bias`. D is stored nowhere: it follows from the
name of the offset and the shape of the weight.
"""

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from dctps.core.geometry import Geometry
from dctps.core.offsets import Offset, OffsetLike, offset_name, resolve
from dctps.core.support import Support
from dctps.nn.arguments import check_numbers, choose_support
from dctps.nn.built_weight import refuse_changes
from dctps.nn.lazy import has_hooks
from dctps.nn.supported import SupportedLayer, mark_of
from dctps.ops import autotune, choosing, functional, routes
from dctps.ops.bound import BoundLayer
from dctps.ops.finish import Finish
from dctps.ops.functional import AUTO
from dctps.ops.normalise import finished
from dctps.ops.route import Route, forward_layout
from dctps.ops.weight import dense_weight, is_eager

LayerTensors = tuple[Tensor, Tensor, Tensor | None, Tensor | None]  # values, positions, alpha, bias


class DpsLayer(SupportedLayer):
    """The base of all layers W = alpha D + S: their parameters, support, offset and state."""

    values: nn.Parameter  # (nnz,), the entries of S
    alpha: Tensor | None  # (1,), a Parameter if it trains; None without an offset
    bias: nn.Parameter | None
    _bound: BoundLayer | None = None
    observer: Callable[[Tensor, Tensor], Tensor] | None = None  # is given x and W x + bias, and returns the output
    shows_gradient: bool = True  # whether the observer sees every use, from which the dense gradient follows
    feeds_norm: bool = False  # whether the output may wait for the fused BatchNorm layer behind, as `fuse` found

    def _build(
        self,
        geometry: Geometry,
        *,
        bias: bool,
        density: float | None,
        nnz: int | None,
        support: Support | None,
        offset: OffsetLike,
        alpha: float,
        train_alpha: bool,
        seed: int,
        backend: str,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        """Check the arguments that all layers share, and make the parameters and buffers."""
        device, dtype = torch.device(device or torch.get_default_device()), dtype or torch.get_default_dtype()
        check_numbers(device, dtype, alpha)
        functional.check_backend(backend)
        self.geometry, self.backend = geometry, backend
        self.offset: Offset | None = resolve(offset, geometry.weight_shape)
        chosen = choose_support(geometry.weight_shape, density, nnz, support, seed)
        self._hold(chosen, device)
        self.values = nn.Parameter(torch.empty(chosen.nnz, device=device, dtype=dtype))
        scale = None if self.offset is None else torch.tensor([float(alpha)], device=device, dtype=dtype)
        if train_alpha and scale is not None:
            self.alpha = nn.Parameter(scale)
        else:
            self.register_buffer("alpha", scale)
        self.bias = nn.Parameter(torch.empty(geometry.filters, device=device, dtype=dtype)) if bias else None
        self.reset_parameters(seed)

    def reset_parameters(self, seed: int | None = None) -> None:
        """Set S to zero if there is an offset, else draw its values from U(+-1/sqrt(fan_in)), as torch does.

        The bias is always drawn as in torch. The draws follow from `seed`, by default the seed of the support.
        """
        self._sign()
        generator = torch.Generator(device="cpu").manual_seed((self.seed or 0) if seed is None else seed)
        bound = 1 / math.sqrt(math.prod(self.geometry.weight_shape[1:]))
        with torch.no_grad():
            draw = torch.empty(self.values.shape, dtype=torch.float64, device="cpu")
            draw.uniform_(-bound, bound, generator=generator)
            self.values.copy_(draw if self.offset is None else torch.zeros_like(draw))
            if self.bias is not None:
                draw = torch.empty(self.bias.shape, dtype=torch.float64, device="cpu")
                self.bias.copy_(draw.uniform_(-bound, bound, generator=generator))

    @property
    def support(self) -> Support:
        """The positions of the values in the weight."""
        return Support(self.geometry.weight_shape, self.positions)

    @property
    def nnz(self) -> int:
        """The number of weights that train."""
        return self.values.numel()

    def dense_weight(self) -> Tensor:
        """Return alpha D + S in the shape of the weight of torch's layer; differentiable in values and alpha."""
        return dense_weight(self.values, self.positions, self.alpha, self.offset, self.geometry.weight_shape)

    @property
    def density(self) -> float:
        """The fraction of the weights that trains."""
        return self.nnz / math.prod(self.geometry.weight_shape)

    @property
    def weight(self) -> Tensor:
        """`dense_weight()`, built anew at each access, for other code that reads it; it refuses changes in place."""
        return refuse_changes(self.dense_weight(), _ADVICE["weight"])

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _ADVICE:
            raise AttributeError(f"{name} of a {type(self).__name__} cannot be set: {_ADVICE[name]}")
        if name in ("offset", "geometry"):
            self.__dict__.pop("_bound", None)
        super().__setattr__(name, value)

    def chosen_backend(self, x: Tensor) -> str:  # x: (batch, channels, *spatial)
        """Return the backend that computes on this input; `auto` is replaced by its choice."""
        return self.backend if self.backend != AUTO else choosing.choose(x, self.nnz, self.offset, self.geometry)

    def route(self, x: Tensor) -> Route:
        """Return the route of `dctps.ops.routes` by which this layer computes on the input x."""
        batch = self._as_batch(x)
        layout = forward_layout(batch, self.geometry)
        return routes.choose(self.offset, self.geometry, layout, self.chosen_backend(batch), self.nnz)

    def multiply_adds(self, x: Tensor) -> int:
        """Return the number of multiply-adds that this layer performs on the input x."""
        return self.route(x).multiply_adds(self._as_batch(x), self.nnz)

    def _as_batch(self, x: Tensor) -> Tensor:
        """Return the input as (batch, channels, *spatial), padded where the product does not pad by itself."""
        raise NotImplementedError

    def _waits(self, x: Tensor) -> bool:
        """Return whether the output for x may wait for the BatchNorm layer behind, which is computed with it."""
        if not self.feeds_norm or self.training or torch.is_grad_enabled() or not is_eager():
            return False
        if type(x) is not Tensor or x.requires_grad:  # a checkpoint wants the gradient of x later, and a tensor now
            return False
        return self.observer is None and not torch._C._is_any_autocast_enabled() and not has_hooks(self)

    def _layer_tensors(self) -> LayerTensors:
        """Return values, positions, alpha and bias as they are now."""
        self._check_positions()
        return self._own("values"), self._positions, self._own("alpha"), self._own("bias")

    def _multiply(self, x: Tensor) -> Tensor:  # x as `_as_batch` gives it
        return self._multiply_by(self._layer_tensors(), x)

    def _multiply_by(self, layer: LayerTensors, x: Tensor, finish: Finish | None = None) -> Tensor:
        """Return the output for x with these tensors of the layer, finished."""
        if is_eager():
            choice = autotune.settings() if self.backend == AUTO else self.backend
            y = self._bound_layer().multiply(x, *layer, choice, self.chosen_backend, finish)
        else:
            y = functional.multiply(x, *layer, self.offset, self.geometry, self.chosen_backend(x))
            y = y if finish is None else finished(y, finish)
        return y if self.observer is None else self.observer(x, y)

    def _own(self, name: str) -> Any:
        """Return a parameter, sooner than Module.__getattr__ finds it, or what takes its place."""
        found = self._parameters.get(name)
        return getattr(self, name) if found is None else found

    def _known_weight(self, x: Tensor) -> Tensor | None:
        """Return W if it is kept and nothing has changed since inputs of this shape came here before, else None.

        `_multiply` would come to the same W. Small layers compute less than its way there takes.
        """
        if not is_eager() or self._bound is None:  # in this order: torch.compile must not look at what is prepared
            return None
        kept = self._bound.prepared
        if kept is None or torch.is_grad_enabled() or type(x) is not Tensor or self.observer is not None:
            return None
        own = self._parameters
        values, alpha = own.get("values"), own["alpha"] if "alpha" in own else self._buffers.get("alpha")
        choice = autotune.settings() if self.backend == AUTO else self.backend
        if (x.shape, x.dtype, choice) != kept.served or values is not kept.values or alpha is not kept.alpha:
            return None
        if self._checked is None or self._checked[1] != mark_of(self._buffers["fingerprint"]):
            return None
        return kept.weight if kept.holds(values, self._positions, alpha) else None

    def _bound_layer(self) -> BoundLayer:
        """Return what the calls of this layer have prepared, which is no part of its state and of its copies."""
        if self._bound is None:
            self._bound = BoundLayer(self.offset, self.geometry)
        return self._bound

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._bound = None
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _PREPARED}

    @torch.inference_mode(False)
    @torch.no_grad()
    def move(self, support: Support, values: Tensor) -> None:  # (support.nnz,)
        """Take another support and its values, of any number; `self.values` stays the same Parameter object.

        Its gradient is removed, because it belongs to the former positions.
        """
        if "values" not in self._parameters:
            raise RuntimeError("the values of this layer are computed from other parameters, so they cannot move")
        if not isinstance(values, Tensor) or not values.is_floating_point() or values.is_meta:
            kind = f"a tensor of {values.dtype}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
            raise ValueError(f"expected values in a tensor of real numbers, not {kind}")
        if support.shape != self.geometry.weight_shape or values.shape != support.positions.shape:
            wanted = f"a support of shape {self.geometry.weight_shape} and a value for each of its positions"
            found = f"a support of shape {support.shape} with {support.nnz} positions, and values {tuple(values.shape)}"
            raise ValueError(f"expected {wanted}, not {found}")
        if hasattr(self.values, "placements"):
            raise RuntimeError("the values of this layer are sharded over processes (DTensor), so they cannot move")
        new = values.to(self.values, copy=True)
        self.values.grad = None
        self._hold(support)
        if values.shape == self.values.shape:
            self.values.copy_(new)
        else:
            self.values.mul_(1)  # autograd then refuses the graph of an earlier pass
            other = torch.float16 if new.dtype == torch.float32 else torch.float32  # not every device has float64
            # The change of type makes torch forget the former length. The graph of an earlier pass, if there is one,
            # would otherwise expect gradients of that length.
            self.values.data = new.to(other)
            self.values.data = new

    def extra_repr(self) -> str:
        parts = [self._arguments(), f"bias={self.bias is not None}", f"offset={offset_name(self.offset)}"]
        parts += [f"nnz={self.nnz}", f"density={self.density:.3g}"]
        if self.alpha is not None:
            fixed = "" if isinstance(self.alpha, nn.Parameter) else " (fixed)"
            parts.append("alpha on meta" if self.alpha.is_meta else f"alpha={self.alpha.item():.4g}{fixed}")
        return ", ".join(parts)

    def _arguments(self) -> str:
        """Return the sizes of the layer for its repr."""
        raise NotImplementedError

    # --- the state

    def _weight_shape(self) -> tuple[int, ...]:
        return self.geometry.weight_shape

    def _offset_name(self) -> str | None:
        return offset_name(self.offset)

    def _update_state(self, state: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
        super()._update_state(state, prefix, metadata)
        alpha = state.get(prefix + "alpha")
        if isinstance(alpha, Tensor) and alpha.dim() == 0:  # of an earlier version
            state[prefix + "alpha"] = alpha.reshape(1)

    def _why_not_values(self, state: dict[str, Any], prefix: str) -> str | None:
        values = state.get(prefix + "values")
        if prefix + "weight" in state:
            return "the state holds a dense weight; load it before sparsify, or into a densified network"
        if isinstance(values, Tensor) and values.shape != self.values.shape:
            return f"the state holds {values.numel()} values, this layer {self.nnz}; sparsify with the same density"
        return None

    def __prepare_scriptable__(self) -> nn.Module:
        raise RuntimeError(
            f"torch.jit.script cannot compile a {type(self).__name__}; script a dense copy of the network, "
            "torch.jit.script(dctps.densify(copy.deepcopy(net))), or use torch.jit.trace, torch.compile or torch.export"
        )


_PREPARED = ("_bound", "_checked", "_own_fingerprint")  # attributes that belong to the very tensors of a layer
_MOVE = "its places and their number change by layer.move(support, values)"
_ADVICE = {  # attributes that a layer does not let others set, and what to do instead
    "weight": "W = alpha D + S is not stored; change layer.values (S at the support), or layer.move(support, values)",
    "positions": _MOVE,
    "support": _MOVE,
    "nnz": f"{_MOVE}; dctps.set_density(net, density, optimizer) changes it for a whole network",
    "density": f"{_MOVE}; dctps.set_density(net, density, optimizer) changes it for a whole network",
}
