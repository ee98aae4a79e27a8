"""One plain resumable loop: the paper's protocol, end to end.

Everything random in a step follows from (seed, epoch, step, process): the order of the images, their crops and flips,
and torch's own generator, which is seeded anew for each step. A run that continues from a checkpoint therefore does
exactly what it would have done without the interruption.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dctps import data
from dctps.base.machine import flushed_denormals, keep_memory
from dctps.base.provenance import provenance
from dctps.base.words import duration
from dctps.core.support import derive_seed
from dctps.data.batches import Batches
from dctps.methods.subspace.subspace import Subspace
from dctps.nn.diagnose import first_bad_layer
from dctps.nn.report import report
from dctps.ops import autotune
from dctps.train.optimise import build_optimiser, build_stepper, learning_rate, set_learning_rate
from dctps.train.processes import Processes, processes, wire_bytes
from dctps.train.reporter import Reporter
from dctps.train.runs import Run, RunError
from dctps.train.settings import Runtime, Settings, non_defaults, run_id, to_json
from dctps.train.setup import Data, Rounds, load, prepare
from dctps.train.signals import Signals


class Interrupted(RuntimeError):  # noqa: N818
    """Ended by a signal, with its state saved."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def fit(
    settings: Settings,
    runtime: Runtime = Runtime(),  # noqa: B008
    on_epoch: Callable[[dict[str, Any]], object] = lambda row: None,
) -> dict[str, Any]:
    """Train a network, or go on where it stopped; returns the result, which is also in the run folder.

    `on_epoch` is called with each row of metrics.

    A finished run is not trained again. `dctps.runs.RunError` where it cannot start or go on; `Interrupted` where a
    signal ended it.
    """
    device = choose_device(runtime.device)
    if runtime.threads is not None:
        if runtime.threads < 1:
            raise ValueError(f"threads must be at least 1, not {runtime.threads}")
        torch.set_num_threads(runtime.threads)
    if runtime.keep_memory and device.type == "cpu":
        keep_memory()
    finished = _finished(settings, runtime)
    if finished is not None:
        return finished
    with torch.random.fork_rng(), flushed_denormals(), processes(device) as group:
        return Fitting(runtime, device, group, load(settings, runtime.data_root)).fit(settings, on_epoch)


def _finished(settings: Settings, runtime: Runtime) -> dict[str, Any] | None:
    folder = runtime.runs / run_id(settings)
    result = Run(folder).finished()
    if result is not None:
        quiet = runtime.quiet or os.environ.get("RANK", "0") != "0"
        Reporter(quiet).say(f"{folder} is finished: {_summary(result)}")
    return result


@dataclasses.dataclass(frozen=True)
class Fitting:
    """What a run shares with the earlier runs that it builds on: the rounds of lottery tickets."""

    runtime: Runtime
    device: torch.device
    group: Processes
    dataset: data.Dataset

    def fit(
        self, settings: Settings, on_epoch: Callable[[dict[str, Any]], object] = lambda row: None
    ) -> dict[str, Any]:
        finished = _finished(settings, self.runtime)
        if finished is not None:
            return finished
        # everything that can be wrong is found before a folder is made
        saved = Run(self.runtime.runs / run_id(settings)).load_state()
        model, cost = self._prepare(settings, saved)
        run = Run.open(settings, self.runtime.runs)
        with run.locked() if self.group.first else contextlib.nullcontext():
            trainer = Trainer(settings, self.runtime, run, self.group, self.device, self.dataset, model, cost)
            trainer.on_epoch = on_epoch
            return trainer.train()

    def _prepare(self, settings: Settings, saved: dict[str, Any] | None) -> tuple[nn.Module, dict[str, Any] | None]:
        try:
            state = None if saved is None else saved["model"]
            rounds = Rounds(self._trained, self._rewound)
            return prepare(settings, self.dataset, self.device, self.group, saved=state, rounds=rounds)
        except KeyError as error:
            folder = self.runtime.runs / run_id(settings)
            raise RunError(f"{folder} holds a checkpoint that does not fit this run: {error} is missing") from error

    def _rewound(self, settings: Settings) -> dict[str, Any]:
        """The state of the dense round after its first steps."""
        self.fit(settings)
        return Run(self.runtime.runs / run_id(settings)).load_rewind()

    def _trained(self, settings: Settings) -> nn.Module:
        """The network of another run at the end of its training, which happens now if it has not yet."""
        self.fit(settings)
        saved = Run(self.runtime.runs / run_id(settings)).load_state()
        if saved is None:
            raise RunError(f"{self.runtime.runs / run_id(settings)} has no last.pt to go on from; delete it")
        model, _ = self._prepare(settings, saved)
        model.load_state_dict(saved["model"])
        return model


