"""What all layers W = alpha D + S share: parameters, support, offset and state (paper: section 3).

`values` is a Parameter whose object never changes, `positions` a buffer; both are in `state_dict`, with `alpha` and
`bias`. D is nowhere: it follows from the offset's name and the layer's shape.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dctps.core.allocation import budget
from dctps.core.geometry import Geometry
from dctps.core.offsets import Offset, OffsetLike, offset_name, resolve
from dctps.core.support import Support
from dctps.ops import autotune, functional, routes
from dctps.ops.functional import AUTO
from dctps.ops.route import Route, forward_layout
from dctps.ops.weight import dense_weight


class DpsLayer(nn.Module):
    """What all layers share: the parameters, the support, the offset and the state."""

    values: nn.Parameter
    positions: Tensor
    alpha: Tensor | None
    bias: nn.Parameter | None
    observer: Callable[[Tensor, Tensor], Tensor] | None = None  # sees x and y of each product, padded; gives y back

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
        device, dtype = torch.device(device or torch.get_default_device()), dtype or torch.get_default_dtype()
        if not dtype.is_floating_point:
            raise ValueError(f"a layer holds real floating point numbers, not {dtype}")
        if device.type == "meta":
            raise ValueError(
                "this layer never holds a dense weight: build it on a real device, there is nothing to save"
            )
        if not math.isfinite(alpha):
            raise ValueError(f"alpha must be a finite number, not {alpha}")
        functional.check_backend(backend)
        self.geometry, self.backend = geometry, backend
        self.offset: Offset | None = resolve(offset, geometry.weight_shape)
        chosen = _choose_support(geometry.weight_shape, density, nnz, support, seed)
        self.seed = chosen.seed  # of the support; a file holds it instead of the positions while it still holds
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
        """S = 0 under an offset, else torch's own U(+-1/sqrt(fan_in)) at the support; the bias always as in torch.

        Drawn from `seed`, by default that of the support.
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
        """Where the values are."""
        return Support(self.geometry.weight_shape, self.positions)

    @property
    def nnz(self) -> int:
        return self.values.numel()

    def dense_weight(self) -> Tensor:
        """alpha D + S, of the shape of the torch layer's weight; differentiable in values and alpha."""
        return dense_weight(self.values, self.positions, self.alpha, self.offset, self.geometry.weight_shape)

    @property
    def weight(self) -> Tensor:
        """`dense_weight()`, built anew at each access, for foreign code that reads a layer's weight."""
        return self.dense_weight()

    def chosen_backend(self, x: Tensor) -> str:  # x: (batch, channels, *spatial)
        """The backend that serves this input: what `auto` stands for."""
        return self.backend if self.backend != AUTO else autotune.choose(x, self.nnz, self.offset, self.geometry)

    def route(self, x: Tensor) -> Route:
        """How this layer computes on the input x: the route of `dctps.ops.routes`."""
        batch = self._as_batch(x)
        layout = forward_layout(batch, self.geometry)
        return routes.choose(self.offset, self.geometry, layout, self.chosen_backend(batch), self.nnz)

    def multiply_adds(self, x: Tensor) -> int:
        """The multiply-adds that this layer performs on the input x."""
        return self.route(x).multiply_adds(self._as_batch(x), self.nnz)

    def _as_batch(self, x: Tensor) -> Tensor:
        """The input as (batch, channels, *spatial), padded where the product does not pad by itself."""
        raise NotImplementedError

    def _multiply(self, x: Tensor) -> Tensor:  # x as `_as_batch` gives it
        args = x, self.values, self.positions, self.alpha, self.bias, self.offset, self.geometry
        y = functional.multiply(*args, self.chosen_backend(x))
        return y if self.observer is None else self.observer(x, y)

    @torch.no_grad()
    def move(self, support: Support, values: Tensor) -> None:  # (support.nnz,)
        """Another support and its values, also more or fewer of them; `values` stays the same Parameter object.

        Its gradient, which belonged to the former positions, goes.
        """
        if support.shape != self.geometry.weight_shape or values.shape != support.positions.shape:
            wanted = f"a support of shape {self.geometry.weight_shape} and a value for each of its positions"
            raise ValueError(f"expected {wanted}, not {support.shape}, {support.nnz} and {tuple(values.shape)}")
        self.values.grad, self.seed = None, support.seed
        if values.shape == self.values.shape:
            self.positions.copy_(support.positions)
            self.values.copy_(values)
        else:
            self.positions = support.positions.to(self.positions)
            new = values.to(self.values)
            other = torch.float64 if new.dtype == torch.float32 else torch.float32
            self.values.data = new.to(other)  # another type: else the graph of an earlier pass, if any, would make
            self.values.data = new  # torch expect gradients of the former length

    def extra_repr(self) -> str:
        parts = [self._arguments(), f"bias={self.bias is not None}", f"offset={offset_name(self.offset)}"]
        parts += [f"nnz={self.nnz}", f"density={self.nnz / math.prod(self.geometry.weight_shape):.3g}"]
        if self.alpha is not None:
            fixed = "" if isinstance(self.alpha, nn.Parameter) else " (fixed)"
            parts.append("alpha on meta" if self.alpha.is_meta else f"alpha={self.alpha.item():.4g}{fixed}")
        return ", ".join(parts)

    def _arguments(self) -> str:
        raise NotImplementedError

    # The state: a layer refuses positions that do not fit, and a state that says it belongs to another layer.

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
        values, positions = state_dict.get(prefix + "values"), state_dict.get(prefix + "positions")
        mine, theirs = self._identity(), metadata.get("dctps", self._identity())
        if prefix + "weight" in state_dict:
            return "the state holds a dense weight; load it before sparsify, or into a densified network"
        if mine != theirs:
            return f"the state belongs to a layer with {theirs}, this one has {mine}"
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


def _choose_support(
    shape: tuple[int, ...], density: float | None, nnz: int | None, support: Support | None, seed: int
) -> Support:
    size = math.prod(shape)
    if size < 1:
        raise ValueError(f"a weight of shape {shape} has no place for a trainable value")
    if sum(given is not None for given in (density, nnz, support)) != 1:
        raise ValueError("say how many weights train by exactly one of density=, nnz= and support=")
    if support is not None:
        if not isinstance(support, Support):
            raise ValueError(f"support must be a Support, not a {type(support).__name__}; see Support.from_mask")
        if support.shape != shape:
            raise ValueError(f"a support of shape {support.shape} cannot serve a weight of shape {shape}")
        return support
    return Support.sample(shape, budget(size, density) if density is not None else operator.index(nnz or 0), seed)
