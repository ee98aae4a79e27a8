"""Pruning at initialisation: a score, a schedule and a density make supports (paper: section 2.1, appendix C).

In step t = 1..T the weights are scored on the network as pruned so far, and the k_t best of all layers together are
kept: k_t = floor(N P^(t/T)) (exponential) or floor(N (1 - t (1 - P) / T)) (linear), never fewer than the
K = max(1, floor(P N + 1/2)) asked for, and exactly K in the last step. Weights once pruned stay so, unless the method
lets them recover. Scores are magnitudes, and a weight whose score is not positive is never kept: with fewer than K
positive ones the method has collapsed, which is an error and not a dense or a short network. Signed scores (GraSP) are
ranked as they are; they have collapsed when fewer than K are other than zero and chance would decide among the zeros.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from torch import Tensor, nn

from dctps.base.progress import counting_bar
from dctps.base.registry import lookup
from dctps.base.words import listed
from dctps.core.allocation import budget, check_at_least_one, check_density
from dctps.core.ranking import Scores, largest
from dctps.core.support import Int64, Support, derive_seed, sample
from dctps.methods.pruning import scores
from dctps.methods.pruning.scores import Prepare, Subject
from dctps.methods.pruning.scoring_data import Feed, Loss, checked_loss, checked_shape
from dctps.nn.convert import Exclude, targets
from dctps.nn.dps_layer import DpsLayer

THIN = 0.05  # density below which sparse layers are faster than dense ones on a CPU

OnStep = Callable[[int, Mapping[str, Support]], object]  # the step, from 1, and the supports after it


@dataclasses.dataclass(frozen=True)
class Method:
    """A way of pruning at initialisation: a score and how it is used."""

    score: Callable[[Subject, Feed], Iterator[Tensor]]
    prepare: Prepare | None = None  # of the copy that is scored; None: the score needs no pass
    steps: int = 1
    batches: int = 0  # per step; 0: no data
    loss: str = "cross_entropy"
    signed: bool = False  # negative scores are scores too
    recovers: bool = False  # pruned weights may come back in a later step
    thins: bool = False  # the pruned ones have no say, so that few weights are scored in sparse layers

    @property
    def needs_data(self) -> bool:
        return self.batches > 0

    @property
    def needs_input(self) -> bool:
        """Whether the network is run at all, be it on data or on ones."""
        return self.prepare is not None


class CollapseError(RuntimeError):
    """Fewer weights have a score than are to be kept: `positive` of `asked`, in step `step` (from 1)."""

    def __init__(self, message: str, positive: int, asked: int, step: int) -> None:
        super().__init__(message, positive, asked, step)  # all of them, so that it can be pickled
        self.positive, self.asked, self.step = positive, asked, step

    def __str__(self) -> str:
        return str(self.args[0])


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a pruning took; a pass is one batch through the network."""

    seconds: float
    forward_passes: int
    backward_passes: int


class Supports(dict[str, Support]):
    """The support of each layer, with how many weights were asked for, the cost, and the collapse if there was one."""

    asked: int
    cost: Cost
    collapse: CollapseError | None

    def __init__(self, layers: Mapping[str, Support], asked: int, cost: Cost, collapse: CollapseError | None) -> None:
        super().__init__(layers)
        self.asked, self.cost, self.collapse = asked, cost, collapse

    @property
    def nnz(self) -> int:
        return sum(support.nnz for support in self.values())


