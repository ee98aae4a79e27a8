"""More or fewer weights later, groups of parameters for weight decay, and steps that would be taken twice."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dctps
from dctps import DpsLinear, Support
from dctps.methods.rewiring import REWIRINGS
from dctps.nn.dps_layer import DpsLayer
from helpers.networks import cnn

OPTIMISERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
}


def step(net, optimizer):
    optimizer.zero_grad()
    net(torch.randn(4, 3, 12, 12)).square().mean().backward()
    optimizer.step()


def content(tensor, layer):
    return dict(zip(layer.positions.tolist(), tensor.tolist(), strict=True))


# --- set_density ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", OPTIMISERS.values(), ids=OPTIMISERS)
@pytest.mark.parametrize("density", [0.02, 0.05, 0.2, 1.0])
def test_training_goes_on_with_another_density(make, density):
    net = dctps.sparsify(cnn(), 0.05)
    optimizer, objects = make(net.parameters()), [id(p) for p in net.parameters()]
    step(net, optimizer)
    assert dctps.set_density(net, density, optimizer) is net
    report = dctps.report(net)
    assert report.nnz == report.asked.nnz == max(1, int(density * report.size + 0.5))
    assert [id(p) for p in net.parameters()] == objects
    step(net, optimizer)
    assert all(torch.isfinite(p).all() for p in net.parameters())


@given(before=st.integers(1, 48), after=st.integers(1, 48), seed=st.integers(0, 99))
def test_what_fits_stays_with_its_moments(before, after, seed):
    """The definition: the largest |S| stay, with value and moments; new places start at zero."""
    layer = DpsLinear(8, 6, nnz=before, seed=seed)
    with torch.no_grad():
        layer.values.copy_(torch.randperm(before).float() + 1)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.0)
    layer(torch.randn(4, 8)).square().sum().backward()
    optimizer.step()
    state = optimizer.state[layer.values]
    keep = sorted(content(layer.values, layer), key=lambda p: -content(layer.values, layer)[p])[:after]
    old = {key: content(t, layer) for key, t in (("values", layer.values), *state.items()) if t.dim()}
    dctps.set_density(layer, after / 48, optimizer, seed=seed)
    assert layer.nnz == after
    state = optimizer.state[layer.values]
    for key, numbers in old.items():
        new = content(layer.values if key == "values" else state[key], layer)
        assert set(keep) <= set(new)
        assert new == {place: numbers[place] if place in keep else 0.0 for place in new}
    assert state["step"] == 1


def test_without_an_optimiser_only_the_layers_change():
    net = dctps.sparsify(cnn(), 0.05)
    dctps.set_density(net, 0.1, allocation="uniform")
    assert dctps.report(net).asked.allocation == "uniform"
    net(torch.randn(2, 3, 12, 12))


def test_what_cannot_be_leaves_everything_as_it_was():
    net = dctps.sparsify(cnn(), 0.05)
    other, lbfgs = torch.optim.Adam(cnn().parameters()), torch.optim.LBFGS(net.parameters())
    before = copy.deepcopy(net.state_dict())
    for error, arguments, message in [
        (ValueError, (net, 1.5), "density must be in"),
        (ValueError, (net, 1e-9), "is less than one"),
        (ValueError, (net, 0.1, other), "the optimiser does not hold the values of layer '0'"),
        (ValueError, (net, 0.1, lbfgs), "not with LBFGS"),
        (ValueError, (cnn(), 0.1), "no sparse layer"),
    ]:
        with pytest.raises(error, match=message):
            dctps.set_density(*arguments)
    with pytest.raises(ValueError, match="unknown allocation 'fair'"):
        dctps.set_density(net, 0.1, allocation="fair")
    assert all(torch.equal(tensor, before[key]) for key, tensor in net.state_dict().items())


def test_a_file_holds_the_new_density(tmp_path):
    net = dctps.set_density(dctps.sparsify(cnn(), 0.05), 0.1)
    dctps.save(net, tmp_path / "net.safetensors")
    other = dctps.load(tmp_path / "net.safetensors", cnn())
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


# --- groups of parameters ---------------------------------------------------------------------------------------------


def test_values_and_matrices_decay_and_nothing_else_does():
    net = nn.Sequential(cnn(), nn.Linear(10, 10), nn.LayerNorm(10), nn.Embedding(3, 10))
    net[1].bias.requires_grad_(False)
    dctps.sparsify_norms(dctps.sparsify(net, 0.05, exclude="1"), 0.5)
    names = {id(p): name for name, p in net.named_parameters()}
    decayed, others = ([names[id(p)] for p in group["params"]] for group in dctps.param_groups(net, weight_decay=0.1))
    assert decayed == ["0.0.values", "0.3.0.values", "0.6.values", "1.weight", "3.weight"]
    assert sorted(decayed + others) == sorted(n for n, p in net.named_parameters() if p.requires_grad)
    assert [group["weight_decay"] for group in dctps.param_groups(net, weight_decay=0.1)] == [0.1, 0.0]
    torch.optim.AdamW(dctps.param_groups(net, weight_decay=0.1), lr=1e-3)
    with pytest.raises(ValueError, match="not negative"):
        dctps.param_groups(net, weight_decay=-1)


def test_values_have_a_learning_rate_of_their_own():
    net = nn.Sequential(DpsLinear(8, 8, nnz=9), nn.Linear(8, 8))
    values, dense, others = dctps.param_groups(net, 0.1, values_lr=3e-3)
    assert [id(p) for p in values["params"]] == [id(net[0].values)]
    assert [id(p) for p in dense["params"]] == [id(net[1].weight)]
    assert {id(p) for p in others["params"]} == {id(p) for p in (net[0].alpha, net[0].bias, net[1].bias)}
    optimiser = torch.optim.Adam([values, dense, others], lr=1e-3)
    assert [(group["lr"], group["weight_decay"]) for group in optimiser.param_groups] == [
        (3e-3, 0.1),
        (1e-3, 0.1),
        (1e-3, 0.0),
    ]
    for wrong in (0.0, -1e-3, math.nan, math.inf):
        with pytest.raises(ValueError, match="values_lr is a positive number"):
            dctps.param_groups(net, values_lr=wrong)


def test_adam_moves_a_scaled_reparametrisation_as_values_with_a_scaled_learning_rate():
    """S = gamma V under Adam at lr is S under Adam at gamma lr, so the layers need no such reparametrisation."""
    torch.manual_seed(0)
    gamma, plain = 3.0, torch.zeros(9, dtype=torch.float64, requires_grad=True)
    scaled = torch.zeros(9, dtype=torch.float64, requires_grad=True)
    optimisers = torch.optim.Adam([plain], lr=gamma * 1e-3, eps=0), torch.optim.Adam([scaled], lr=1e-3, eps=0)
    for _ in range(20):
        matrix = torch.randn(5, 9, dtype=torch.float64)
        for s, optimiser in zip((plain, gamma * scaled), optimisers, strict=True):
            optimiser.zero_grad()
            (matrix @ s - 1).square().sum().backward()
            optimiser.step()
    torch.testing.assert_close(plain, gamma * scaled, rtol=1e-10, atol=1e-12)


def test_decay_shrinks_values_and_leaves_alpha():
    layer = DpsLinear(8, 8, nnz=9, alpha=2.0)
    nn.init.ones_(layer.values)
    optimizer = torch.optim.SGD(dctps.param_groups(layer, weight_decay=0.5), lr=0.1)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.allclose(layer.values, torch.full((9,), 0.95))
    assert layer.alpha.item() == 2.0


# --- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", REWIRINGS)
def test_steps_that_would_be_taken_twice_are_noticed(method):
    net = dctps.sparsify(cnn(), 0.05)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    rewire = REWIRINGS[method](net, optimizer, stop=100, every=10)
    step(net, rewire)
    before = net[0].values.detach().clone()
    net(torch.randn(4, 3, 12, 12)).square().mean().backward()
    optimizer.step()
    after_one = net[0].values.detach().clone()
    with pytest.raises(RuntimeError, match=r"every step would be taken twice; call rewire\.step\(\) alone"):
        rewire.step()
    assert torch.equal(net[0].values, after_one)
    assert not torch.equal(before, after_one)
    step(net, rewire)  # once it was said, training goes on


def test_the_optimiser_does_not_keep_a_rewiring_alive():
    net = dctps.sparsify(cnn(), 0.05)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    first = dctps.RigL(net, optimizer, stop=100, every=10)
    step(net, optimizer)
    assert first.watch.foreign == 1
    del first
    step(net, dctps.SET(net, optimizer, stop=100, every=10))


def test_values_that_are_sharded_do_not_move():
    layer = DpsLinear(8, 8, nnz=9)
    layer.values.placements = "as those of a DTensor"
    with pytest.raises(RuntimeError, match="sharded over processes"):
        layer.move(Support.sample((8, 8), 9, seed=1), torch.zeros(9))
    assert isinstance(layer, DpsLayer)


def test_frozen_layers_and_shared_values_and_wrappers():
    net = dctps.sparsify(cnn(), 0.05)
    net[0].values.requires_grad_(False)
    before = net[0].nnz
    dctps.set_density(net, 0.2, torch.optim.Adam(dctps.param_groups(net, weight_decay=0.1), lr=1e-3))
    assert net[0].nnz == before
    shared = nn.Sequential(DpsLinear(8, 8, nnz=9), DpsLinear(8, 8, nnz=9))
    shared[1].values = shared[0].values
    with pytest.raises(ValueError, match="share their values"):
        dctps.set_density(shared, 0.5)
    for density in (True, "0.1", None):
        with pytest.raises(TypeError, match="density is a number such as"):
            dctps.set_density(net, density)
    with pytest.raises(TypeError, match="takes a network of torch as its model"):
        dctps.set_density("net", 0.1)
