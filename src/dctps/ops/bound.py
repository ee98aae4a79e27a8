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
from torch.utils.dlpack import to_dlpack

from dctps.core.geometry import Geometry, convolve
from dctps.core.offsets import Offset
from dctps.core.patch_offset import PatchOffset
from dctps.ops import eager, functional, native
from dctps.ops.weight import dense_weight

MOST_PLANS = 64  # kinds of inputs that a layer remembers


class PreparedWeight:
    """The weight W, with a copy of the numbers from which it was built."""

    def __init__(self, weight: Tensor, *sources: Tensor | None) -> None:
        self.weight = weight
        self._copies = None if native.kernels is None else native.kernels.Snapshot([to_dlpack(t) for t in _there(sources)])
        self._tensors = [t.detach().clone() for t in _there(sources)] if self._copies is None else []

    def holds(self, *sources: Tensor | None) -> bool:
        """Return whether W is still that of these values, positions and alpha."""
        if self._copies is not None:
            same: bool = self._copies.matches(*[to_dlpack(t) for t in sources if t is not None])
            return same
        now = _there(sources)
        return len(now) == len(self._tensors) and all(map(_equal, now, self._tensors))


def _there(tensors: tuple[Tensor | None, ...]) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)


class BoundLayer:
    """A layer's offset and geometry, with what its calls have prepared."""

    def __init__(self, offset: Offset | None, geometry: Geometry) -> None:
        self.offset, self.geometry = offset, geometry
        self.prepared: PreparedWeight | None = None
        self._served: Hashable = None  # the last kind of input for which W was used
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
    ) -> Tensor:
        """Return (alpha D + S) x + bias, where `is_eager()`.

        choice: what `choose(x)`, the name of a backend, depends on beside x, gradients and the number of threads.
        """
        layer = values, positions, alpha, bias
        if torch._C._is_any_autocast_enabled() or not _are_plain(x, values, alpha):
            return functional.multiply(x, *layer, self.offset, self.geometry, choose(x))
        keeps = not (torch.is_grad_enabled() and (values.requires_grad or (alpha is not None and alpha.requires_grad)))
        if keeps and self.prepared is not None and self._served == (x.shape, x.dtype, choice):
            return convolve(x, self._weight(values, positions, alpha), bias, self.geometry)
        backend, plan = self._plan(x, values, choice, choose)
        if plan is not None:
            return eager.multiply(x, *layer, plan)
        if backend == "dense" and keeps and self._can_keep(x, *layer):
            self._served = x.shape, x.dtype, choice
            return convolve(x, self._weight(values, positions, alpha), bias, self.geometry)
        self.prepared = None if not keeps else self.prepared
        return functional.multiply(x, *layer, self.offset, self.geometry, backend)

    def _can_keep(self, x: Tensor, *layer: Tensor | None) -> bool:
        """Return whether W can be kept: changes are seen in tensors on the CPU, and torch's product takes one type."""
        values, _, alpha, bias = layer
        types = {t.dtype for t in (x, values, alpha, bias) if t is not None}
        return self._is_named and x.is_cpu and values is not None and values.is_cpu and len(types) == 1

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

    def _weight(self, values: Tensor, positions: Tensor, alpha: Tensor | None) -> Tensor:
        """Return W, built if the layer has changed since the last call."""
        if self.prepared is None or not self.prepared.holds(values, positions, alpha):
            with torch.inference_mode(False), torch.no_grad():  # a tensor made in inference mode could not serve later
                sources = [None if t is None else t.detach().contiguous() for t in (values, positions, alpha)]
                weight = dense_weight(values, positions, alpha, self.offset, self.geometry.weight_shape)
            self.prepared = PreparedWeight(weight, *sources)
        return self.prepared.weight


def _are_plain(x: Tensor, values: Tensor, alpha: Tensor | None) -> bool:
    plain = eager.PLAIN
    return type(x) in plain and type(values) in plain and (alpha is None or type(alpha) in plain)
