"""What a layer keeps from call to call: the plan for each kind of input, and W while no gradient of it is wanted.

Neither is part of the layer's state. A plan belongs to one shape, layout and type of the input, one backend and one
number of values; whatever else changes is read anew in each call. W is built once and used for as long as the values,
the positions and alpha are, bit by bit, the numbers from which it was built. They are compared in each call, which
takes O(nnz), because a change of `p.data` leaves no trace in a tensor. W is given up when gradients are wanted again.
"""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import to_dlpack  # type: ignore[attr-defined]

from dctps.core.geometry import Geometry, convolve
from dctps.core.offsets import Offset
from dctps.core.patch_offset import PatchOffset
from dctps.ops import eager, functional, native
from dctps.ops.finish import Finish
from dctps.ops.normalise import finished
from dctps.ops.weight import dense_weight

MOST_PLANS = 64  # kinds of inputs that a layer remembers


class PreparedWeight:
    """The weight W, with a copy of the numbers from which it was built."""

    served: Hashable = None  # shape and type of the last input for which it was used, and what chose the backend

    def __init__(self, weight: Tensor, values: Tensor, positions: Tensor, alpha: Tensor | None) -> None:
        self.weight, self.values, self.alpha = weight, values, alpha
        sources = [t.detach().contiguous() for t in (values, positions, alpha) if t is not None]
        self._tensors = [] if native.kernels is not None else [source.clone() for source in sources]
        self._copies: Any = None if native.kernels is None else native.kernels.Snapshot(list(map(to_dlpack, sources)))

    def holds(self, values: Tensor, positions: Tensor, alpha: Tensor | None) -> bool:
        """Return whether W is still that of these numbers."""
        if self._copies is None:
            sources = [t for t in (values, positions, alpha) if t is not None]
            return len(sources) == len(self._tensors) and all(map(_equal, sources, self._tensors))
        if alpha is None:
            same: bool = self._copies.matches(to_dlpack(values), to_dlpack(positions))
        else:
            same = self._copies.matches(to_dlpack(values), to_dlpack(positions), to_dlpack(alpha))
        return same


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)


class BoundLayer:
    """A layer's offset and geometry, with what its calls have prepared."""

    def __init__(self, offset: Offset | None, geometry: Geometry) -> None:
        self.offset, self.geometry = offset, geometry
        self.prepared: PreparedWeight | None = None
        self._plans: dict[Hashable, tuple[str, eager.Plan | None]] = {}
        self._is_named = offset is None or isinstance(offset, PatchOffset)  # else it may change, and we do not see it

    def multiply(
        self,
        x: Tensor,
        values: Tensor,
        positions: Tensor,
        alpha: Tensor | None,
        bias: Tensor | None,
        choice: Hashable,
        choose: Callable[[Tensor], str],
        finish: Finish | None = None,
    ) -> Tensor:
        """Return (alpha D + S) x + bias, where `is_eager()`.

        choice: what `choose(x)`, the name of a backend, depends on beside x, gradients and the number of threads.
        finish: what follows, where no gradient is wanted.
        """
        layer = values, positions, alpha, bias
        if finish is not None:
            plan = self._plan(x, values, choice, choose)[1] if _are_plain(x, values, alpha) else None
            fits = bias is None or (type(bias) in eager.PLAIN and bias.dtype == x.dtype)
            if plan is not None and plan.finishing is not None and fits:
                return plan.finishing.forward_finished(x, *layer, finish)
            return finished(self.multiply(x, *layer, choice, choose), finish)
        if torch._C._is_any_autocast_enabled() or not _are_plain(x, values, alpha):
            return functional.multiply(x, *layer, self.offset, self.geometry, choose(x))
        keeps = not (torch.is_grad_enabled() and (values.requires_grad or (alpha is not None and alpha.requires_grad)))
        if not keeps:
            self.prepared = None
        backend, plan = self._plan(x, values, choice, choose)
        if plan is not None:
            return eager.multiply(x, *layer, plan)
        if backend == "dense" and self._is_named and x.is_cpu and _share_type(x, values, alpha, bias):
            weight = self._kept(values, positions, alpha) if keeps else self._built(values, positions, alpha)
            if keeps and self.prepared is not None:
                self.prepared.served = x.shape, x.dtype, choice
            return convolve(x, weight, bias, self.geometry)
        return functional.multiply(x, *layer, self.offset, self.geometry, backend)

    def native_plan(
        self, x: Tensor, values: Tensor, choice: Hashable, choose: Callable[[Tensor], str]
    ) -> eager.Plan | None:
        """Return the plan for inputs like x where the native kernels compute in the type of x, else None."""
        if torch._C._is_any_autocast_enabled() or not _are_plain(x, values, None):
            return None
        return self._plan(x, values, choice, choose)[1]

    def _plan(
        self, x: Tensor, values: Tensor, choice: Hashable, choose: Callable[[Tensor], str]
    ) -> tuple[str, eager.Plan | None]:
        """Return the backend for inputs like x, and the plan where it is that of the native kernels."""
        kind = x.dtype, values.dtype, x.device, x.requires_grad, torch.is_grad_enabled(), torch.get_num_threads()
        key = x.shape, x.stride(), kind, values.numel(), choice
        found = self._plans.get(key)
        if found is None:
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            backend = choose(x)
            native_layer = backend == "native" and self._has_plan(x, values)
            plan = eager.Plan.of(x, values.numel(), self.offset, self.geometry) if native_layer else None  # type: ignore[arg-type]
            found = self._plans[key] = backend, plan
        return found

    def _has_plan(self, x: Tensor, values: Tensor) -> bool:
        return self._is_named and x.is_cpu and x.dtype == values.dtype and x.dtype in (torch.float32, torch.float64)

    def _kept(self, values: Tensor, positions: Tensor, alpha: Tensor | None) -> Tensor:
        """Return W, built if the layer has changed since the last call."""
        kept = self.prepared
        if kept is None or not kept.holds(values, positions, alpha):
            with torch.inference_mode(False), torch.no_grad():  # a tensor made in inference mode could not serve later
                kept = PreparedWeight(self._built(values, positions, alpha), values, positions, alpha)
            self.prepared = kept
        return kept.weight

    def _built(self, values: Tensor, positions: Tensor, alpha: Tensor | None) -> Tensor:
        return dense_weight(values, positions, alpha, self.offset, self.geometry.weight_shape)


def _share_type(x: Tensor, values: Tensor, alpha: Tensor | None, bias: Tensor | None) -> bool:
    """Return whether all numbers are of one type and on the CPU, where a comparison waits for nothing."""
    dtype = x.dtype
    other = [t for t in (alpha, bias) if t is not None and (t.dtype != dtype or not t.is_cpu)]
    return values.dtype == dtype and values.is_cpu and not other


def _are_plain(x: Tensor, values: Tensor, alpha: Tensor | None) -> bool:
    plain = eager.PLAIN
    return type(x) in plain and type(values) in plain and (alpha is None or type(alpha) in plain)
