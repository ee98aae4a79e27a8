"""What a trainer has to know of the kind of training that it does; everything else is the same for all kinds."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dctps.data import Dataset
from dctps.train.images import RunBatches
from dctps.train.optimise import build_optimiser, build_stepper, learning_rate
from dctps.train.processes import Processes
from dctps.train.records import Progress
from dctps.train.reporter import introduction
from dctps.train.result import Result, build_result, summary
from dctps.train.runs import RunFolder
from dctps.train.settings import Settings
from dctps.train.state import TrainingState, fingerprint


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is trained on which batches, at which learning rate, and what is said and written about it."""

    state: TrainingState
    batches: RunBatches
    learning_rate: Callable[[int], float]  # of a step, counted from 0 over all epochs
    introduction: Callable[[], list[str]]  # the lines that are said before training
    result: Callable[[RunFolder, dict[str, float]], Result]  # from the accuracies at the end; may write other files
    summary: Callable[[Result], str] = summary  # a result in words
    unit: str = "images"  # what is counted per second
    compile: bool = False


def paper_plan(
    settings: Settings,
    dataset: Dataset,
    model: nn.Module,
    device: torch.device,
    group: Processes,
    pruning: dict[str, Any] | None = None,
) -> Plan:
    """The plan of a training by the paper's protocol; pruning: what choosing the support has cost."""
    batches = RunBatches.of(dataset, settings, device, group)
    steps = len(batches.training)
    optimiser = build_optimiser(model, settings)
    stepper = build_stepper(model, optimiser, settings, steps, has_offset=settings.offset is not None)
    state = TrainingState(settings, fingerprint(dataset), model, optimiser, stepper, Progress(pruning=pruning))
    return Plan(
        state=state,
        batches=batches,
        learning_rate=lambda step: learning_rate(settings, step // max(1, steps)),
        introduction=lambda: introduction(settings, model, state.progress.pruning),
        result=lambda run, final: build_result(run, settings, state, final, group.world),
        compile=settings.compile,
    )
