"""Run folders for a page to show, written without a training."""

import dataclasses
import json

from dctps.train.settings import PUBLISHED, run_id, to_json

BASE = dataclasses.replace(PUBLISHED, model="small_cnn", data="digits", epochs=3)
PROVENANCE = {"commit": "abc", "versions": {}, "cpu": "", "threads": 1, "finished": ""}
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)><b>bold</b>&amp;"


def training_result(settings, test=0.9, validation=0.8, weights=100, file=None):
    """What a training leaves in result.json."""
    accuracy = {"test_at_best": test, "best_validation": validation, "best_epoch": 0}
    accuracy |= {"final_test": 0.5, "final_validation": 0.5}
    costs = {"pruning": None, "rewirings": None, "seconds": 1.5, "processes": 1}
    sizes = {"file": file, "per_step": 8, "dense_per_step": 80}
    content = {"accuracy": accuracy, "weights": {"got": weights}, "bytes": sizes, **costs}
    return {"id": run_id(settings), "settings": to_json(settings), **content, **PROVENANCE}


def training_failure(settings, status="failed", reason="no reason"):
    """What a training that failed leaves in failure.json."""
    content = {"task": "train", "status": status, "reason": reason, "details": ""}
    return {"id": run_id(settings), "settings": to_json(settings), **content, **PROVENANCE}


def task_result(task, settings, **content):
    """What a task that trains nothing leaves in result.json."""
    whole = {"id": f"{task}-{run_id(settings)}", "task": task, "settings": to_json(settings), "pruning": None}
    return {**whole, **content, **PROVENANCE}


def write_run(runs, content, name="result.json", folder=None):
    """Write a run folder."""
    place = runs / (folder or content["id"])
    place.mkdir(parents=True)
    (place / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return place


def sparse(density=0.1, base=BASE, **changes):
    """Settings of a sparse training."""
    return dataclasses.replace(base, density=density, **changes)


def write_metrics(folder, epochs):
    """Write the metrics of so many epochs, and half a line of one more."""
    folder.mkdir(parents=True, exist_ok=True)
    others = {"train": 0.5, "loss": 1.0, "lr": 0.1, "seconds": 1.0, "images_per_second": 10.0}
    lines = [json.dumps({"epoch": e, "validation": e / epochs, **others}) for e in range(epochs)]
    (folder / "metrics.jsonl").write_text("\n".join([*lines, '{"epoch": 3, "valid']))
