"""`fit`: train a run, or go on where it stopped, together with the earlier runs that it builds on."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from dctps.base.machine import flushed_denormals
from dctps.data import Dataset
from dctps.train.beforehand import check_beforehand
from dctps.train.continuation import continued_state
from dctps.train.devices import set_up
from dctps.train.images import load
from dctps.train.loop import OnEpoch, Surroundings, Trainer
from dctps.train.lottery_rounds import LotteryRounds, State, first_step, keep_rewind_state
from dctps.train.plan import paper_plan
from dctps.train.processes import processes
from dctps.train.reporter import Reporter
from dctps.train.result import Result, summary
from dctps.train.runs import Busy, Run, RunError, RunFolder
from dctps.train.settings import AnySettings, Runtime, Settings
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
    device = set_up(runtime)
    finished = finished_result(Run.at(settings, runtime.runs), runtime)
    if finished is not None:
        return finished
    check_beforehand(settings, runtime)
    with torch.random.fork_rng(), flushed_denormals(), processes(device) as group:
        session = Session(Surroundings(runtime, device, group), load(settings, runtime.data_root))
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


def finished_result(run: RunFolder, runtime: Runtime, words: Callable[[Result], str] = summary) -> Result | None:
    """The result of a finished run, which is also printed in `words`; None if the run is not finished."""
    result = run.finished()
    if result is not None:
        quiet = runtime.quiet or os.environ.get("RANK", "0") != "0"
        Reporter(quiet).say(f"{run.folder} is finished: {words(result)}")
    return result


def occupy(
    run: RunFolder, settings: AnySettings, first: bool, locks: contextlib.ExitStack, *, is_new: bool = False
) -> None:
    """Open the folder of a run and lock it, once for all processes of this training.

    first: whether this is the first of these processes.
    is_new: whether the folder was not there before, so that nobody may have trained in it.
    """
    type(run).open(settings, run.folder.parent)
    if first:
        locks.enter_context(run.locked())
        if is_new and run.last.exists():
            raise Busy(f"another process has trained in {run.folder} meanwhile; the same command goes on from there")


class Session:
    """Trains a run, and before it the rounds of lottery tickets that it asks for."""

    def __init__(self, surroundings: Surroundings, dataset: Dataset) -> None:
        self.surroundings, self.dataset, self.runs = surroundings, dataset, surroundings.runtime.runs
        self.rounds = LotteryRounds(self.fit, self._rebuild, self.runs)

    def fit(self, settings: Settings, on_epoch: OnEpoch = lambda row: None, continue_from: Run | None = None) -> Result:
        """Train a run, or go on where it stopped, or where a finished run of fewer epochs ended."""
        finished = finished_result(Run.at(settings, self.runs), self.surroundings.runtime)
        if finished is not None:
            return finished
        with contextlib.ExitStack() as locks:
            trainer = self._trainer(settings, locks, continue_from)
            trainer.on_epoch = on_epoch
            return trainer.train()

    def _trainer(self, settings: Settings, locks: contextlib.ExitStack, before: Run | None) -> Trainer:
        """The trainer of a run at the place where it begins or goes on, in a folder that nobody else trains in."""
        run, s = Run.at(settings, self.runs), self.surroundings
        exists = run.folder.exists()
        if exists:  # nobody else may write the state that is read now
            occupy(run, settings, s.group.first, locks)
        saved = run.load_state()
        taken = before if saved is None else None
        if taken is not None:
            saved = continued_state(taken, settings)
        model, cost = self._prepare(settings, None if saved is None else saved.model)
        if not exists:  # whatever is wrong was found before a folder is made
            occupy(run, settings, s.group.first, locks, is_new=True)
        trainer = Trainer(paper_plan(settings, self.dataset, model, s.device, s.group, cost), s, run)
        trainer.start_at(first_step(settings, trainer.steps))
        if s.group.first:
            trainer.after_step = keep_rewind_state(settings, run, model)
        if saved is not None:
            trainer.restore(saved)
        if taken is not None and s.group.first:
            run.take_over(taken)
        return trainer

    def _prepare(self, settings: Settings, state: State | None) -> tuple[nn.Module, Cost | None]:
        """The network of a run and what its pruning has cost; state: one that it had, if it goes on."""
        s = self.surroundings
        if state is None:
            return prepare(settings, self.dataset, s.device, s.group, rounds=self.rounds)
        try:
            return prepare(settings, self.dataset, s.device, s.group, saved=state, rounds=self.rounds)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            last = Run.at(settings, self.runs).last
            raise RunError(f"{last} does not fit this run ({error}); delete it to start again") from error

    def _rebuild(self, settings: Settings, state: State) -> nn.Module:
        """The network of another run with a state that it had there."""
        model, _ = self._prepare(settings, state)
        model.load_state_dict(state)
        return model