def prune(
    model: nn.Module,
    method: str,
    density: float,
    *,
    batches: Iterable[Any] | None = None,
    input_shape: Sequence[int] | None = None,
    steps: int | None = None,
    schedule: str | None = None,
    loss: str | Loss | None = None,
    batches_per_step: int | None = None,
    seed: int = 0,
    on_collapse: str = "error",
    progress: bool = True,
    exclude: Exclude = (),
    on_step: OnStep | None = None,
) -> Supports:
    """Choose the weights to keep: exactly K = max(1, floor(P N + 1/2)) of the N in all prunable layers.

    The model is only read. The result goes to `sparsify(model, supports=..., offset=None)`. Arguments that a method
    has no use for are ignored, so that one call serves all of METHODS.

    batches: pairs (inputs, labels); `batches_per_step` fresh ones in each step. A list or DataLoader starts over at its
        end. Inputs are a tensor, or a tuple of them for a network of several arguments.
    input_shape: of one example, (channels, height, width), for SynFlow; without it, that of the first batch.
    steps, loss: the method's own unless given; loss is "cross_entropy", "neg_logit" or a callable(output, labels).
    schedule: "exponential" (the default) or "linear".
    seed: decides between equal scores, and seeds torch while batches are drawn and the network runs.
    on_collapse: "error" raises CollapseError; "short" returns the weights that have a score; "random_fill" adds others
        at random up to K.
    on_step: called after each step with its number and the supports so far.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> prune(net, "synflow", 0.5, input_shape=(4,)).nnz
    9
    """
    chosen = lookup(METHODS, method, "pruning method")
    lookup(COLLAPSES, on_collapse, "on_collapse")
    layers = _layers(model, exclude)
    weights = [layer.get_parameter("weight") for layer in layers.values()]
    steps = _at_least_one("steps", chosen.steps if steps is None else steps)
    counts = schedule_counts(sum(weight.numel() for weight in weights), density, steps, schedule or "exponential")
    feed = _feed(method, chosen, batches, input_shape, loss, batches_per_step, weights[0].device)
    start = time.perf_counter()
    with _apart(weights, seed), _bar(f"{method}, density {density:g}", steps, progress) as advance:
        subject = Subject(model, layers, chosen.prepare)
        pruning = _Pruning(method, chosen, subject, feed, counts, seed, on_collapse)
        for step, kept in enumerate(pruning.run(), 1):
            advance()
            if on_step is not None:
                on_step(step, subject.supports(kept))
    cost = Cost(time.perf_counter() - start, subject.forward_passes, subject.backward_passes)
    return Supports(subject.supports(kept), counts[-1], cost, pruning.collapse)


# --- the loop --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Pruning:
    """One call of `prune`."""

    name: str
    method: Method
    subject: Subject
    feed: Feed
    counts: Sequence[int]
    seed: int
    on_collapse: str
    collapse: CollapseError | None = None

    def run(self) -> Iterator[Int64]:
        """The positions of the weights that are kept, after each step."""
        kept: Int64 | None = None  # all
        if self.counts[-1] == self.subject.size:  # whatever their scores
            yield np.arange(self.subject.size)
            return
        for step, count in enumerate(self.counts, 1):
            scores = self.subject.fill(self.method.score(self.subject, self.feed), step)
            kept = self._choose(scores.numpy(), None if self.method.recovers else kept, count, step)
            yield kept
            if self.collapse is not None:
                return
            if step < len(self.counts):
                self._wear(kept)

    def _wear(self, kept: Int64) -> None:
        if self.method.thins and len(kept) <= THIN * self.subject.size:
            self.subject.thin(kept)
        else:
            self.subject.wear(kept, self.method.recovers)

    def _choose(self, scores: Scores, among: Int64 | None, count: int, step: int) -> Int64:
        """The `count` best; before the last step all that have a score, if they are fewer but still enough."""
        values = scores if among is None else scores[among]
        scored = values != 0 if self.method.signed else values > 0
        found, seed = int(np.count_nonzero(scored)), derive_seed(self.seed, f"step {step}")
        if found < self.counts[-1] and not self._decided(values):
            chosen = self._collapsed(scored, step, seed)
        elif self.method.signed or found == len(values):
            chosen = largest(values, min(count, len(values)), seed)
        else:
            chosen = np.flatnonzero(scored)[largest(values[scored], min(count, found), seed)]
        return chosen if among is None else among[chosen]

    def _decided(self, values: Scores) -> bool:
        """Whether signed scores leave nothing to chance: all zeros are kept, as better than the negative ones."""
        return self.method.signed and int(np.count_nonzero(values >= 0)) <= self.counts[-1]

    def _collapsed(self, scored: npt.NDArray[np.bool_], step: int, seed: int) -> Int64:
        """Raise the error, or keep it and choose what there is, as the user wishes."""
        self.collapse = self._error(int(np.count_nonzero(scored)), step)
        if self.on_collapse == "error":
            raise self.collapse
        if self.on_collapse == "random_fill":
            others = np.flatnonzero(~scored)
            scored[others[sample(len(others), self.counts[-1] - self.collapse.positive, seed)]] = True
        return np.flatnonzero(scored)

    def _error(self, found: int, step: int) -> CollapseError:
        asked, size = self.counts[-1], self.subject.size
        kind = "a score other than zero" if self.method.signed else "a positive score"
        # the first step scores the dense network, which gives no more than these; later ones a network pruned too far
        density = "a larger density" if step > 1 else f"a density of at most {found}/{size}" if found else ""
        others = [density, "other batches or more of them" if self.method.needs_data else "", "another method"]
        return CollapseError(
            f"{self.name} collapsed in step {step} of {len(self.counts)}: {asked:,} of {size:,} weights are to be "
            f"kept, the number with {kind} is {found:,} ({self.subject.explain()}). Possible: "
            f'{", ".join(filter(None, others))}, on_collapse="short" (keep {found:,}) or "random_fill" (add '
            f"{asked - found:,} at random)",
            found,
            asked,
            step,
        )


