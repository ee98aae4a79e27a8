"""The plan of a fine-tuning: its optimiser, its learning rate, what is said before it, and its result."""

import functools
import importlib.metadata
import math
import sys
from typing import Any

import torch
from torch import nn

from dctps.base.provenance import provenance
from dctps.base.words import printable
from dctps.checkpoint.adapters import Adapter
from dctps.checkpoint.folder import save_pretrained
from dctps.core.fingerprint import fingerprint
from dctps.nn.decay import param_groups
from dctps.nn.finetune import frozen_parameters
from dctps.nn.report import ParameterRow, report
from dctps.train.finetuning.examples import Examples
from dctps.train.finetuning.records import FinetuneRun
from dctps.train.finetuning.settings import FinetuneSettings
from dctps.train.finetuning.setup import Cost
from dctps.train.images import RunBatches
from dctps.train.optimise import build_stepper, together
from dctps.train.plan import Plan
from dctps.train.records import Progress
from dctps.train.reporter import pruning_lines, settings_line
from dctps.train.result import Result, as_read, outcome, summary
from dctps.train.runs import RunError, RunFolder
from dctps.train.settings import to_json
from dctps.train.state import TrainingState

NAME = "finetune"  # of the task, in result.json
SHOWN = 8  # names of classes, or of parameters, in a line


def finetune_plan(
    settings: FinetuneSettings,
    examples: Examples,
    model: nn.Module,
    batches: RunBatches,
    digest: str,
    new: tuple[str, ...],
    cost: Cost | None,
) -> Plan:
    """The plan of a fine-tuning of a network W0 + S.

    digest: that of the data.
    new: the names of the parameters that are not pretrained.
    cost: what choosing the support has cost.
    """
    steps = len(batches.training)
    groups = [{**group, "factor": 1.0} for group in param_groups(model, settings.weight_decay)]
    optimiser = torch.optim.AdamW(groups, lr=settings.lr, **together(groups))
    stepper = build_stepper(model, optimiser, settings, steps, has_offset=True)
    base = fingerprint(frozen_parameters(model))
    state = TrainingState(settings, digest, model, optimiser, stepper, Progress(pruning=cost), base)
    return Plan(
        state=state,
        batches=batches,
        learning_rate=functools.partial(learning_rate, settings, settings.epochs * steps),
        introduction=lambda: introduction(settings, examples, model, new, state.progress.pruning),
        result=lambda run, final: result(run, settings, examples, state, final),
        summary=words,
        unit="examples",
    )


def learning_rate(settings: FinetuneSettings, steps: int, step: int) -> float:
    """The learning rate of a step, counted from 0: it rises, and then falls to zero behind the last of all `steps`."""
    rising = math.floor(settings.warmup * steps)
    if step < rising:
        return settings.lr * (step + 1) / (rising + 1)
    passed = (step - rising) / max(1, steps - rising)
    shares = {"constant": 1.0, "linear": 1 - passed, "cosine": (1 + math.cos(math.pi * passed)) / 2}
    return settings.lr * shares[settings.schedule]


def introduction(
    settings: FinetuneSettings, examples: Examples, model: nn.Module, new: tuple[str, ...], cost: Cost | None
) -> list[str]:
    """What is fine-tuned on what: the data, the three groups of parameters, and the sizes in files."""
    counts = ", ".join(f"{len(part):,} for {name}" for name, part in examples.parts.items())
    classes = f"{len(examples.classes)} classes: {_listed(examples.classes)}"
    lines = [settings_line(settings), f"data: {counts} ({examples.noun}); {classes}"]
    if new:
        lines.append(f"not pretrained, so they train as a whole: {_listed(new)}")
    made = report(model)
    return [*lines, *made.groups(), *made.whole_network(), *pruning_lines(settings.support, cost)]


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return printable(", ".join(names[:SHOWN])) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


# --- the result -------------------------------------------------------------------------------------------------------


def result(
    run: RunFolder, settings: FinetuneSettings, examples: Examples, state: TrainingState, final: dict[str, float]
) -> Result:
    """The content of result.json, after the adapter of the best epoch is written as a folder."""
    assert isinstance(run, FinetuneRun)
    made = report(state.model)
    parameters = {"sparse": made.nnz, "whole": _sum(made.trained), "frozen": _sum(made.frozen)}
    write_adapter_folder(run, state.model, settings.model)
    return as_read(
        {
            "id": run.id,
            "task": NAME,
            "settings": to_json(settings),
            **outcome(state, final),
            "parameters": parameters,
            "examples": {name: len(part) for name, part in examples.parts.items()},
            "classes": examples.classes,
            "bytes": {"adapter": run.best.stat().st_size, "network": made.sizes.dense_bytes},
            **_provenance(),
        }
    )


def _provenance() -> dict[str, Any]:
    """Where the result comes from, with the version of transformers if the network is one of its."""
    found = provenance()
    if "transformers" in sys.modules:
        found["versions"] |= {"transformers": importlib.metadata.version("transformers")}
    return found


def _sum(rows: list[ParameterRow]) -> int:
    return sum(row.size for row in rows)


def write_adapter_folder(run: FinetuneRun, model: nn.Module, base: str) -> None:
    """Attach the adapter of the best epoch to the network, and write it as a folder with a model card."""
    try:
        Adapter.read(run.best).attach(model)
    except (ValueError, OSError, RuntimeError) as error:
        raise RunError(f"{run.best} cannot be used ({error}); delete {run.folder} to start this run again") from error
    try:
        save_pretrained(model, run.adapter, base=base)
    except OSError as error:
        raise RunError(f"cannot write {run.adapter}: {error.strerror or error}; {run.kept()}") from error


def words(content: Result) -> str:
    """A result in words."""
    adapter, network = content["bytes"]["adapter"], content["bytes"]["network"]
    return f"{summary(content)}; adapter of {adapter:,} bytes in adapter/ (the network has {network:,})"
