"""`finetune`: fine-tune a pretrained network, or go on where it stopped."""

import contextlib
import os

import torch

from dctps.base.extras import require
from dctps.base.machine import flushed_denormals
from dctps.base.registry import lookup
from dctps.core.allocation import ALLOCATIONS
from dctps.train.devices import set_up
from dctps.train.finetuning.examples import load_examples, make_batches
from dctps.train.finetuning.loading import check_model, check_outputs, load_network
from dctps.train.finetuning.plan import finetune_plan, words
from dctps.train.finetuning.records import FinetuneRun
from dctps.train.finetuning.settings import FinetuneSettings
from dctps.train.finetuning.setup import prepare
from dctps.train.loop import OnEpoch, Surroundings, Trainer
from dctps.train.plan import Plan
from dctps.train.processes import Processes
from dctps.train.records import Checkpoint
from dctps.train.result import Result
from dctps.train.runs import RunError
from dctps.train.session import finished_result, occupy
from dctps.train.settings import Runtime


def finetune(
    settings: FinetuneSettings,
    runtime: Runtime = Runtime(),  # noqa: B008
    on_epoch: OnEpoch = lambda row: None,
) -> Result:
    """Fine-tune a pretrained network, or go on where it stopped; returns the result, which is also in the run folder.

    The adapter of the best epoch is in `best.safetensors` there, and in the folder `adapter` with a model card. A
    finished run is not trained again. `on_epoch` is called with the metrics of each epoch. `RunError` if the run cannot
    start or go on; `Interrupted` if a signal ended it.
    """
    device = set_up(runtime)
    run = FinetuneRun.at(settings, runtime.runs)
    finished = finished_result(run, runtime, words)
    if finished is not None:
        return finished
    _check_beforehand(settings, runtime)
    with torch.random.fork_rng(), flushed_denormals(), contextlib.ExitStack() as locks:
        trainer = _trainer(settings, Surroundings(runtime, device, Processes()), run, locks)
        trainer.on_epoch = on_epoch
        return trainer.train()


def _check_beforehand(settings: FinetuneSettings, runtime: Runtime) -> None:
    """Raise an error for what can be known to be wrong before data are read."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("a network is fine-tuned in one process; start the command without torchrun")
    lookup(ALLOCATIONS, settings.allocation, "allocation")
    check_model(settings.model)
    if runtime.tensorboard:
        require("tensorboard", "--tensorboard")


def _trainer(
    settings: FinetuneSettings, surroundings: Surroundings, run: FinetuneRun, locks: contextlib.ExitStack
) -> Trainer:
    """The trainer of a run at the place where it begins or goes on, in a folder that nobody else trains in."""
    exists = run.folder.exists()
    if exists:  # nobody else may write the state that is read now
        occupy(run, settings, True, locks)
    saved = run.load_state()
    plan = _plan(settings, surroundings.device, run, saved)
    if not exists:  # whatever is wrong was found before a folder is made
        occupy(run, settings, True, locks, is_new=True)
    trainer = Trainer(plan, surroundings, run)
    if saved is not None:
        trainer.restore(saved)
    return trainer


def _plan(settings: FinetuneSettings, device: torch.device, run: FinetuneRun, saved: Checkpoint | None) -> Plan:
    examples = load_examples(settings)
    torch.manual_seed(settings.seed)  # of the parameters that are new
    texts = examples.source is None
    network = load_network(settings.model, examples.classes, texts=texts, max_length=settings.max_length)
    model = network.model.to(device)
    batches, digest = make_batches(settings, examples, network, device)
    x, _ = next(iter(batches.training.epoch(0)))
    check_outputs(model, x, len(examples.classes), settings.model, examples.noun)
    try:
        cost = prepare(model, settings, batches.training, None if saved is None else saved.model, network.new)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        if saved is None:
            raise
        raise RunError(f"{run.last} does not fit this run ({error}); delete it to start again") from error
    return finetune_plan(settings, examples, model, batches, digest, network.new, cost)
