"""What all rewiring methods share: the steps, the move of weights, the same in all processes, and the state."""

import dataclasses
import operator
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn

from dctps.core.support import Int64
from dctps.methods.rewiring.optimiser_state import OptimiserState
from dctps.methods.rewiring.process_group import Peers, several
from dctps.methods.rewiring.schedule import Schedule, TrainingPlan
from dctps.methods.rewiring.step_watch import StepWatch
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.wrappers import unwrapped

Closure = Callable[[], Any] | None
_ENTRY = "rewiring"  # of the optimiser's state, after `take_over`


class Move(NamedTuple):
    """The new positions of a layer's weights, and which of its weights keep their values if they stay."""

    positions: Int64  # sorted
    carried: npt.NDArray[np.bool_]  # (nnz,)


class Rewiring:
    """The base of all methods: it counts iterations, moves weights and keeps the state. A method decides the moves."""

    _plain_step: Callable[..., Any] | None = None  # the optimiser's own step, once `take_over` was called
    _coming: Mapping[str, Any]  # the state of the rewiring in a state that the optimiser is loading

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        *,
        optimizer_state: str,
        seed: int,
        group: dist.ProcessGroup | None = None,
        **settings: Any,
    ) -> None:
        if operator.index(seed) < 0:
            raise ValueError(f"a seed is a non-negative integer, not {seed}")
        self.layers = rewirable(model, optimizer)
        self.optimizer, self.schedule, self.seed, self.group = optimizer, schedule, seed, group
        self.carrier = OptimiserState(optimizer, optimizer_state)
        self.watch = StepWatch(optimizer)
        self.settings = {**dataclasses.asdict(schedule), "optimizer_state": optimizer_state, "seed": seed, **settings}
        self.iteration = self.updates = 0  # iterations done, and how many of them have rewired
        self.steps = 0  # steps that the optimiser has taken
        self.peers = Peers(group)

    @classmethod
    def for_training(cls, model: nn.Module, optimizer: torch.optim.Optimizer, plan: TrainingPlan) -> Self:
        """The rewiring of a training run; a method whose constructor takes other arguments overrides this."""
        construct: Callable[..., Self] = cls  # methods take `stop` and `every` in place of a schedule
        return construct(
            model, optimizer, stop=plan.stop, every=plan.every, drop_fraction=plan.drop_fraction, seed=plan.seed
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of the optimiser."""
        return self.optimizer.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all parameters."""
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Closure = None) -> Any:
        """Do one iteration: a step of the optimiser, a rewiring, or both; returns what the closure returns."""
        self.watch.check()
        iteration = self.iteration + 1
        loss = self._update(iteration, closure) if self.schedule.due(iteration) else self._optimise(closure)
        self.iteration = iteration
        self._look_ahead()
        return loss

    def take_over(self) -> Self:
        """Make `optimizer.step()` do what `step()` does, for trainers that call it by themselves; return this object.

        The optimiser's state then holds the state of the rewiring, which a checkpoint of the trainer saves and loads.
        """
        if self._plain_step is not None:
            raise RuntimeError("this rewiring has taken over the steps of its optimiser already")
        if _ENTRY in self.optimizer.state_dict():
            raise RuntimeError("another rewiring has taken over the steps of this optimiser")
        self._plain_step = self.optimizer.step
        taken = types.MethodType(lambda _, closure=None: self.step(closure), self.optimizer)  # as schedules expect it
        self.optimizer.step = taken  # type: ignore[method-assign]
        self.optimizer.register_state_dict_post_hook(lambda _, state: state.update({_ENTRY: self.state_dict()}))
        self.optimizer.register_load_state_dict_pre_hook(lambda _, state: self._check_entry(state))
        self.optimizer.register_load_state_dict_post_hook(lambda _: self.load_state_dict(self._coming))
        return self

    def _check_entry(self, state: Mapping[str, Any]) -> None:
        """Check the state of the rewiring, and keep it until the optimiser has taken its own, which may yet fail."""
        if _ENTRY not in state:
            raise ValueError(
                "this state of the optimiser is without that of a rewiring, which has taken over its steps"
            )
        self._check_state(state[_ENTRY])
        self._coming = state[_ENTRY]

    def _optimise(self, closure: Closure) -> Any:
        step: Callable[..., Any] = self._plain_step or self.optimizer.step
        with self.watch.own_step():
            loss = step() if closure is None else step(closure)
        self.steps += 1
        return loss

    def _update(self, iteration: int, closure: Closure) -> Any:
        """Do an iteration that rewires: first a step of the optimiser, then the move."""
        self._check()
        loss = self._optimise(closure)
        self._rewire(iteration)
        return loss

    def _look_ahead(self) -> None:
        """Prepare for the coming iteration."""

    # --- the move

    def _decide(self, iteration: int) -> dict[str, Move]:
        """The moves of this iteration, by the names of the layers."""
        raise NotImplementedError

    def _rewire(self, iteration: int) -> None:
        self._check()
        moves = self._agreed(iteration)
        for name, move in moves.items():
            self.carrier.move(name, self.layers[name], move.positions, move.carried, self.steps)
        self.updates += 1

    def _check(self) -> None:
        """Raise an error if the move could go wrong, before anything has moved."""
        if several(self.group) and self.peers.group is None:
            raise RuntimeError(
                "there are several processes now, but there was one when this rewiring was made; make it after "
                "torch.distributed.init_process_group, so that all processes rewire alike"
            )
        for name, layer in self.layers.items():
            self.carrier.per_weight(name, layer)

    def _agreed(self, iteration: int) -> dict[str, Move]:
        """The moves that the first process decides, in all processes, so that rounding cannot make supports differ."""
        if self.peers.group is None or not self.layers:
            return self._decide(iteration)
        moves, problem = {}, None
        if self.peers.first:
            try:
                moves = self._decide(iteration)
            except RuntimeError as error:
                problem = error
        stay = {name: positions_of(layer) for name, layer in self.layers.items()}
        where = [moves[name].positions if name in moves else positions for name, positions in stay.items()]
        device = next(iter(self.layers.values())).values.device
        numbers = torch.from_numpy(np.concatenate([np.array([problem is None]), *where])).to(device)
        good, *rest = self.peers.as_the_first(numbers).split([1, *map(len, where)])
        if not bool(good):
            raise problem or RuntimeError(f"iteration {iteration} cannot rewire; the first process says why")
        shared = {name: p.cpu().numpy() for name, p in zip(self.layers, rest, strict=True)}
        return {name: Move(p, np.ones(len(p), dtype=bool)) for name, p in shared.items() if not _same(p, stay[name])}

    # --- the state

    def state_dict(self) -> dict[str, Any]:
        """The state to go on from, beside those of the network and the optimiser; plain numbers and tensors."""
        counters = {"iteration": self.iteration, "updates": self.updates, "steps": self.steps}
        memory = {name: dict(tensors) for name, tensors in self.carrier.memory.items()}
        return {"method": type(self).__name__, "settings": dict(self.settings), **counters, "memory": memory}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of the same method and settings; ValueError otherwise, and nothing has changed."""
        self._check_state(state)
        self.carrier.memory = {name: dict(tensors) for name, tensors in state["memory"].items()}
        self.iteration, self.updates, self.steps = state["iteration"], state["updates"], state["steps"]
        self._look_ahead()

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError if this is not a state of the same method, settings and network."""
        mine = {"method": type(self).__name__, **self.settings}
        theirs = {"method": state.get("method"), **state.get("settings", {})}
        differ = [
            f"{k}={theirs.get(k)!r} instead of {mine.get(k)!r}" for k in mine | theirs if mine.get(k) != theirs.get(k)
        ]
        if differ:
            raise ValueError(f"this state belongs to a rewiring with {', '.join(differ)}")
        unknown = [name for name in state["memory"] if name not in self.layers]
        if unknown:
            raise ValueError(f"this state belongs to another network: here is no layer {unknown[0]!r} to rewire")

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{type(self).__name__}({settings}): iteration {self.iteration}, {self.updates} updates"


