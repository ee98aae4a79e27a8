"""One plain resumable loop, for every kind of training; `plan.py` says what differs between the kinds.

Everything random in a step follows from (seed, epoch, step, process): the order of the images, their crops and flips,
and torch's own generator, which is seeded anew for each step. A run that continues from a checkpoint therefore does
exactly what it would have done without the interruption.
"""

import dataclasses
import math
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from dctps.base.words import duration
from dctps.core.support import derive_seed
from dctps.nn.diagnose import first_bad_layer
from dctps.nn.logits import Inputs, logits_of, output_of
from dctps.train.images import AnyBatches
from dctps.train.optimise import set_learning_rate
from dctps.train.plan import Plan
from dctps.train.processes import Processes, wire_bytes
from dctps.train.records import Checkpoint, Progress, epoch_number
from dctps.train.reporter import Reporter, tensorboard_writer
from dctps.train.result import Result
from dctps.train.runs import RunError, RunFolder
from dctps.train.settings import Runtime
from dctps.train.signals import Interrupted, Signals

OnEpoch = Callable[[dict[str, Any]], object]


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What all trainings of one call share: how they are executed, the device and the processes."""

    runtime: Runtime
    device: torch.device
    group: Processes


class Trainer:
    """The loop of one run in one process."""

    def __init__(self, plan: Plan, surroundings: Surroundings, run: RunFolder) -> None:
        self.plan, self.run, self.runtime = plan, run, surroundings.runtime
        self.device, self.group = surroundings.device, surroundings.group
        self.state, self.settings, self.model = plan.state, plan.state.settings, plan.state.model
        self._check_batch_size()
        self.reporter = Reporter(self.runtime.quiet or not self.group.first, plan.unit)
        self.training, self.validation, self.test = plan.batches.training, plan.batches.validation, plan.batches.test
        self.resumed = self.stopped = False
        self.on_epoch: OnEpoch = lambda row: None  # called with the metrics of each epoch
        self.after_step: Callable[[int], object] = lambda done: None  # called with the number of steps done

    def _check_batch_size(self) -> None:
        if self.group.world > 1 and self.settings.batch_size < 2 * self.group.world:
            raise ValueError(
                f"batch_size {self.settings.batch_size}: less than two images for each of {self.group.world} processes"
            )

    @property
    def progress(self) -> Progress:
        """How far the run is."""
        return self.state.progress

    @property
    def steps(self) -> int:
        """How many steps the whole training has."""
        return self.settings.epochs * len(self.training)

    # --- where it begins

    def start_at(self, step: int) -> None:
        """Begin with this step, counted from 0 over all epochs, in place of the first."""
        self.progress.epoch, self.progress.step = divmod(step, len(self.training))

    def restore(self, saved: Checkpoint) -> None:
        """Go on from a checkpoint; `RunError` if it is not one of this run."""
        try:
            self.state.restore(saved, len(self.training))
        except Exception as error:  # what a damaged state of an optimiser or a network raises can be anything
            raise RunError(f"{self.run.last} does not fit this run ({error}); delete it to start again") from error
        self.resumed = True

    # --- the loop

    def train(self) -> Result:
        """Train to the end; returns the result, which is in the run folder then.

        `Interrupted` after a signal, also if it came too late to stop this training: what follows is to end with it.
        """
        self._begin()
        with Signals() as signals:
            try:
                while self.progress.epoch < self.settings.epochs:
                    self._train_epoch(signals)
                    self._finish_epoch()
            finally:
                self.reporter.stop()
            result = self._finish()
            if self.group.sum([signals.received is not None], self.device)[0] > 0:
                raise self._interrupted(signals, f"finished; the result is in {self.run.result}")
        return result

    def _begin(self) -> None:
        if self.group.first:
            self.run.keep_metrics_before(self.progress.epoch)
        self.group.wait()
        compiled = torch.compile(self.model) if self.plan.compile else self.model
        self.network = self.group.parallel(compiled)  # type: ignore[arg-type]
        self.tensorboard = tensorboard_writer(self.runtime, self.run) if self.group.first else None
        self._introduce()
        done = self.progress.epoch * len(self.training) + self.progress.step
        self.reporter.start(self.settings.epochs, len(self.training), done)

    def _train_epoch(self, signals: Signals) -> None:
        p, s = self.progress, self.settings
        self.network.train()
        size, started, before = len(self.training.indices), time.perf_counter(), p.images
        for x, y in self.training.epoch(p.epoch, start=p.step):
            whole = min(s.batch_size, size - p.step * s.batch_size)
            if self.group.world == 1 or whole >= 2 * self.group.world:  # else there are too few images to share out
                self._step(x, y, whole, signals)
            p.step += 1
            rate = (p.images - before) / max(1e-9, time.perf_counter() - started)
            seen = max(1.0, p.images)
            self.reporter.step(p.epoch, p.loss / seen, p.correct / seen, rate)
            if self.stopped and p.step < len(self.training):
                p.seconds += time.perf_counter() - started
                self._interrupt(signals)
        p.seconds += time.perf_counter() - started
        self.rate = (p.images - before) / max(1e-9, time.perf_counter() - started)

    def _step(self, x: Inputs, y: torch.Tensor, whole: int, signals: Signals) -> None:
        """One step on this process's share of a batch of `whole` images."""
        p = self.progress
        torch.manual_seed(derive_seed(self.settings.seed, f"step/{p.epoch}/{p.step}/{self.group.rank}"))
        set_learning_rate(self.state.optimiser, self.learning_rate(p.step))
        self.state.stepper.zero_grad()
        with self._autocast():
            logits = logits_of(output_of(self.network, x))
            # the mean over the whole batch, times the processes that DistributedDataParallel divides by
            loss = F.cross_entropy(logits.float(), y, reduction="sum") * (self.group.world / whole)
        correct = (logits.argmax(1) == y).sum().item()
        sums = [loss.item() * whole / self.group.world, correct, len(y), signals.received is not None]
        total, correct, images, stopped = self.group.sum(sums, self.device)
        if not math.isfinite(total):  # before the step, which would spread it over all weights
            raise RunError(self._diagnosis(x, f"loss is {total}"))
        self.stopped = stopped > 0  # all processes stop together: one that stopped alone would leave the others waiting
        loss.backward()
        self.state.stepper.step()
        self.after_step(p.epoch * len(self.training) + p.step + 1)
        p.count(total, correct, images)

    def learning_rate(self, step: int) -> float:
        """The learning rate of a step of this epoch."""
        return self.plan.learning_rate(self.progress.epoch * len(self.training) + step)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.bf16)

    def _finish_epoch(self) -> None:
        p = self.progress
        started = time.perf_counter()
        self._check_finite()
        self.group.share_buffers(self.model)
        validation = self.accuracy(self.validation)
        if validation > p.best_validation:  # strictly: the earliest of equals stays the best
            test = validation if self.plan.batches.selects_on_test else self.accuracy(self.test)
            p.best_validation, p.best_epoch, p.test_at_best = validation, p.epoch, test
            if self.group.first:
                self.run.save_best(self.model)
        p.seconds += time.perf_counter() - started
        row = self._metrics(validation)
        p.start_next_epoch()
        if self.group.first:
            self._record(row)
        self.group.wait()

    def _metrics(self, validation: float) -> dict[str, Any]:
        p = self.progress
        return {
            "epoch": p.epoch,
            "loss": p.loss / p.images,
            "train": p.correct / p.images,
            "validation": validation,
            "lr": self.learning_rate(p.step - 1),
            "seconds": round(p.seconds, 3),
            f"{self.plan.unit}_per_second": round(self.rate, 1),
        }

    def _record(self, row: dict[str, Any]) -> None:
        p = self.progress
        self.run.add_metrics(row)
        self.run.save_state(self.state.content())
        self.reporter.epoch(row, p.seconds / p.epoch * (self.settings.epochs - p.epoch))
        self.on_epoch(row)
        if self.tensorboard is not None:
            for name in ("loss", "train", "validation", "lr"):
                self.tensorboard.add_scalar(name, row[name], epoch_number(row["epoch"]))

    @torch.no_grad()
    def accuracy(self, batches: AnyBatches) -> float:
        """The fraction of images that are classified correctly, over all processes."""
        self.model.eval()
        correct = images = bad = 0.0
        for x, y in batches.epoch(0):
            with self._autocast():
                logits = logits_of(output_of(self.model, x))
            correct += (logits.argmax(1) == y).sum().item()
            images += len(y)
            bad += not bool(logits.isfinite().all())
        correct, images, bad = self.group.sum([correct, images, bad], self.device)
        if bad:
            raise RunError(self._diagnosis(x, "outputs are not finite"))
        return correct / images

    # --- where it ends

    def _interrupt(self, signals: Signals) -> None:
        self._check_finite()
        if self.group.first:
            self.run.save_state(self.state.content())
        self.group.wait()
        where = f"epoch {epoch_number(self.progress.epoch)}, step {self.progress.step}"
        message = f"stopped at {where}; the state is in {self.run.last}, the same command goes on from there"
        raise self._interrupted(signals, message)

    def _interrupted(self, signals: Signals, message: str) -> Interrupted:
        """The error that ends the work; a process that got no signal itself stops because another one did."""
        return Interrupted(message, 128 + (signals.received or signal.SIGTERM))

    def _finish(self) -> Result:
        final = {"final_validation": self.accuracy(self.validation), "final_test": self.accuracy(self.test)}
        result = self.plan.result(self.run, final)
        if self.group.first:
            self.run.save_result(result)
        self.reporter.say(f"finished in {duration(self.progress.seconds)}: {self.plan.summary(result)}")
        return result

    def _check_finite(self) -> None:
        """`RunError` if a weight is not finite, so that every checkpoint is a good one."""
        if not all(bool(p.isfinite().all()) for p in self.model.parameters()):
            raise RunError(self._diagnosis(None, "weights are not finite"))

    # --- words

    def _introduce(self) -> None:
        for line in self.plan.introduction():
            self.reporter.say(line)
        if self.group.world > 1:
            sent, dense = wire_bytes(self.model)
            gradients = f"gradients per step: {sent:,} bytes each (dense network: {dense:,})"
            self.reporter.say(f"{self.group.world} processes; {gradients}")
        going_on = f", going on at epoch {epoch_number(self.progress.epoch)}" if self.resumed else ""
        self.reporter.say(f"run folder: {self.run.folder}{going_on}")

    def _diagnosis(self, x: Inputs | None, what: str) -> str:
        p = self.progress
        with self._autocast():
            where = first_bad_layer(self.model, x)
        return f"the {what} at epoch {epoch_number(p.epoch)}, step {p.step + 1}: {where}; {self.run.kept()}"
