"""Where the weights of S are: by scores under an offset, and in whole kernels."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dctps
from dctps.data import load
from dctps.experiments import places
from dctps.experiments.cells import varied
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.prunable import prunable
from dctps.train.settings import Settings
from dctps.train.setup import prepare

ASKED = {"density": 0.05, "offset": "dct_signed", "alpha": "leverage", "allocation": "epl", "seed": 3}


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3),
        nn.Flatten(),
        nn.Linear(64, 5),
    )


def batches(count=places.BATCHES):
    torch.manual_seed(1)
    return [(torch.randn(10, 3, 6, 6), torch.randint(5, (10,))) for _ in range(count)]


def start(offset):
    """The network in which a training begins, and the gradient of the loss of all batches by each weight, by hand."""
    model = network()
    if offset is not None:
        sparse = dctps.sparsify(copy.deepcopy(model), **ASKED)
        assert all(not m.values.any() for m in sparse.modules() if isinstance(m, dctps.DpsConv2d))
        for name, layer in prunable(model).items():
            layer.weight.data = sparse.get_submodule(name).dense_weight().detach()
    model.train()
    sum(F.cross_entropy(model(x), y) for x, y in batches()).backward()
    return {name: (layer.weight.detach(), layer.weight.grad) for name, layer in prunable(model).items()}


@pytest.mark.parametrize("offset", ["dct_signed", None])
@pytest.mark.parametrize("name", ["by_gradient", "by_snip"])
def test_places_have_the_largest_scores_of_their_layer(name, offset):
    found = getattr(places, name)(network(), batches(), **{**ASKED, "offset": offset})
    expected = dctps.allocate([tuple(s.shape) for s in found.values()], 0.05, "epl")
    assert [support.nnz for support in found.values()] == expected
    for layer, (weight, gradient) in start(offset).items():
        scores = gradient.abs() if name == "by_gradient" else (weight * gradient).abs()
        best = scores.flatten().topk(found[layer].nnz).indices.sort().values
        assert found[layer].positions.tolist() == best.tolist()


@pytest.mark.parametrize("density", [0.02, 0.3, 1.0])
def test_whole_kernels_have_all_positions_of_a_filter_and_a_channel(density):
    found = places.whole_kernels(network(), density, "epl", 0)
    random = dctps.sparsify(network(), density, seed=0)
    for name, support in found.items():
        assert support.nnz == random.get_submodule(name).nnz
        taps = 9 if len(support.shape) == 4 else 1
        used = support.mask().view(-1, taps).sum(1)
        assert sorted(used[used > 0].tolist())[1:] == [taps] * (-(-support.nnz // taps) - 1)
    assert found["0"] != places.whole_kernels(network(), 0.02, "epl", 1)["0"]


RUN = Settings(model="small_cnn", data="digits", images=60, density=0.05, batch_size=30, epochs=1)


def supports(model):
    return [m.support for m in model.modules() if isinstance(m, DpsLayer)]


@pytest.mark.parametrize("name", ["by_gradient", "by_snip", "whole_kernels"])
def test_a_run_takes_its_places_from_a_function(name):
    settings, data = varied(RUN, method=f"dctps.experiments.places:{name}"), load("digits")
    model, cost = prepare(settings, data, torch.device("cpu"))
    random, _ = prepare(RUN, data, torch.device("cpu"))
    assert cost is None
    assert [support.nnz for support in supports(model)] == [support.nnz for support in supports(random)]
    assert supports(model) != supports(random)
    again, _ = prepare(settings, data, torch.device("cpu"), saved=model.state_dict())
    assert supports(again) == supports(model)


def not_supports(model):
    return 3


def test_a_function_that_returns_no_supports_is_refused():
    with pytest.raises(ValueError, match="returned a int, not supports by the names of layers"):
        prepare(varied(RUN, method="test_places:not_supports"), load("digits"), torch.device("cpu"))
