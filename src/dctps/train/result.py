"""The result of a training, as result.json has it, and in words."""

import json
from typing import Any

from torch import nn

from dctps.base.provenance import provenance
from dctps.methods.subspace.subspace import Subspace
from dctps.nn.report import report
from dctps.train.processes import wire_bytes
from dctps.train.records import epoch_number
from dctps.train.runs import RunFolder
from dctps.train.settings import Settings, to_json
from dctps.train.state import TrainingState

Result = dict[str, Any]


def build_result(
    run: RunFolder, settings: Settings, state: TrainingState, final: dict[str, float], processes: int
) -> Result:
    """The content of result.json; final: the accuracies at the end."""
    sent, dense = wire_bytes(state.model)
    file_bytes = run.best.stat().st_size if run.best.exists() else None
    result = {
        "id": run.id,
        "settings": to_json(settings),
        **outcome(state, final),
        "weights": count_weights(state.model),
        "bytes": {"file": file_bytes, "per_step": sent, "dense_per_step": dense},
        "processes": processes,
        **provenance(),
    }
    return as_read(result)


def outcome(state: TrainingState, final: dict[str, float]) -> Result:
    """What the results of all kinds of training say: the accuracies, and what the training has cost."""
    p = state.progress
    best = {"best_validation": p.best_validation, "best_epoch": p.best_epoch, "test_at_best": p.test_at_best}
    return {
        "accuracy": {**best, **final},
        "pruning": p.pruning,
        "rewirings": getattr(state.stepper, "updates", None),
        "seconds": round(p.seconds, 3),
    }


def as_read(result: Result) -> Result:
    """Return a result exactly as a later call reads it from its file."""
    return dict(json.loads(json.dumps(result)))


def count_weights(model: nn.Module) -> dict[str, int]:
    """How many trainable weights were asked for, how many there are, and how many the dense network has."""
    if isinstance(model, Subspace):
        size, dimensions = model.projection.shape
        return {"asked": dimensions, "got": dimensions, "size": size}
    made = report(model)
    if made.asked:
        return {"asked": made.asked.nnz, "got": made.nnz, "size": made.size}
    return {"got": sum(w.numel() for w in model.parameters() if w.dim() > 1)}


def summary(result: Result) -> str:
    """The accuracies of a result in words."""
    accuracy = result["accuracy"]
    best = (
        f"{100 * accuracy['test_at_best']:.2f} % at the best validation epoch ({epoch_number(accuracy['best_epoch'])})"
    )
    return f"test accuracy {best}, {100 * accuracy['final_test']:.2f} % at the end"
