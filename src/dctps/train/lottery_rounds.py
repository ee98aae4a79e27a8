"""Lottery tickets in the trainer: each round is a run of its own, which asks for the rounds before it.

Round 0 trains the dense network. Each later round starts from the values of the network at its initialisation, or of
round 0 after its first steps (late rewinding), and keeps the weights that were largest at the end of the round before.
A round that is asked for and has no result yet is trained then.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor, nn

from dctps.core.support import Support, derive_seed
from dctps.methods.lottery import schedule, survivors
from dctps.nn.prunable import prunable
from dctps.train.runs import Run, RunError
from dctps.train.settings import Settings

IMP = "imp"  # the method of the settings
State = Mapping[str, Tensor]  # the state of a network


@dataclasses.dataclass(frozen=True)
class LotteryRounds:
    """The rounds of lottery tickets in the folder `runs`."""

    train: Callable[[Settings], object]  # trains the run of these settings, unless it is finished
    rebuild: Callable[[Settings, State], nn.Module]  # the network of these settings with a state that it had
    runs: Path

    def initial_state(self, settings: Settings) -> State | None:
        """The state of the dense network that a round starts from; None if that is its own initialisation."""
        if not settings.imp_rewind or is_dense_round(settings):
            return None
        dense = dataclasses.replace(settings, imp_round=0)
        self.train(dense)
        return Run.at(dense, self.runs).load_rewind()

    def supports(self, settings: Settings, model: nn.Module) -> dict[str, Support]:
        """Where the weights of a round are: those that were largest at the end of the round before.

        model: the dense network, which says which layers there are.
        """
        assert settings.density is not None
        layers = prunable(model)
        size = sum(layer.get_parameter("weight").numel() for layer in layers.values())
        counts = schedule(size, settings.density, settings.method_steps)  # weights left after each round
        number = len(counts) if settings.imp_round is None else settings.imp_round
        if number > len(counts):
            raise ValueError(f"imp_round {number}: density {settings.density} is reached in {len(counts)} rounds")
        before, count = self._trained(dataclasses.replace(settings, imp_round=number - 1)), counts[number - 1]
        return survivors(before, list(layers), count, derive_seed(settings.seed, f"imp/{count}"))

    def _trained(self, settings: Settings) -> nn.Module:
        """The network of a round at the end of its training."""
        self.train(settings)
        run = Run.at(settings, self.runs)
        saved = run.load_state()
        if saved is None:
            raise RunError(f"{run.folder} has no last.pt to go on from; delete it")
        return self.rebuild(settings, saved.model)


def is_dense_round(settings: Settings) -> bool:
    """Whether this is the first round, in which all weights train."""
    return settings.imp_round == 0


def first_step(settings: Settings, steps: int) -> int:
    """The step with which a run of `steps` steps begins: later rounds begin at the step that they rewind to."""
    if settings.imp_rewind >= steps:
        raise ValueError(f"imp_rewind {settings.imp_rewind}: training has {steps} steps")
    return 0 if is_dense_round(settings) else settings.imp_rewind


def keep_rewind_state(settings: Settings, run: Run, model: nn.Module) -> Callable[[int], None]:
    """A hook for the trainer, called with the number of steps done: it saves the state that later rounds start from."""

    def after_step(done: int) -> None:
        if is_dense_round(settings) and done == settings.imp_rewind:
            run.save_rewind(dict(model.state_dict()))

    return after_step
