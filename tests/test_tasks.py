"""What can be done with settings, and what is left in the run folder when it cannot."""

import dataclasses
import json

import pytest
import torch

from dctps import data, models
from dctps.data import Dataset
from dctps.experiments.cells import Cell, distinct
from dctps.experiments.perform import is_over, perform
from dctps.experiments.performers import JACOBIAN_IMAGES
from dctps.experiments.results import read
from dctps.train.runs import Busy, Run
from dctps.train.settings import Settings, run_id
from helpers import runs

TINY = Settings(model="small_cnn", data="digits", images=60, epochs=1, batch_size=30, density=0.05)


@pytest.fixture
def runtime(tmp_path):
    return runs.runtime(tmp_path / "runs")


def content(cell, runtime, name="result.json"):
    return json.loads((runtime.runs / cell.id / name).read_text())


def test_a_training_has_the_name_that_dctps_train_gives_it(runtime):
    cell = Cell(TINY)
    perform(cell, runtime)
    assert cell.id == run_id(TINY)
    assert content(cell, runtime)["accuracy"]["best_epoch"] == 0


def test_what_is_over_is_not_done_again(runtime):
    cell = Cell(TINY, "counts")
    perform(cell, runtime)
    path = runtime.runs / cell.id / "result.json"
    before = path.stat().st_mtime_ns
    perform(cell, runtime)
    assert path.stat().st_mtime_ns == before


def test_a_claimed_cell_is_left_alone(runtime):
    cell = Cell(TINY)
    perform(dataclasses.replace(cell, task="counts"), runtime)  # makes the folder of runs
    run = Run.open(TINY, runtime.runs)
    with run.claimed(), pytest.raises(Busy):
        perform(cell, runtime)
    assert not is_over(run)


def test_a_collapse_is_noted_as_one(runtime):
    # without a path to its output a weight has no score: SynFlow keeps fewer than are asked for
    settings = dataclasses.replace(TINY, model="fixup_resnet20", data="digits32", method="synflow", offset=None)
    cell = Cell(settings, "counts")
    perform(cell, runtime)
    failure = content(cell, runtime, "failure.json")
    assert failure["status"] == "collapsed"
    assert "synflow" in failure["reason"]
    assert [row.status for row in read(runtime.runs).rows] == ["collapsed"]


def test_a_failure_has_its_reason_and_its_place(runtime):
    cell = Cell(dataclasses.replace(TINY, data="folder:nowhere"))
    perform(cell, runtime)
    failure = content(cell, runtime, "failure.json")
    assert failure["status"] == "failed"
    assert "nowhere" in failure["reason"]
    assert "Traceback" in failure["details"]


def test_counts_need_no_images_where_none_are_looked_at(runtime):
    cell = Cell(Settings(model="lenet", data="cifar10", density=0.01), "counts")
    perform(dataclasses.replace(cell), dataclasses.replace(runtime, data_root=runtime.runs / "empty"))
    layers = content(cell, runtime)["layers"]
    assert [layer["name"] for layer in layers] == ["conv1", "conv2", "conv3", "fc1", "fc2"]
    assert [layer["nnz"] for layer in layers] == [123] * 5  # 615 weights, equally
    assert content(cell, runtime)["others"] == 5  # the alphas


def test_counts_of_a_dense_network_are_its_sizes(runtime):
    cell = Cell(Settings(model="resnet18", data="cifar10"), "counts")
    perform(cell, runtime)
    result = content(cell, runtime)
    assert sum(layer["nnz"] for layer in result["layers"]) == 11_164_352
    assert result["others"] == 9_610


def test_the_jacobian_takes_the_support_that_was_counted(runtime, monkeypatch):
    settings = dataclasses.replace(TINY, data="digits32", model="lenet", method="synflow", offset=None)
    perform(Cell(settings, "counts"), runtime)
    monkeypatch.setattr("dctps.train.setup.prune", lambda *a, **k: pytest.fail("scored again"))
    perform(Cell(settings, "jacobian"), runtime)
    values = torch.tensor(content(Cell(settings, "jacobian"), runtime)["singular_values"])
    assert values.shape == (JACOBIAN_IMAGES, 10)


def test_cells_that_are_the_same_run_count_once():
    cells = [Cell(TINY, panel="a"), Cell(TINY, panel="b"), Cell(TINY, "counts"), Cell(TINY)]
    assert [(cell.panel, cell.task) for cell in distinct(cells)] == [("a", "train"), ("", "counts")]


# --- networks and data of users ---------------------------------------------------------------------------------------


def own_data() -> Dataset:
    return dataclasses.replace(data.load("digits"), name="own")


def own_network(num_classes: int) -> torch.nn.Module:
    return models.build("small_cnn", num_classes, in_channels=1)


def not_a_network() -> int:
    return 1


def test_networks_and_data_of_users(runtime):
    cell = Cell(dataclasses.replace(TINY, model="test_tasks:own_network", data="test_tasks:own_data"))
    perform(cell, runtime)
    assert content(cell, runtime)["weights"]["size"] == sum(
        p.numel() for p in own_network(10).parameters() if p.dim() > 1
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "test_tasks:not_a_network"}, "int, not an nn.Module"),
        ({"data": "test_tasks:not_a_network"}, "int, not a dctps.data.Dataset"),
        ({"model": "nowhere_at_all:network"}, "cannot build 'nowhere_at_all:network'"),
        ({"images": 5000}, "digits has 1437"),
    ],
)
def test_what_cannot_be_made_is_said(runtime, changes, words):
    cell = Cell(dataclasses.replace(TINY, **changes))
    perform(cell, runtime)
    assert words in content(cell, runtime, "failure.json")["reason"]


def test_fewer_images_are_the_first_ones():
    from dctps.train.images import load

    whole, part = load(dataclasses.replace(TINY, images=None)), load(TINY)
    assert torch.equal(part.train_images, whole.train_images[:60])
    assert torch.equal(part.test_images, whole.test_images)