def choose_device(name: str) -> torch.device:
    """The device of this process: under torchrun each has a GPU of its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", device.index or 0)))
            torch.cuda.set_device(device)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"cannot use the device {name!r}: {str(error).splitlines()[0]}") from error
    return device


def fingerprint(dataset: data.Dataset) -> str:
    """Of the training and test data, so that a run does not go on with other data than it began with."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in (dataset.train_images, dataset.train_labels, dataset.test_images, dataset.test_labels):
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


@dataclasses.dataclass
class Progress:
    """Where a run is: what a checkpoint holds beside the network and the optimiser."""

    epoch: int = 0  # the epoch at work
    step: int = 0  # steps done in it
    loss: float = 0.0  # sums over its images so far
    correct: float = 0.0
    images: float = 0.0
    seconds: float = 0.0  # of training, in all sittings
    best_validation: float = -1.0
    best_epoch: int = -1
    test_at_best: float = float("nan")
    pruning: dict[str, Any] | None = None  # what choosing the support has cost


class Trainer:
    """One run in one process."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        run: Run,
        group: Processes,
        device: torch.device,
        dataset: data.Dataset,
        model: nn.Module,
        pruning: dict[str, Any] | None = None,
    ) -> None:
        if group.world > 1 and settings.batch_size < 2 * group.world:
            raise ValueError(
                f"batch_size {settings.batch_size}: less than two images for each of {group.world} processes"
            )
        self.settings, self.runtime, self.run, self.group, self.device = settings, runtime, run, group, device
        self.reporter = Reporter(runtime.quiet or not group.first)
        self.dataset, self.model, self.data_digest = dataset, model, fingerprint(dataset)
        self.optimiser = build_optimiser(self.model, settings)
        batches = Data.of(dataset, settings, device, group)
        self.training, self.validation, self.test = batches.training, batches.validation, batches.test
        self.stepper = build_stepper(self.model, self.optimiser, settings, len(self.training))
        if settings.imp_rewind >= settings.epochs * len(self.training):
            raise ValueError(
                f"imp_rewind {settings.imp_rewind}: training has {settings.epochs * len(self.training)} steps"
            )
        first = settings.imp_rewind if settings.imp_round != 0 else 0
        self.progress = Progress(*divmod(first, len(self.training)), pruning=pruning)
        self.wire = wire_bytes(self.model)
        self._restore()
        compiled = torch.compile(self.model) if settings.compile else self.model
        self.network = group.parallel(compiled)  # type: ignore[arg-type]
        self.board = _board(runtime, run) if group.first else None
        self.on_epoch: Callable[[dict[str, Any]], object] = lambda row: None
        self.stopped = False

    # --- the loop

    def train(self) -> dict[str, Any]:
        self._introduce()
        p, steps = self.progress, len(self.training)
        self.reporter.start(self.settings.epochs, steps, p.epoch * steps + p.step)
        try:
            with Signals() as signals:
                while p.epoch < self.settings.epochs:
                    self._epoch(signals)
                    self._finish_epoch()
        finally:
            self.reporter.stop()
        return self._finish()

    def _epoch(self, signals: Signals) -> None:
        p, s = self.progress, self.settings
        self.network.train()
        set_learning_rate(self.optimiser, learning_rate(s, p.epoch))
        size, started, before = len(self.training.indices), time.perf_counter(), p.images
        for x, y in self.training.epoch(p.epoch, start=p.step):
            whole = min(s.batch_size, size - p.step * s.batch_size)
            if self.group.world == 1 or whole >= 2 * self.group.world:  # too few images to share out
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

    def _step(self, x: Tensor, y: Tensor, whole: int, signals: Signals) -> None:
        """One step on this process's share of a batch of `whole` images."""
        p = self.progress
        torch.manual_seed(derive_seed(self.settings.seed, f"step/{p.epoch}/{p.step}/{self.group.rank}"))
        self.stepper.zero_grad()
        with self._autocast():
            logits = self.network(x)
            # the mean over the whole batch, times the processes that DistributedDataParallel divides by
            loss = F.cross_entropy(logits.float(), y, reduction="sum") * (self.group.world / whole)
        correct = (logits.argmax(1) == y).sum().item()
        sums = [loss.item() * whole / self.group.world, correct, len(y), signals.received is not None]
        total, correct, images, stopped = self.group.sum(sums, self.device)
        if not math.isfinite(total):  # before the step, which would spread it over all weights
            raise RunError(self._diagnosis(x, f"loss is {total}"))
        self.stopped = stopped > 0  # as all processes see it: one that stopped by itself would leave the others waiting
        loss.backward()
        self.stepper.step()
        self._keep_for_rewinding()
        p.loss, p.correct, p.images = p.loss + total, p.correct + correct, p.images + images

    def _keep_for_rewinding(self) -> None:
        """Of the dense round of lottery tickets: what later rounds start from."""
        s, done = self.settings, self.progress.epoch * len(self.training) + self.progress.step + 1
        if s.imp_round == 0 and done == s.imp_rewind and self.group.first:
            self.run.save_rewind(self.model.state_dict())

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.bf16)

    def _finish_epoch(self) -> None:
        p = self.progress
        started = time.perf_counter()
        self._check_finite()
        self.group.share_buffers(self.model)
        validation = self.accuracy(self.validation)
        if validation > p.best_validation:  # strictly: the earliest of equals stays the best
            test = validation if self.dataset.selects_on_test else self.accuracy(self.test)
            p.best_validation, p.best_epoch, p.test_at_best = validation, p.epoch, test
            if self.group.first:
                self.run.save_best(self.model)
        p.seconds += time.perf_counter() - started
        row = {
            "epoch": p.epoch,
            "loss": p.loss / p.images,
            "train": p.correct / p.images,
            "validation": validation,
            "lr": learning_rate(self.settings, p.epoch),
            "seconds": round(p.seconds, 3),
            "images_per_second": round(self.rate, 1),
        }
        p.epoch, p.step, p.loss, p.correct, p.images = p.epoch + 1, 0, 0.0, 0.0, 0.0
        self._record(row)
        self.group.wait()

    def _record(self, row: dict[str, Any]) -> None:
        if not self.group.first:
            return
        self.run.add_metrics(row)
        self._save()
        self.reporter.epoch(
            row, self.progress.seconds / self.progress.epoch * (self.settings.epochs - self.progress.epoch)
        )
        self.on_epoch(row)
        if self.board is not None:
            for name in ("loss", "train", "validation", "lr"):
                self.board.add_scalar(name, row[name], row["epoch"])

    @torch.no_grad()
    def accuracy(self, batches: Batches) -> float:
        """The fraction of images classified rightly, over all processes."""
        self.model.eval()
        correct = images = bad = 0.0
        for x, y in batches.epoch(0):
            with self._autocast():
                logits = self.model(x)
            correct += (logits.argmax(1) == y).sum().item()
            images += len(y)
            bad += not bool(logits.isfinite().all())
        correct, images, bad = self.group.sum([correct, images, bad], self.device)
        if bad:
            raise RunError(self._diagnosis(x, "outputs are not finite"))
        return correct / images

    def _check_finite(self) -> None:
        """Before anything is saved: a checkpoint with infinities in it would not be a good one."""
        if not all(bool(p.isfinite().all()) for p in self.model.parameters()):
            raise RunError(self._diagnosis(None, "weights are not finite"))

    # --- state

    def _save(self) -> None:
        state = {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict(), "data": self.data_digest}
        state["tuning"] = autotune.used_times()  # other backends would round differently
        if self.stepper is not self.optimiser:
            state["stepper"] = self.stepper.state_dict()
        self.run.save_state({**state, "progress": dataclasses.asdict(self.progress), "id": run_id(self.settings)})

    def _restore(self) -> None:
        state = self.run.load_state()
        if state is not None:
            try:
                self._check_same(state)
                self.model.load_state_dict(state["model"])
                self.optimiser.load_state_dict(state["optimiser"])
                if self.stepper is not self.optimiser:
                    self.stepper.load_state_dict(state["stepper"])
                self.progress = Progress(**state["progress"])
                autotune.prefer_times(state.get("tuning", {}))
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                raise RunError(f"{self.run.last} does not fit this run ({error}); delete it to start again") from error
        if self.group.first:
            self.run.keep_metrics_before(self.progress.epoch)
        self.resumed = state is not None
        self.group.wait()

    def _check_same(self, state: dict[str, Any]) -> None:
        if state["id"] != run_id(self.settings):
            raise ValueError("it is of other settings")
        if state["data"] != self.data_digest:
            raise ValueError(f"it was trained on other data than {self.settings.data} now holds")

    def _interrupt(self, signals: Signals) -> None:
        self._check_finite()
        if self.group.first:
            self._save()
        self.group.wait()
        where = f"epoch {self.progress.epoch + 1}, step {self.progress.step}"
        message = f"stopped at {where}; the state is in {self.run.last}, the same command goes on from there"
        raise Interrupted(message, 128 + (signals.received or signal.SIGTERM))

    # --- words

    def _introduce(self) -> None:
        say, settings = self.reporter.say, non_defaults(self.settings)
        say("settings: " + (", ".join(f"{k}={v}" for k, v in settings.items()) or "all defaults (paper-adam)"))
        made = report(self.model)
        if made.layers or made.norms:
            say(str(made))
        if self.progress.pruning is not None:
            say(f"{self.settings.method} chose the weights: {_cost(self.progress.pruning)}")
        if self.group.world > 1:
            sent, dense = self.wire
            say(f"{self.group.world} processes; gradients per step: {sent:,} bytes each (dense network: {dense:,})")
        say(
            f"run folder: {self.run.folder}"
            + (f", going on at epoch {self.progress.epoch + 1}" if self.resumed else "")
        )

    def _diagnosis(self, x: Tensor | None, what: str) -> str:
        p = self.progress
        with self._autocast():
            where = first_bad_layer(self.model, x)
        return f"the {what} at epoch {p.epoch + 1}, step {p.step + 1}: {where}; {self.run.kept()}"

    def _file_bytes(self) -> int | None:
        return self.run.best.stat().st_size if self.run.best.exists() else None

    def _counts(self) -> dict[str, int]:
        """The weights that train: how many were asked for, how many there are, and of how many."""
        made = report(self.model)
        if isinstance(self.model, Subspace):
            size, dimensions = self.model.projection.shape
            return {"asked": dimensions, "got": dimensions, "size": size}
        if made.asked:
            return {"asked": made.asked.nnz, "got": made.nnz, "size": made.size}
        return {"got": sum(w.numel() for w in self.model.parameters() if w.dim() > 1)}

    def _finish(self) -> dict[str, Any]:
        p = self.progress
        final = {"final_validation": self.accuracy(self.validation), "final_test": self.accuracy(self.test)}
        result = {
            "id": run_id(self.settings),
            "settings": to_json(self.settings),
            "accuracy": {
                "best_validation": p.best_validation,
                "best_epoch": p.best_epoch,
                "test_at_best": p.test_at_best,
                **final,
            },
            "weights": self._counts(),
            "pruning": p.pruning,
            "rewirings": getattr(self.stepper, "updates", None),
            "bytes": {"file": self._file_bytes(), "per_step": self.wire[0], "dense_per_step": self.wire[1]},
            "seconds": round(p.seconds, 3),
            "processes": self.group.world,
            **provenance(),
        }
        result = dict(json.loads(json.dumps(result)))  # as a later launch will read it
        if self.group.first:
            self.run.save_result(result)
        self.reporter.say(f"finished in {duration(p.seconds)}: {_summary(result)}")
        return result


def _summary(result: dict[str, Any]) -> str:
    accuracy = result["accuracy"]
    best = f"{100 * accuracy['test_at_best']:.2f} % at the best validation epoch ({accuracy['best_epoch'] + 1})"
    return f"test accuracy {best}, {100 * accuracy['final_test']:.2f} % at the end"


def _cost(pruning: dict[str, Any]) -> str:
    passes = f"{pruning['forward_passes']} forward and {pruning['backward_passes']} backward passes"
    return f"{passes} in {duration(pruning['seconds'])}"


def _board(runtime: Runtime, run: Run) -> Any:
    if not runtime.tensorboard:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise RunError("--tensorboard needs tensorboard; install it with: pip install 'dctps[tensorboard]'") from error
    return SummaryWriter(str(Path(run.folder) / "tensorboard"))
