"""`fit`: train a run, or go on where it stopped, together with the earlier runs that it builds on."""

import contextlib
import os
from pathlib import Path

import torch
from torch import nn

from dctps.base.machine import flushed_denormals, keep_memory
from dctps.train.beforehand import check_beforehand
from dctps.train.continuation import continued_state
from dctps.train.devices import choose_device
from dctps.train.images import load
from dctps.train.loop import OnEpoch, Surroundings, Trainer
from dctps.train.lottery_rounds import LotteryRounds, State, first_step, keep_rewind_state
from dctps.train.processes import processes
from dctps.train.reporter import Reporter
from dctps.train.result import Result, summary
from dctps.train.runs import Busy, Run, RunError
from dctps.train.settings import Runtime, Settings
from dctps.train.setup import Cost, prepare


def fit(
    settings: Settings,
    runtime: Runtime = Runtime(),  # noqa: B008
    on_epoch: OnEpoch = lambda row: None,
    continue_from: Path | None = None,
) -> Result:
    """Train a network, or go on where it stopped; returns the result, which is also in the run folder.

    A finished run is not trained again. `on_epoch` is called with the metrics of each epoch. `RunError` if the run
    cannot start or go on; `Interrupted` if a signal ended it.

    continue_from: the folder of a finished run of the same settings but fewer epochs, whose epochs are not repeated.
    """
    _check_arguments(settings, runtime)
    device = choose_device(runtime.device)
    if runtime.threads is not None:
        if runtime.threads < 1:
            raise ValueError(f"threads must be at least 1, not {runtime.threads}")
        torch.set_num_threads(runtime.threads)
    if runtime.keep_memory and device.type == "cpu":
        keep_memory()
    finished = _finished_result(settings, runtime)
    if finished is not None:
        return finished
    check_beforehand(settings, runtime)
    with torch.random.fork_rng(), flushed_denormals(), processes(device) as group:
        session = Session(Surroundings(runtime, device, group, load(settings, runtime.data_root)))
        return session.fit(settings, on_epoch, None if continue_from is None else Run(continue_from))


def _check_arguments(settings: object, runtime: object) -> None:
    """Raise TypeError, with an example, unless these are settings and a runtime."""
    example = 'fit(Settings(model="lenet", data="digits32", density=0.01), Runtime(runs="runs"))'
    if isinstance(settings, nn.Module):
        name = type(settings).__name__
        raise TypeError(f"fit builds the network itself, so it takes no {name}: name one in the settings, as {example}")
    for argument, kind, given in (("first", Settings, settings), ("second", Runtime, runtime)):
        if not isinstance(given, kind):
            kinds = f"the {argument} argument of fit is a {kind.__name__}, not a {type(given).__name__}"
            raise TypeError(f"{kinds}: say {example}")


def _finished_result(settings: Settings, runtime: Runtime) -> Result | None:
    """The result of a finished run, which is also printed; None if the run is not finished."""
    run = Run.at(settings, runtime.runs)
    result = run.finished()
    if result is not None:
        quiet = runtime.quiet or os.environ.get("RANK", "0") != "0"
        Reporter(quiet).say(f"{run.folder} is finished: {summary(result)}")
    return result


class Session:
    """Trains a run, and before it the rounds of lottery tickets that it asks for."""

    def __init__(self, surroundings: Surroundings) -> None:
        self.surroundings, self.runs = surroundings, surroundings.runtime.runs
        self.rounds = LotteryRounds(self.fit, self._rebuild, self.runs)

    def fit(self, settings: Settings, on_epoch: OnEpoch = lambda row: None, continue_from: Run | None = None) -> Result:
        """Train a run, or go on where it stopped, or where a finished run of fewer epochs ended."""
        finished = _finished_result(settings, self.surroundings.runtime)
        if finished is not None:
            return finished
        with contextlib.ExitStack() as locks:
            trainer = self._trainer(settings, locks, continue_from)
            trainer.on_epoch = on_epoch
            return trainer.train()

    def _trainer(self, settings: Settings, locks: contextlib.ExitStack, before: Run | None) -> Trainer:
        """The trainer of a run at the place where it begins or goes on, in a folder that nobody else trains in."""
        run = Run.at(settings, self.runs)
        exists = run.folder.exists()
        if exists:  # nobody else may write the state that is read now
            self._occupy(settings, locks)
        saved = run.load_state()
        taken = before if saved is None else None
        if taken is not None:
            saved = continued_state(taken, settings)
        model, cost = self._prepare(settings, None if saved is None else saved.model)
        if not exists:  # whatever is wrong was found before a folder is made
            self._occupy(settings, locks, is_new=True)
        trainer = Trainer(settings, self.surroundings, run, model, cost)
        trainer.start_at(first_step(settings, trainer.steps))
        if self.surroundings.group.first:
            trainer.after_step = keep_rewind_state(settings, run, model)
        if saved is not None:
            trainer.restore(saved)
        if taken is not None and self.surroundings.group.first:
            run.take_over(taken)
        return trainer

    def _occupy(self, settings: Settings, locks: contextlib.ExitStack, is_new: bool = False) -> None:
        """Open the folder of a run and lock it, once for all processes of this training."""
        run = Run.open(settings, self.runs)
        if self.surroundings.group.first:
            locks.enter_context(run.locked())
            if is_new and run.last.exists():
                raise Busy(
                    f"another process has trained in {run.folder} meanwhile; the same command goes on from there"
                )

    def _prepare(self, settings: Settings, state: State | None) -> tuple[nn.Module, Cost | None]:
        """The network of a run and what its pruning has cost; state: one that it had, if it goes on."""
        s = self.surroundings
        if state is None:
            return prepare(settings, s.dataset, s.device, s.group, rounds=self.rounds)
        try:
            return prepare(settings, s.dataset, s.device, s.group, saved=state, rounds=self.rounds)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            last = Run.at(settings, self.runs).last
            raise RunError(f"{last} does not fit this run ({error}); delete it to start again") from error

    def _rebuild(self, settings: Settings, state: State) -> nn.Module:
        """The network of another run with a state that it had there."""
        model, _ = self._prepare(settings, state)
        model.load_state_dict(state)
        return model
