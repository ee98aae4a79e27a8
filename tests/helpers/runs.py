"""Small trainings on the digits: their settings, what they leave in their folder, and the check that two are equal."""

import dataclasses
import json
import textwrap
from pathlib import Path

import torch

from dctps import data
from dctps.train.finetuning.records import FinetuneRun
from dctps.train.loop import Surroundings, Trainer
from dctps.train.plan import paper_plan
from dctps.train.processes import Processes
from dctps.train.runs import Run, RunFolder
from dctps.train.settings import Runtime, Settings, to_json
from dctps.train.setup import prepare
from helpers.processes import torchrun

SMALL = Settings(model="small_cnn", data="digits", density=0.02, epochs=2, lr=3e-3, batch_size=64)
# 1293 images in batches of 50: 25 whole batches and one of 43. The published offset learns slowly, so rounding grows
# slowly, too, which lets two processes be compared with one.
PAIR = dataclasses.replace(SMALL, offset="dct", alpha=1.0, optimizer="sgd", lr=0.05, epochs=3, batch_size=50)
METRICS = {"loss": 1.0, "train": 0.5, "validation": 0.25, "lr": 0.1, "seconds": 1.0, "images_per_second": 9.0}
TIMING = {"seconds", "images_per_second", "examples_per_second"}
OF_THE_MOMENT = {"seconds", "finished", "commit"}


def runtime(folder: Path) -> Runtime:
    """A quiet runtime of one thread; what `keep_memory` sets would hold for all other tests."""
    return Runtime(runs=folder, quiet=True, threads=1, keep_memory=False)


def alone(settings: Settings, folder: Path, group: Processes | None = None) -> Trainer:
    """A trainer in this process, not yet started."""
    device, dataset = torch.device("cpu"), data.load(settings.data)
    model, _ = prepare(settings, dataset, device)
    group = group or Processes()
    plan = paper_plan(settings, dataset, model, device, group)
    return Trainer(plan, Surroundings(runtime(folder), device, group), Run.open(settings, folder))


def run_in(folder: Path) -> RunFolder:
    """The run in a folder, of the kind that the name of the folder says."""
    return FinetuneRun(folder) if folder.name.startswith(FinetuneRun.prefix) else Run(folder)


def metrics(run: RunFolder) -> list[dict]:
    """The metrics of every epoch, without what depends on the clock."""
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMING} for row in rows]


def state(run: RunFolder) -> dict:
    """The last checkpoint of a run, without the time it took."""
    content = dataclasses.asdict(run.load_state())
    content["progress"].pop("seconds")
    (content["progress"]["pruning"] or {}).pop("seconds", None)
    return content


def result(run: RunFolder) -> dict:
    """The result of a run, without the times and the commit."""
    content = json.loads(run.result.read_text())
    (content["pruning"] or {}).pop("seconds", None)
    return {key: value for key, value in content.items() if key not in OF_THE_MOMENT}


def assert_identical(run: RunFolder, other: RunFolder):
    """Check that weights, optimiser, progress and metrics of two runs are equal to the last bit."""
    assert_equal_trees(state(run), state(other))
    assert metrics(run) == metrics(other)


def assert_equal_trees(mine, theirs):
    """Check that nested dicts and lists of tensors and plain values are equal to the last bit."""
    for (place, a), (other_place, b) in zip(leaves(mine), leaves(theirs), strict=True):
        assert place == other_place
        if isinstance(a, torch.Tensor):
            assert (a.dtype, a.shape, bits(a)) == (b.dtype, b.shape, bits(b)), place
        else:
            assert (type(a), a) == (type(b), b), place


def bits(tensor: torch.Tensor) -> bytes:
    """The numbers of a tensor as they lie in memory, which tells 0 from -0."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def leaves(tree, path=""):
    """The leaves of nested dicts and lists, with their paths."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else None
    if items is None:
        return [(path, tree)]
    return [leaf for key, value in items for leaf in leaves(value, f"{path}/{key}")]


PARALLEL = """
    import json, os, pathlib, sys, torch
    from dctps.train.processes import processes
    from dctps.train.settings import from_json
    from helpers.runs import alone
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    with processes(torch.device("cpu")) as group:
        trainer = alone(from_json(json.loads(sys.argv[2])), folder, group)
        result = trainer.train()
        torch.save(trainer.model.state_dict(), folder / f"rank{group.rank}")
        if group.first:
            (folder / "result.json").write_text(json.dumps(result))
    os._exit(0)  # without the teardown of torch's threads, which aborts now and then
"""


def train_in_two(settings: Settings, folder: Path) -> tuple[dict, dict]:
    """Train in two processes; return the state of the network in each."""
    script = folder.with_suffix(".py")
    script.write_text(textwrap.dedent(PARALLEL))
    folder.mkdir()
    run = torchrun(str(script), str(folder), json.dumps(to_json(settings)))
    assert run.returncode == 0, run.stderr[-3000:]
    first, second = (torch.load(folder / f"rank{rank}") for rank in (0, 1))
    assert all(torch.equal(first[key], second[key]) for key in first)  # supports, values and statistics alike
    return first, second