def rewirable(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, DpsLayer]:
    """The layers whose weights can move: those that train and are neither empty nor full."""
    training = {name: layer for name, layer in sparse_layers(model).items() if layer.values.requires_grad}
    check_known(training, optimizer)
    check_apart(training)
    return {name: layer for name, layer in training.items() if 0 < layer.nnz < layer.support.size}


def sparse_layers(model: nn.Module) -> dict[str, DpsLayer]:
    """The sparse layers of a network, by name; ValueError if there is none."""
    layers = {name: m for name, m in unwrapped(model).named_modules() if isinstance(m, DpsLayer)}
    if not layers:
        raise ValueError("this network has no sparse layer whose weights could move; sparsify it first")
    return layers


def check_known(layers: Mapping[str, DpsLayer], optimizer: torch.optim.Optimizer) -> None:
    """Raise ValueError unless the optimiser holds the values of each layer, and knows each weight by itself."""
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, torch.optim.LBFGS):
        kind = type(optimizer).__name__
        raise ValueError(f"weights move with an optimiser of torch.optim that knows each of them, not with {kind}")
    known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for name, layer in layers.items():
        if id(layer.values) not in known:
            raise ValueError(f"the optimiser does not hold the values of layer {name!r}; make it after sparsify")


def check_apart(layers: Mapping[str, DpsLayer]) -> None:
    """Raise ValueError if two layers share their values."""
    seen: dict[int, str] = {}
    for name, layer in layers.items():
        first = seen.setdefault(id(layer.values), name)
        if first != name:
            raise ValueError(f"layers {first!r} and {name!r} share their values, so their weights cannot move apart")


def positions_of(layer: DpsLayer) -> Int64:
    """The positions of a layer's weights on the CPU."""
    positions: Int64 = layer.positions.cpu().numpy().astype(np.int64)
    return positions


def magnitudes_of(name: str, layer: DpsLayer) -> npt.NDArray[np.float64]:
    """The magnitudes |S| of a layer's weights; RuntimeError if one is not finite."""
    magnitudes: npt.NDArray[np.float64] = layer.values.detach().cpu().double().abs().numpy()
    if not np.isfinite(magnitudes).all():
        raise RuntimeError(f"the weights of layer {name!r} are not finite, so none of them can be dropped")
    return magnitudes


def _same(a: Int64, b: Int64) -> bool:
    return len(a) == len(b) and bool((a == b).all())
