"""The dense gradients dL/dW of sparse layers, seen in the backward pass while layers are watched.

A layer that is watched passes its output through an identity in the graph. In the backward pass the identity sees the
gradient g of the output and the input x, which the layer has kept anyway. From both follows dL/dW, a few filters at a
time. Only the largest entries are kept, unless several passes are summed, for which all entries are held.

Each use of a layer in a forward pass is connected to one leaf of the graph, its token. The token's gradient is complete
when all uses have been seen, which happens once in each backward pass that accumulates gradients and in no other.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dctps.methods.rewiring.growth import Largest
from dctps.methods.rewiring.process_group import Peers
from dctps.methods.rewiring.weight_gradient import Pair, blocks, weight_gradient
from dctps.nn.dps_layer import DpsLayer
from dctps.ops.weight import torch_func_is_active

# --- one layer ------------------------------------------------------------------------------------------------------


class _Tap(torch.autograd.Function):
    """The identity on y, whose backward pass puts x and the gradient of y into the slot."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, use: Tensor, slot: list[Pair]) -> Tensor:
        ctx.slot = slot
        ctx.save_for_backward(x)  # checkpointing and offloading know of tensors that are saved this way
        ctx.mark_dirty(y)  # it returns y itself, which later layers may change in place
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "an iteration that grows weights by their gradient cannot be differentiated twice "
                "(create_graph=True): the dense gradient would miss the second derivatives; SET needs no gradient"
            )
        (x,) = ctx.saved_tensors
        ctx.slot[:] = [(x, g)]
        return g, None, torch.zeros((), dtype=torch.float32, device=g.device), None


class Wanted(NamedTuple):
    """What is asked of a layer's gradient: its `number` largest entries outside the support, equals by `seed`."""

    number: int
    seed: int


class Watch:
    """The observer of one layer; a copy of the layer has none."""

    def __init__(self, name: str, layer: DpsLayer, together: "DenseGradients") -> None:
        self.name, self.layer, self.together = name, layer, together
        self.wanted = Wanted(0, 0)
        self.token: Tensor | None = None
        self.discard()

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return type(None), ()

    def discard(self) -> None:
        """Forget what was seen."""
        self.passes = 0  # backward passes since the last step
        self.pairs: list[Pair] = []
        self.held: Tensor | None = None
        self.found: Largest | None = None

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or torch_func_is_active() or not (torch.is_grad_enabled() and y.requires_grad):
            return y
        if self.token is None or self.token.device != y.device:
            self.token = torch.zeros((), dtype=torch.float32, device=y.device, requires_grad=True)
            self.token.register_post_accumulate_grad_hook(self._complete)
        slot: list[Pair] = []
        use = self.token.clone()  # one for each use; its hook runs only in passes that reach the token
        use.register_hook(lambda _: self.pairs.append(slot.pop()))
        return _Tap.apply(y, x, use, slot)  # type: ignore[no-any-return, no-untyped-call]

    def _complete(self, token: Tensor) -> None:
        """Take in the pairs of a backward pass in which all uses have been seen."""
        token.grad = None
        pairs, self.pairs = self.pairs, []
        self._check_first()
        self.passes += 1
        if self.together.hold:
            self._add(pairs)
        else:
            self.found = self._largest(lambda filters: weight_gradient(pairs, self.layer.geometry, filters))

    def _check_first(self) -> None:
        """Check a second pass before a step: after a skipped step it replaces the first, else it must be allowed."""
        gradient = self.layer.values.grad
        if self.passes and (gradient is None or not (self.together.hold or bool(gradient.any()))):
            self.discard()
        if self.passes and not self.together.accumulate:
            raise RuntimeError(
                f"a second backward pass through layer {self.name!r} before step(), in an iteration that grows weights "
                "by their gradient; say accumulate=True where several passes make one step"
            )

    @torch.no_grad()
    def _add(self, pairs: list[Pair]) -> None:
        geometry = self.layer.geometry
        for filters in blocks(geometry):
            part = weight_gradient(pairs, geometry, filters)
            if self.held is None:
                self.held = torch.zeros(geometry.weight_shape, dtype=part.dtype, device=part.device)
            self.held[filters] += part

    def _largest(self, part_of: Callable[[slice], Tensor]) -> Largest:
        """The largest entries of the sum over all processes, which the first process alone knows."""
        geometry, support = self.layer.geometry, self.layer.positions.cpu().numpy().astype(np.int64)
        width = geometry.group_channels * geometry.taps
        found = Largest(support, geometry.filters * width, *self.wanted)
        for filters in blocks(geometry):
            part = self.together.peers.total(part_of(filters))
            if part is not None:
                found.see(part, filters.start * width)
        found.settle()
        return found

    def result(self) -> Largest | None:
        """The largest entries; None if no gradient reached the layer."""
        if self.held is not None and self.found is None:
            held = self.held
            self.found = self._largest(lambda filters: held[filters])
        return self.found if self.passes and self.layer.values.grad is not None else None


