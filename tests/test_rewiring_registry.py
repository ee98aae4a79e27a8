"""The registry of rewiring methods: what stands in it can be trained, named and asked for."""

import dataclasses

import pytest
import torch
from torch import nn

import dctps
from dctps.cli.train import train
from dctps.experiments.naming import method_name
from dctps.methods.rewiring import REWIRINGS
from dctps.methods.rewiring.base import Rewiring
from dctps.methods.rewiring.dsr import DSR
from dctps.methods.rewiring.schedule import TrainingPlan
from dctps.methods.rewiring.set import SET
from dctps.train import fit
from helpers.marks import needs_digits
from helpers.runs import SMALL, runtime


class Wander(SET):
    """A method of a user: the random growth of SET in its own class."""


@pytest.fixture
def wander(monkeypatch):
    monkeypatch.setitem(REWIRINGS, "wander", Wander)


@needs_digits
def test_a_method_that_is_registered_trains(wander, tmp_path):
    settings = dataclasses.replace(SMALL, rewire="wander", rewire_every=7)
    result = fit(settings, runtime(tmp_path))
    assert result["rewirings"] == 4  # of 42 steps weights move up to the 31st
    other = fit(dataclasses.replace(settings, rewire="set"), runtime(tmp_path))
    assert result["accuracy"] == other["accuracy"]


def test_figures_name_a_method_by_its_class(wander):
    settings = dataclasses.replace(SMALL, offset=None, allocation="uniform", rewire="wander")
    assert method_name(settings) == "Wander (uniform)"


def test_a_name_that_nobody_registered_is_refused():
    with pytest.raises(ValueError, match="unknown rewire 'wander'; choose one of: rigl, set, dsr"):
        dataclasses.replace(SMALL, rewire="wander")


@pytest.mark.parametrize("has_offset", [True, False])
def test_dsr_waits_an_epoch_under_an_offset(has_offset):
    plan = TrainingPlan(stop=100, every=5, seed=3, drop_fraction=0.9, steps_per_epoch=20, has_offset=has_offset)
    net = dctps.sparsify(nn.Linear(8, 8), 0.5)
    rewiring = DSR.for_training(net, torch.optim.Adam(net.parameters()), plan)
    assert isinstance(rewiring, Rewiring)
    assert (rewiring.schedule.start, rewiring.seed) == (20 if has_offset else 0, 3)
    assert rewiring.drop_fraction == 0.1  # its own, not that of the plan


def test_the_help_of_the_command_names_every_method(capsys):
    with pytest.raises(SystemExit):
        train(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    described = text.partition("--rewire ")[2].partition("--rewire-every")[0]
    assert all(name in described for name in REWIRINGS)
