"""The dense gradient dL/dW of sparse layers, and only while someone asks for it.

A layer that is watched passes its output through an identity in the graph. In the backward pass the identity sees the
gradient g of the output beside the input x, which the layer has kept anyway; from both follows dL/dW, by torch's own
operators, a few filters at a time. Only the largest entries remain, unless all are to be held for several passes.

Each use of a layer in a forward pass ends in one leaf of the graph, its token. The token's gradient is complete when
all uses have been seen, once in each backward pass that accumulates gradients and in no other.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import grad as gradients

from dctps.core.geometry import Geometry
from dctps.methods.rewiring.growth import Largest
from dctps.methods.rewiring.process_group import Peers
from dctps.nn.dps_layer import DpsLayer
from dctps.ops.weight import torch_func_is_active

# What is made in one go: entries of a dense gradient (or a 64th of them all), and from how many of x and g. Torch's
# convolutions want several times that for themselves; larger pieces are hardly faster.
BLOCK = 1 << 18
IMAGES = 1 << 18

Pair = tuple[Tensor, Tensor]  # x (batch, channels, *spatial) and g (batch, filters, *output) of one use of a layer


# --- dL/dW ----------------------------------------------------------------------------------------------------------


def blocks(geometry: Geometry) -> Iterator[slice]:
    """Filters, some at a time; those of a group stay together."""
    width = geometry.group_channels * geometry.taps
    unit = geometry.filters // geometry.groups if geometry.groups > 1 else 1
    step = unit * max(1, max(BLOCK, geometry.filters * width // 64) // (unit * width))
    return (slice(start, min(start + step, geometry.filters)) for start in range(0, geometry.filters, step))


@torch.no_grad()
def weight_gradient(pairs: Iterable[Pair], geometry: Geometry, filters: slice) -> Tensor:
    """dL/dW for some filters, summed over the uses of the layer: (filters, channels per group, *kernel).

    A few images at a time: torch's operators copy what they get.
    """
    total = None
    for x, g in pairs:
        work = torch.float64 if x.dtype == torch.float64 else torch.float32  # in which half types are summed up
        g = g[:, filters]
        each = math.prod(x.shape[1:]) + math.prod(g.shape[1:])
        images = max(1, IMAGES // each) if geometry.axes else max(1, len(x))
        for some_x, some_g in zip(x.split(images), g.split(images), strict=True):
            with torch.autocast(x.device.type, enabled=False):
                part = _weight_gradient(some_x.to(work), some_g.to(work), geometry, filters)
            total = part if total is None else total.add_(part)
    if total is None:
        raise ValueError("there is no gradient without a use of the layer")
    return total


def _weight_gradient(x: Tensor, g: Tensor, geometry: Geometry, filters: slice) -> Tensor:
    """By torch's own operators."""
    if geometry.axes == 0:
        return g.T @ x
    size = geometry.filters // geometry.groups
    groups = range(filters.start // size, -(-filters.stop // size))
    channels = slice(groups.start * geometry.group_channels, groups.stop * geometry.group_channels)
    run = (gradients.conv1d_weight, gradients.conv2d_weight, gradients.conv3d_weight)[geometry.axes - 1]
    shape = (g.shape[1], *geometry.weight_shape[1:])
    sliding = geometry.stride, geometry.padding, geometry.dilation
    result: Tensor = run(x[:, channels], shape, g, *sliding, len(groups))  # type: ignore[no-untyped-call]
    return result


# --- one layer ------------------------------------------------------------------------------------------------------


class _Tap(torch.autograd.Function):
    """The identity on y; backwards it puts x and the gradient of y into the slot."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, use: Tensor, slot: list[Pair]) -> Tensor:
        ctx.slot = slot
        ctx.save_for_backward(x)  # where checkpointing and offloading find it
        ctx.mark_dirty(y)  # y itself, so that whoever changes it in place may go on doing so
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
    """What is to be known of a layer's gradient: its `number` largest entries outside the support, ties by `seed`."""

    number: int
    seed: int


class Watch:
    """The observer of one layer; in copies of the layer there is none."""

    def __init__(self, name: str, layer: DpsLayer, together: "DenseGradients") -> None:
        self.name, self.layer, self.together = name, layer, together
        self.wanted = Wanted(0, 0)
        self.token: Tensor | None = None
        self.discard()

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return type(None), ()

    def discard(self) -> None:
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
        use = self.token.clone()  # of this use; its hook runs only in passes that go on to the token
        use.register_hook(lambda _: self.pairs.append(slot.pop()))
        return _Tap.apply(y, x, use, slot)  # type: ignore[no-any-return, no-untyped-call]

    def _complete(self, token: Tensor) -> None:
        """All uses in one backward pass have been seen."""
        token.grad = None
        pairs, self.pairs = self.pairs, []
        self._check_first()
        self.passes += 1
        if self.together.hold:
            self._add(pairs)
        else:
            self.found = self._largest(lambda filters: weight_gradient(pairs, self.layer.geometry, filters))

    def _check_first(self) -> None:
        """A second backward pass without a step: after a skipped step the first one goes, else it must be allowed."""
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
        """What is wanted of the sum over all processes; the first of them alone knows it."""
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
        """None where no gradient reached the layer."""
        if self.held is not None and self.found is None:
            held = self.held
            self.found = self._largest(lambda filters: held[filters])
        return self.found if self.passes and self.layer.values.grad is not None else None


class _Eagerly:
    """While anyone watches, compiled networks run as they are written: their graphs hide what is to be seen."""

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

    They are held from one backward pass to the next, all layers at the same time, if several passes make one step
    (`accumulate`) or if several iterations are summed (`hold`).
    """

    def __init__(self, layers: Mapping[str, DpsLayer], peers: Peers, *, accumulate: bool, hold: bool) -> None:
        self.peers, self.accumulate, self.hold = peers, accumulate, hold or accumulate
        self.watches = {name: Watch(name, layer, self) for name, layer in layers.items()}
        self.watching = contextlib.ExitStack()

    def start(self, wanted: Mapping[str, Wanted]) -> None:
        """Watch these layers from now on."""
        self.stop()
        for name, want in wanted.items():
            watch = self.watches[name]
            watch.wanted, watch.layer.observer = want, watch
            self.watching.callback(setattr, watch.layer, "observer", None)
        self.watching.enter_context(_eagerly)

    def stop(self) -> None:
        """Watch no longer, and forget."""
        self.watching.close()
        self.discard()

    def discard(self) -> None:
        for watch in self.watches.values():
            watch.discard()

    def discard_unused(self) -> None:
        """Forget what has been seen if no step has used it."""
        if any(watch.passes or watch.pairs for watch in self.watches.values()):
            self.discard()

    def next(self) -> None:
        """A step was taken: what is held stays, the next backward pass is the first of its iteration."""
        for watch in self.watches.values():
            watch.passes = 0

    def results(self) -> dict[str, Largest]:
        """What was found of each layer that a gradient reached."""
        found = {name: watch.result() for name, watch in self.watches.items()}
        return {name: largest for name, largest in found.items() if largest is not None}

    def held(self) -> dict[str, Tensor]:
        """The sums so far, for a checkpoint."""
        return {name: watch.held.clone() for name, watch in self.watches.items() if watch.held is not None}

    def hold_again(self, sums: Mapping[str, Tensor]) -> None:
        """Go on from the sums of a checkpoint."""
        for name, tensor in sums.items():
            watch = self.watches[name]
            watch.held = tensor.to(watch.layer.values.device, copy=True)