class _Eagerly:
    """While layers are watched, compiled networks run uncompiled: their graphs would hide inputs and gradients."""

    def __init__(self) -> None:
        self.watchers, self.stance = 0, contextlib.ExitStack()

    def __enter__(self) -> None:
        self.watchers += 1
        if self.watchers == 1:
            self.stance.enter_context(torch.compiler.set_stance("force_eager"))

    def __exit__(self, *error: object) -> None:
        self.watchers -= 1
        if not self.watchers:
            self.stance.close()


_eagerly = _Eagerly()


# --- all layers -----------------------------------------------------------------------------------------------------


class DenseGradients:
    """The dense gradients of some layers.

    If several passes make one step (`accumulate`), or several iterations are summed (`hold`), the dense gradients of
    all layers are held from one backward pass to the next.
    """

    def __init__(self, layers: Mapping[str, DpsLayer], peers: Peers, *, accumulate: bool, hold: bool) -> None:
        self.peers, self.accumulate, self.hold = peers, accumulate, hold or accumulate
        self.watches = {name: Watch(name, layer, self) for name, layer in layers.items()}
        self.watching = contextlib.ExitStack()

    def start(self, wanted: Mapping[str, Wanted]) -> None:
        """Watch these layers from now on, and no others."""
        self.stop()
        for name, want in wanted.items():
            watch = self.watches[name]
            watch.wanted, watch.layer.observer = want, watch
            self.watching.callback(setattr, watch.layer, "observer", None)
        self.watching.enter_context(_eagerly)

    def stop(self) -> None:
        """Stop watching, and forget what was seen."""
        self.watching.close()
        self.discard()

    def discard(self) -> None:
        """Forget what was seen of all layers."""
        for watch in self.watches.values():
            watch.discard()

    def discard_unused(self) -> None:
        """Forget what was seen if no step has used it."""
        if any(watch.passes or watch.pairs for watch in self.watches.values()):
            self.discard()

    def next(self) -> None:
        """Begin the next iteration after a step; what is held stays."""
        for watch in self.watches.values():
            watch.passes = 0

    def results(self) -> dict[str, Largest]:
        """The largest entries of each layer that a gradient reached."""
        found = {name: watch.result() for name, watch in self.watches.items()}
        return {name: largest for name, largest in found.items() if largest is not None}

    def held(self) -> dict[str, Tensor]:
        """The sums that are held, for a checkpoint."""
        return {name: watch.held.clone() for name, watch in self.watches.items() if watch.held is not None}

    def hold_again(self, sums: Mapping[str, Tensor]) -> None:
        """Hold the sums of a checkpoint."""
        for name, tensor in sums.items():
            watch = self.watches[name]
            watch.held = tensor.to(watch.layer.values.device, copy=True)
