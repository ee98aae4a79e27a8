"""Pruning at initialisation: a score, a schedule and a density make supports (paper: section 2.1, appendix C).

In step t = 1..T the weights are scored on the network as pruned so far, and the k_t best of all layers together are
kept: k_t = floor(N P^(t/T)) (exponential) or floor(N (1 - t (1 - P) / T)) (linear), never fewer than the
K = max(1, floor(P N + 1/2)) asked for, and exactly K in the last step. A pruned weight stays pruned, unless the method
lets weights recover.

Most scores are magnitudes, and a weight whose score is not positive is never kept. With fewer than K positive scores
the method has collapsed, which is an error: the supports are neither short nor filled up unless the user asks for it.
Signed scores (GraSP) are ranked as they are. They have collapsed when fewer than K are other than zero, so that chance
would decide among the zeros.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from dctps.base.progress import counting_bar
from dctps.base.registry import lookup
from dctps.base.words import listed
from dctps.core.support import Support, derive_seed
from dctps.methods.pruning import METHODS
from dctps.methods.pruning.collapse import ON_COLLAPSE, CollapseError
from dctps.methods.pruning.loop import PruningLoop
from dctps.methods.pruning.method import Method
from dctps.methods.pruning.schedule import schedule_counts
from dctps.methods.pruning.scored_network import ScoredNetwork
from dctps.methods.pruning.scoring_data import Loss, ScoringData, checked_loss, checked_shape
from dctps.nn.convert import Exclude, targets
from dctps.nn.dps_layer import DpsLayer

OnStep = Callable[[int, Mapping[str, Support]], object]  # is called with the step, from 1, and the supports after it


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a pruning; a pass is one batch through the network."""

    seconds: float
    forward_passes: int
    backward_passes: int


class Supports(dict[str, Support]):
    """The support of each layer, with the number of weights asked for, the cost, and the collapse if there was one."""

    asked: int
    cost: Cost
    collapse: CollapseError | None

    def __init__(self, layers: Mapping[str, Support], asked: int, cost: Cost, collapse: CollapseError | None) -> None:
        super().__init__(layers)
        self.asked, self.cost, self.collapse = asked, cost, collapse

    @property
    def nnz(self) -> int:
        """The number of weights in all supports."""
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

    The model is only read. The result goes to `sparsify(model, supports=..., offset=None)`, or with
    `offset="pretrained"` it says which weights to fine-tune. A network that is frozen as a whole is scored as one that
    trains. Arguments that a method does not need are ignored, so that one call serves all of METHODS.

    method: the name of a method in METHODS.
    density: the fraction P of the weights that is kept.
    batches: pairs (inputs, labels), of which each step takes `batches_per_step` new ones. A list or DataLoader starts
        over at its end. Inputs are a tensor, or a tuple of tensors for a network with several arguments. A batch may
        also be a mapping from argument names to tensors, as those of transformers.
    input_shape: the shape of one example, (channels, height, width), for SynFlow; by default that of the first batch.
    steps: the number of steps; by default the method's.
    schedule: "exponential" (the default) or "linear".
    loss: "cross_entropy", "neg_logit" or a function of output and labels; by default the method's.
    seed: decides between equal scores, and seeds torch while batches are drawn and the network runs.
    on_collapse: "error" raises CollapseError; "short" returns the weights that have a score; "random_fill" adds others
        at random up to K.
    progress: whether to show a progress bar on a terminal.
    exclude: names (patterns such as "encoder.*") or types of layers that stay dense.
    on_step: a function that is called after each step with its number and the supports so far.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> prune(net, "synflow", 0.5, input_shape=(4,)).nnz
    9
    """
    chosen = lookup(METHODS, method, "pruning method")
    lookup(ON_COLLAPSE, on_collapse, "on_collapse")
    layers = _layers(model, exclude)
    weights = [layer.get_parameter("weight") for layer in layers.values()]
    steps = _at_least_one("steps", chosen.steps if steps is None else steps)
    counts = schedule_counts(sum(weight.numel() for weight in weights), density, steps, schedule or "exponential")
    data = _scoring_data(method, chosen, batches, input_shape, loss, batches_per_step, weights[0].device)
    start = time.perf_counter()
    with _seeded(weights, seed), _progress(f"{method}, density {density:g}", steps, progress) as advance:
        network = ScoredNetwork(model, layers, chosen.prepare)
        loop = PruningLoop(method, chosen, network, data, counts, seed, on_collapse)
        for step, kept in enumerate(loop.run(), 1):
            advance()
            if on_step is not None:
                on_step(step, network.supports(kept))
    cost = Cost(time.perf_counter() - start, network.forward_passes, network.backward_passes)
    return Supports(network.supports(kept), counts[-1], cost, loop.collapse)


# --- the arguments ---------------------------------------------------------------------------------------------------


def _layers(model: nn.Module, exclude: Exclude) -> dict[str, nn.Module]:
    """Return the layers to prune, by name; raise ValueError if one has no weights that can be scored."""
    sparse = [name for name, layer in model.named_modules() if isinstance(layer, DpsLayer)]
    if sparse:
        raise ValueError(f"this network is sparse already (layers {listed(sparse)}); prune it before, or densify it")
    is_frozen = not any(parameter.requires_grad for parameter in model.parameters())
    layers = targets(model, exclude, frozen_too=is_frozen)
    for name, layer in layers.items():
        weight = layer.get_parameter("weight")
        if weight.is_meta:
            raise ValueError(f"layer {name!r} is on the meta device: there are no weights to score")
        if weight.numel() == 0:
            raise ValueError(f"layer {name!r} has a weight of shape {tuple(weight.shape)}: nothing to keep; exclude it")
    return layers


def _scoring_data(
    name: str,
    method: Method,
    batches: Iterable[Any] | None,
    input_shape: Sequence[int] | None,
    loss: str | Loss | None,
    batches_per_step: int | None,
    device: torch.device,
) -> ScoringData:
    """Return what the scores are taken on; raise ValueError if the method needs data or a shape that was not given."""
    if method.needs_data and batches is None:
        raise ValueError(f"{name} scores weights on data: give batches=, an iterable of pairs (inputs, labels)")
    if method.needs_input and batches is None and input_shape is None:
        raise ValueError(
            f"{name} needs the shape of an example: give input_shape=(channels, height, width) or batches="
        )
    count = method.batches if batches_per_step is None else _at_least_one("batches_per_step", batches_per_step)
    checked = checked_loss(method.loss if loss is None else loss)
    return ScoringData(batches, count, checked, checked_shape(input_shape), device)


def _at_least_one(name: str, value: int) -> int:
    """Return an argument as an int; raise ValueError unless it is an integer of at least 1."""
    if not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, not {value!r}")
    return int(value)


# --- the surroundings of the loop ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _seeded(weights: Sequence[Tensor], seed: int) -> Iterator[None]:
    """Turn gradients on and seed the generators of torch, and restore both at the end."""
    devices = sorted({weight.device.index or 0 for weight in weights if weight.is_cuda})
    with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices):
        derived = derive_seed(seed, "passes")
        torch.default_generator.manual_seed(derived)  # torch.manual_seed would also seed devices that are not restored
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(derived)
        yield


@contextlib.contextmanager
def _progress(text: str, steps: int, wanted: bool) -> Iterator[Callable[[], None]]:
    """Show a progress bar on a terminal if it is wanted; give the function that advances it by a step."""
    console = Console(stderr=True)
    hidden = not (wanted and console.is_terminal)
    with counting_bar(console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(text, total=steps)
        yield lambda: bar.advance(task)