def schedule_counts(size: int, density: float, steps: int, schedule: str = "exponential") -> list[int]:
    """How many of `size` weights are kept after each step: k_t, and exactly K at the end.

    >>> schedule_counts(1000, 0.001, 3), schedule_counts(1000, 0.1, 3, "linear")
    ([100, 10, 1], [700, 400, 100])
    """
    fraction = lookup(SCHEDULES, schedule, "schedule")
    check_density(density)
    check_at_least_one(size, density)
    asked = budget(size, density)
    return [max(asked, math.floor(size * fraction(density, t / steps))) for t in range(1, steps)] + [asked]


# --- what is asked ---------------------------------------------------------------------------------------------------


def _layers(model: nn.Module, exclude: Exclude) -> dict[str, nn.Module]:
    """The layers to prune, by name; weights that cannot be scored are an error."""
    sparse = [name for name, layer in model.named_modules() if isinstance(layer, DpsLayer)]
    if sparse:
        raise ValueError(f"this network is sparse already (layers {listed(sparse)}); prune it before, or densify it")
    layers = targets(model, exclude)
    for name, layer in layers.items():
        weight = layer.get_parameter("weight")
        if weight.is_meta:
            raise ValueError(f"layer {name!r} is on the meta device: there are no weights to score")
        if weight.numel() == 0:
            raise ValueError(f"layer {name!r} has a weight of shape {tuple(weight.shape)}: nothing to keep; exclude it")
    return layers


def _feed(
    name: str,
    method: Method,
    batches: Iterable[Any] | None,
    input_shape: Sequence[int] | None,
    loss: str | Loss | None,
    per_step: int | None,
    device: torch.device,
) -> Feed:
    if method.needs_data and batches is None:
        raise ValueError(f"{name} scores weights on data: give batches=, an iterable of pairs (inputs, labels)")
    if method.needs_input and batches is None and input_shape is None:
        raise ValueError(
            f"{name} needs the shape of an example: give input_shape=(channels, height, width) or batches="
        )
    count = method.batches if per_step is None else _at_least_one("batches_per_step", per_step)
    return Feed(batches, count, checked_loss(method.loss if loss is None else loss), checked_shape(input_shape), device)


def _at_least_one(name: str, value: int) -> int:
    if not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, not {value!r}")
    return int(value)


# --- surroundings ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _apart(weights: Sequence[Tensor], seed: int) -> Iterator[None]:
    """Gradients on, torch's generators seeded, and restored at the end."""
    devices = sorted({weight.device.index or 0 for weight in weights if weight.is_cuda})
    with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices):
        own = derive_seed(seed, "passes")
        torch.default_generator.manual_seed(own)  # not torch.manual_seed, which would also seed unused devices
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(own)
        yield


@contextlib.contextmanager
def _bar(text: str, steps: int, wanted: bool) -> Iterator[Callable[[], None]]:
    console = Console(stderr=True)
    hidden = not (wanted and console.is_terminal)
    with counting_bar(console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(text, total=steps)
        yield lambda: bar.advance(task)


COLLAPSES = {"error": "raise CollapseError", "short": "keep what has a score", "random_fill": "and others at random"}

SCHEDULES: dict[str, Callable[[float, float], float]] = {  # density, t / T -> density after step t
    "exponential": lambda density, part: density**part,
    "linear": lambda density, part: 1 - part * (1 - density),
}

_ON_DATA: dict[str, Any] = {"prepare": scores.in_training, "batches": 1}

METHODS: dict[str, Method] = {
    "random": Method(scores.constant),
    "magnitude": Method(scores.magnitude),
    "snip": Method(scores.sensitivity, **_ON_DATA),
    "iter_snip": Method(scores.sensitivity, **_ON_DATA, steps=60, thins=True),
    "grasp": Method(scores.gradient_flow, **_ON_DATA, signed=True),
    "force": Method(scores.sensitivity, **_ON_DATA, steps=60, recovers=True),
    "force_paper": Method(  # what the paper's code ran
        scores.sensitivity, **_ON_DATA, steps=60, thins=True, loss="neg_logit"
    ),
    "synflow": Method(scores.synaptic_flow, scores.absolute, steps=100),
}
