"""The bookkeeping of the explorations in benchmarks/, which decides what their tables say."""

import csv
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import dctps

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def module(monkeypatch):
    """Import a module of benchmarks/ by name, and forget it afterwards."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    before = set(sys.modules)
    yield lambda name: __import__(name)
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(BENCHMARKS) in sys.modules[name].__file__:
            del sys.modules[name]


def test_the_surplus_falls_between_two_moments(module):
    surplus = module("explore_density").surplus
    assert [surplus(done) for done in (0.0, 0.25, 0.5, 0.75, 1.0)] == [1.0, 1.0, 0.125, 0.0, 0.0]


def test_the_smallest_values_go_and_stay_away(module):
    shrinking = module("explore_density").Shrinking
    net = dctps.sparsify(nn.Sequential(nn.Linear(10, 6)), 0.1)
    values = net[0].values
    shrink = shrinking(net, {"0": 2})
    values.data = torch.tensor([0.5, -4.0, 0.1, 3.0, -0.2, 1.0])
    shrink(0.2)
    assert values.tolist() == pytest.approx([0.5, -4.0, 0.1, 3.0, -0.2, 1.0])  # no value goes before a quarter
    shrink(0.5)  # an eighth of the surplus of 4 is rounded to 0
    assert values.tolist() == [0.0, -4.0, 0.0, 3.0, 0.0, 0.0]
    values.data = torch.tensor([9.0, 1.0, 9.0, 1.0, 9.0, 9.0])  # what the optimiser makes of them in a step
    shrink(0.9)
    assert values.tolist() == [0.0, 1.0, 0.0, 1.0, 0.0, 0.0]


def test_importance_is_the_magnitude_over_the_square_root_of_the_age(module):
    by_age = module("explore_rewiring").SETByAge
    net = dctps.sparsify(nn.Sequential(nn.Linear(20, 10)), 0.05)
    layer, optimiser = net[0], torch.optim.SGD(net.parameters(), lr=0.0)
    rewire = by_age(net, optimiser, stop=100, every=4, drop_fraction=0.5, decay="constant")
    grown = dict.fromkeys(layer.support.positions.tolist(), 0)  # iteration at which each weight grew
    for iteration in range(1, 13):
        layer.values.data = 1 + torch.rand(layer.nnz)
        net(torch.ones(1, 20)).sum().backward()
        before, magnitudes = layer.support.positions.tolist(), layer.values.detach().clone()
        rewire.step()
        after = layer.support.positions.tolist()
        if iteration % 4 == 0:
            ages = torch.tensor([iteration - grown[position] for position in before])
            importance = magnitudes / ages.sqrt()
            kept = {before[i] for i in importance.topk(len(before) - len(before) // 2).indices.tolist()}
            assert kept <= set(after)
            grown = {position: grown[position] if position in kept else iteration for position in after}
    assert len(set(grown.values())) > 1


def test_rows_of_a_table_keep_their_origin(module, tmp_path, monkeypatch):
    table = module("table")
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    monkeypatch.setattr(table, "commit", lambda: "first")
    table.add("x", ["a", "b"], [1, 2])
    monkeypatch.setattr(table, "commit", lambda: "second")
    table.add("x", ["a", "b"], [3, 4])
    with (tmp_path / "bench-x.csv").open(newline="") as file:
        found = [(row["a"], row["b"], row["commit"]) for row in csv.DictReader(file)]
    assert found == [("1", "2", "first"), ("3", "4", "second")]
    assert [row[:2] for row in table.rows("x")] == [["1", "2"], ["3", "4"]]
