"""The result of a training, as result.json has it, and in words."""

import json
from typing import Any

from torch import nn

from dctps.base.provenance import provenance
from dctps.methods.subspace.subspace import Subspace
from dctps.nn.report import report
from dctps.train.records import epoch_number
from dctps.train.runs import Run
from dctps.train.settings import to_json
from dctps.train.state import TrainingState

Result = dict[str, Any]


def build_result(
    run: Run, state: TrainingState, final: dict[str, float], wire: tuple[int, int], processes: int
) -> Result:
    """The content of result.json.

    final: the accuracies at the end.
    wire: bytes of gradients that a process sends in each step, and those of the dense network.
    """
    p = state.progress
    best = {"best_validation": p.best_validation, "best_epoch": p.best_epoch, "test_at_best": p.test_at_best}
    file_bytes = run.best.stat().st_size if run.best.exists() else None
    result = {
        "id": run.id,
        "settings": to_json(state.settings),
        "accuracy": {**best, **final},
        "weights": count_weights(state.model),
        "pruning": p.pruning,
        "rewirings": getattr(state.stepper, "updates", None),
        "bytes": {"file": file_bytes, "per_step": wire[0], "dense_per_step": wire[1]},
        "seconds": round(p.seconds, 3),
        "processes": processes,
        **provenance(),
    }
    return dict(json.loads(json.dumps(result)))  # exactly what a later call reads from the file


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
