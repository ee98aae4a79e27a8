"""The base class of the layers W = alpha D + S: parameters, support, offset and state (paper: section 3).

`values` is a Parameter whose object never changes, `positions` a buffer; both are in `state_dict`, with `alpha` and
`bias`. D is stored nowhere: it follows from the name of the offset and the shape of the weight.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dctps.core.geometry import Geometry
from dctps.core.offsets import Offset, OffsetLike, offset_name, resolve
from dctps.core.support import Support
from dctps.nn.arguments import check_numbers, choose_support
from dctps.ops import autotune, functional, routes
from dctps.ops.functional import AUTO
from dctps.ops.route import Route, forward_layout
from dctps.ops.weight import dense_weight


class DpsLayer(nn.Module):
    """The base of all layers W = alpha D + S: their parameters, support, offset and state."""

    values: nn.Parameter  # (nnz,), the entries of S
    positions: Tensor  # (nnz,), where the values are in the flattened weight
    alpha: Tensor | None  # a Parameter if it trains; None without an offset
    bias: nn.Parameter | None
    observer: Callable[[Tensor, Tensor], Tensor] | None = None  # is given x and W x + bias, and returns the output

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
        # The seed of the support. A file holds it in place of the positions as long as it gives these positions.
        self.seed = chosen.seed
        self.register_buffer("positions", chosen.positions.to(device).clone())
        self.values = nn.Parameter(torch.empty(chosen.nnz, device=device, dtype=dtype))
        scale = None if self.offset is None else torch.tensor(float(alpha), device=device, dtype=dtype)
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
    def weight(self) -> Tensor:
        """`dense_weight()`, built anew at each access, for other code that reads the weight of a layer."""
        return self.dense_weight()

    def chosen_backend(self, x: Tensor) -> str:  # x: (batch, channels, *spatial)
        """Return the backend that computes on this input; `auto` is replaced by its choice."""
        return self.backend if self.backend != AUTO else autotune.choose(x, self.nnz, self.offset, self.geometry)

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

    def _multiply(self, x: Tensor) -> Tensor:  # x as `_as_batch` gives it
        args = x, self.values, self.positions, self.alpha, self.bias, self.offset, self.geometry
        y = functional.multiply(*args, self.chosen_backend(x))
        return y if self.observer is None else self.observer(x, y)

    @torch.no_grad()
    def move(self, support: Support, values: Tensor) -> None:  # (support.nnz,)
        """Take another support and its values, of any number; `self.values` stays the same Parameter object.

        Its gradient is removed, because it belongs to the former positions.
        """
        if support.shape != self.geometry.weight_shape or values.shape != support.positions.shape:
            wanted = f"a support of shape {self.geometry.weight_shape} and a value for each of its positions"
            found = f"a support of shape {support.shape} with {support.nnz} positions, and values {tuple(values.shape)}"
            raise ValueError(f"expected {wanted}, not {found}")
        self.values.grad, self.seed = None, support.seed
        if values.shape == self.values.shape:
            self.positions.copy_(support.positions)
            self.values.copy_(values)
        else:
            self.positions = support.positions.to(self.positions)
            new = values.to(self.values)
            other = torch.float64 if new.dtype == torch.float32 else torch.float32
            # The change of type makes torch forget the former length. The graph of an earlier pass, if there is one,
            # would otherwise expect gradients of that length.
            self.values.data = new.to(other)
            self.values.data = new

    def extra_repr(self) -> str:
        parts = [self._arguments(), f"bias={self.bias is not None}", f"offset={offset_name(self.offset)}"]
        parts += [f"nnz={self.nnz}", f"density={self.nnz / math.prod(self.geometry.weight_shape):.3g}"]
        if self.alpha is not None:
            fixed = "" if isinstance(self.alpha, nn.Parameter) else " (fixed)"
            parts.append("alpha on meta" if self.alpha.is_meta else f"alpha={self.alpha.item():.4g}{fixed}")
        return ", ".join(parts)

    def _arguments(self) -> str:
        """Return the sizes of the layer for its repr."""
        raise NotImplementedError

    # A layer refuses a state whose positions do not fit, and a state whose metadata name another shape or offset.

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if metadata is not None:
            metadata["dctps"] = self._identity()

    def _identity(self) -> dict[str, Any]:
        return {"shape": list(self.geometry.weight_shape), "offset": offset_name(self.offset)}

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        problem = self._why_not_load(state_dict, prefix, local_metadata)
        if problem:
            error_msgs.append(f"{prefix[:-1] or 'layer'}: {problem}")
            return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _why_not_load(self, state_dict: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> str | None:
        """Return why a state cannot be loaded into this layer, or None if it can."""
        values, positions = state_dict.get(prefix + "values"), state_dict.get(prefix + "positions")
        mine, theirs = self._identity(), metadata.get("dctps", self._identity())
        if prefix + "weight" in state_dict:
            return "the state holds a dense weight; load it before sparsify, or into a densified network"
        if mine != theirs:
            return f"the state belongs to a layer with {theirs}, this layer has {mine}"
        if values is not None and values.shape != self.values.shape:
            return f"the state holds {values.numel()} values, this layer {self.nnz}; sparsify with the same density"
        if positions is not None:
            if positions.shape != self.positions.shape:
                return f"the state holds {positions.numel()} positions, this layer {self.nnz}"
            try:
                Support(self.geometry.weight_shape, positions)
            except ValueError as error:
                return str(error)
        return None
