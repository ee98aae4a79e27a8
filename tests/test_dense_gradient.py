"""The dense gradient of sparse layers: torch's own, however a layer looks and is used; its largest entries, exactly."""

import copy
import gc
import importlib.util
import math
import pickle
import weakref
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from torch import nn
from torch.utils.checkpoint import checkpoint

import dctps
from dctps.methods.rewiring import weight_gradient
from dctps.methods.rewiring.dense_gradient import DenseGradients, Wanted
from dctps.methods.rewiring.growth import Largest, anywhere, lots
from dctps.methods.rewiring.process_group import Peers
from dctps.nn.dps_layer import DpsLayer
from dctps.ops import functional
from helpers.oracles import convolution
from helpers.tolerances import assert_close


def watched(model: nn.Module, *, number: int = 3, hold: bool = True, accumulate: bool = False) -> DenseGradients:
    layers = {name: m for name, m in model.named_modules() if isinstance(m, DpsLayer)}
    gradients = DenseGradients(layers, Peers(), accumulate=accumulate, hold=hold)
    gradients.start({name: Wanted(number, 0) for name in layers})
    return gradients


def held(layer: nn.Module, run) -> torch.Tensor:
    """The dense gradient of one layer in one backward pass of run()."""
    gradients = watched(layer)
    run().backward()
    (gradient,) = gradients.held().values()
    gradients.stop()
    return gradient


def twin(layer: DpsLayer, **arguments) -> nn.Module:
    """torch's own layer with the same weight."""
    kind = {0: nn.Linear, 1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[layer.geometry.axes]
    dense = kind(**arguments, bias=False, dtype=layer.values.dtype)
    with torch.no_grad():
        dense.weight.copy_(layer.dense_weight())
    return dense


CONVOLUTIONS = [
    {},
    {"stride": 2},
    {"stride": 3, "padding": 2, "dilation": 2},
    {"padding": 1, "groups": 2},
    {"padding": 1, "groups": 4, "stride": 2},
    {"padding": "same"},
    {"padding": "same", "kernel_size": 2},  # one more on the right than on the left
    {"padding": "valid", "kernel_size": 1},
    *({"padding": 1, "padding_mode": mode, "stride": 2} for mode in ("reflect", "replicate", "circular")),
]


@pytest.mark.parametrize("backend", functional.backends())
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("arguments", CONVOLUTIONS, ids=str)
def test_convolutions_have_the_gradient_of_their_dense_twin(arguments, axes, backend):
    arguments = {"in_channels": 4, "out_channels": 8, "kernel_size": 3, **arguments}
    kind = {1: dctps.DpsConv1d, 2: dctps.DpsConv2d, 3: dctps.DpsConv3d}[axes]
    layer = kind(**arguments, bias=False, nnz=7, dtype=torch.float64, backend=backend)
    dense = twin(layer, **arguments)
    x = torch.randn(2, 4, *range(6, 6 + axes), dtype=torch.float64)
    target = torch.randn_like(dense(x))
    (dense(x) * target).sum().backward()
    assert_close(held(layer, lambda: (layer(x) * target).sum()), dense.weight.grad)
    one = layer(x[0])  # without a batch
    dense.zero_grad()
    (dense(x[0]) * target[0]).sum().backward()
    assert_close(held(layer, lambda: (layer(x[0]) * target[0]).sum()), dense.weight.grad)
    assert one.shape == target[0].shape


@pytest.mark.parametrize("backend", functional.backends())
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layouts_and_types(backend, layout, dtype):
    layer = dctps.DpsConv2d(6, 5, 3, padding=1, nnz=7, backend=backend, bias=True).to(dtype)
    x = torch.randn(3, 6, 7, 7).to(dtype).contiguous(memory_format=layout)
    target = torch.randn(3, 5, 7, 7).to(dtype)
    weight = layer.dense_weight().detach().float().requires_grad_()
    (F.conv2d(x.float(), weight, padding=1) * target.float()).sum().backward()
    gradient = held(layer, lambda: (layer(x) * target).sum())
    assert gradient.dtype == torch.float32
    assert gradient.is_contiguous()
    assert_close(gradient, weight.grad)


def test_the_oracle_agrees():
    layer = dctps.DpsConv2d(2, 3, 2, stride=2, bias=False, nnz=5, dtype=torch.float64)
    x, weight = torch.randn(2, 2, 6, 6, dtype=torch.float64), layer.dense_weight().detach().requires_grad_()
    convolution(x, weight, (2, 2), (0, 0), (1, 1), 1).square().sum().backward()
    assert_close(held(layer, lambda: layer(x).square().sum()), weight.grad)


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 5)])
def test_linear_layers(shape):
    layer = dctps.DpsLinear(5, 3, nnz=4, dtype=torch.float64)
    x, weight = torch.randn(*shape, dtype=torch.float64), layer.dense_weight().detach().requires_grad_()
    F.linear(x, weight, layer.bias).square().sum().backward()
    assert_close(held(layer, lambda: layer(x).square().sum()), weight.grad)


@pytest.mark.parametrize("layer", [dctps.DpsLinear(40, 9, nnz=8), dctps.DpsConv2d(8, 12, 3, groups=4, nnz=8)], ids=str)
def test_blocks_of_filters_make_the_same_gradient(layer, monkeypatch):
    layer = layer.double()
    x = torch.randn(4, *((40,) if layer.geometry.axes == 0 else (8, 5, 5)), dtype=torch.float64)
    whole = held(layer, lambda: layer(x).square().sum())
    monkeypatch.setattr(weight_gradient, "BLOCK", 60)
    monkeypatch.setattr(weight_gradient, "IMAGES", 300)  # two images of the convolution
    assert len(list(weight_gradient.blocks(layer.geometry))) > 2
    assert_close(held(layer, lambda: layer(x).square().sum()), whole)


@pytest.mark.parametrize("layer", [dctps.DpsLinear(4, 9, nnz=8), dctps.DpsConv2d(4, 9, 3, nnz=8)], ids=str)
def test_an_empty_batch_has_no_gradient(layer):
    x = torch.randn(0, *((4,) if layer.geometry.axes == 0 else (4, 5, 5)))
    assert not held(layer, lambda: layer(x).square().sum()).any()


def test_autocast_is_no_reason_to_round_the_gradient():
    layer = dctps.DpsLinear(64, 32, nnz=50, bias=False)
    x, target = torch.randn(16, 64), torch.randn(16, 32).bfloat16()

    def loss():
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x)
        assert y.dtype == torch.bfloat16
        return (y * target).sum()

    exact = target.float().T @ x
    assert_close(held(layer, loss), exact)
    gradients = watched(layer)
    with torch.autocast("cpu", torch.bfloat16):  # as some loops do, by mistake
        loss().backward()
    gradient = gradients.held()[""]
    assert gradient.dtype == torch.float32
    assert_close(gradient, exact)
    gradients.stop()


# --- how often, and when --------------------------------------------------------------------------------------------


class Twice(nn.Module):
    """One layer, used twice, with an activation in place right behind it."""

    def __init__(self, wrap=lambda f, x: f(x)):
        super().__init__()
        self.layer = dctps.DpsLinear(6, 6, nnz=5, dtype=torch.float64, bias=False)
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(self.layer, F.relu_(self.wrap(self.layer, x)))

    def dense(self, x):
        weight = self.layer.dense_weight().detach().requires_grad_()
        return weight, F.linear(F.relu(F.linear(x, weight)), weight)


X = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_uses_of_a_shared_layer_are_summed():
    net = Twice()
    weight, y = net.dense(X)
    y.square().sum().backward()
    assert_close(held(net, lambda: net(X).square().sum()), weight.grad)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_shows_the_gradient_once(reentrant):
    layer = dctps.DpsLinear(6, 6, nnz=5, dtype=torch.float64, bias=False)
    x = X.clone().requires_grad_()
    weight = layer.dense_weight().detach().requires_grad_()
    F.linear(F.relu(X), weight).square().sum().backward()

    def loss():
        return checkpoint(lambda x: layer(F.relu(x)), x, use_reentrant=reentrant).square().sum()

    assert_close(held(layer, loss), weight.grad)
    gradients = watched(layer, hold=False)  # the second run of the forward pass is no second use
    loss().backward()
    assert gradients.results()
    gradients.stop()


def test_a_checkpointed_input_is_not_kept():
    """What checkpointing gives up in the forward pass must not stay alive for the dense gradient."""
    layer, inputs = dctps.DpsLinear(6, 6, nnz=5, dtype=torch.float64), []
    gradients = watched(layer)

    def segment(x):
        inner = x * 2
        inputs.append(weakref.ref(inner))
        return layer(inner)

    y = checkpoint(segment, X.clone().requires_grad_(), use_reentrant=False)
    gc.collect()
    assert inputs[0]() is None
    y.sum().backward()
    assert gradients.held()
    gradients.stop()


def test_passes_that_accumulate_nothing_count_for_nothing():
    net = Twice()
    weight, y = net.dense(X)
    y.square().sum().backward()
    x = X.clone().requires_grad_()

    def loss():
        torch.autograd.grad(net(x).sum(), x)  # as for a saliency map
        y = net(x)
        torch.autograd.grad(y.sum(), x, retain_graph=True)
        with torch.no_grad():
            net(x)
        return y.square().sum()

    assert_close(held(net, loss), weight.grad)


def test_differentiating_twice_is_refused_with_the_reason():
    layer = dctps.DpsLinear(6, 6, nnz=5, dtype=torch.float64)
    gradients = watched(layer)
    x = X.clone().requires_grad_()
    with pytest.raises(RuntimeError, match=r"cannot be differentiated twice \(create_graph=True\).*SET"):
        torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    gradients.stop()


def test_without_an_observer_nothing_is_seen_and_copies_have_none():
    layer = dctps.DpsLinear(6, 6, nnz=5)
    gradients = watched(layer)
    assert layer.observer is not None
    assert copy.deepcopy(layer).observer is None
    assert pickle.loads(pickle.dumps(layer)).observer is None
    gradients.stop()
    assert layer.observer is None
    layer(torch.randn(2, 6)).sum().backward()
    assert gradients.results() == {}


def test_transforms_of_functions_are_not_watched():
    layer = dctps.DpsLinear(6, 6, nnz=5, dtype=torch.float64)
    gradients = watched(layer)
    parameters = dict(layer.named_parameters())
    torch.func.grad(lambda p: torch.func.functional_call(layer, p, (X,)).sum())(parameters)
    assert gradients.results() == {}
    gradients.stop()


# --- the largest entries --------------------------------------------------------------------------------------------


def by_definition(gradient: np.ndarray, support: np.ndarray, kept: np.ndarray, count: int, seed: int) -> set[int]:
    """Sort everything that is not kept by (magnitude, lot)."""
    left = np.setdiff1d(np.arange(gradient.size), support[kept])
    order = sorted(left, key=lambda p: (-abs(gradient.flat[p]), int(lots(np.array([p]), seed)[0])))
    return set(map(int, order[:count]))


@given(
    st.tuples(st.integers(1, 6), st.integers(1, 7)),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 1000]),  # how many different magnitudes: few make many ties
    st.integers(1, 20),
    st.data(),
)
def test_the_largest_entries_do_not_depend_on_the_parts(shape, seed, levels, part, data):
    size = math.prod(shape)
    nnz = data.draw(st.integers(1, size))
    count = data.draw(st.integers(0, nnz))
    draw = np.random.Generator(np.random.PCG64(seed))
    gradient = draw.integers(-levels + 1, levels, size=shape).astype(np.float64)
    support = np.sort(draw.permutation(size)[:nnz])
    kept = np.zeros(nnz, dtype=bool)
    kept[draw.permutation(nnz)[: nnz - count]] = True
    found = Largest(support, size, count, seed)
    found.part = part
    rows = draw.integers(1, shape[0] + 1)
    for row in range(0, shape[0], rows):
        found.see(torch.from_numpy(gradient[row : row + rows]), row * shape[1])
    if data.draw(st.booleans()):
        found.settle()
        assert len(found.positions) == min(count, size - nnz)
    assert set(found.outside(kept, count).tolist()) == by_definition(gradient, support, kept, count, seed)
    assert found.finite
    np.testing.assert_array_equal(found.on_support, np.abs(gradient.flat[support]))


def test_rows_in_any_layout():
    gradient = torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    found = Largest(np.array([0, 5]), 48, 2, seed=0)
    found.see(gradient, 0)
    found.settle()
    flat = gradient.reshape(-1).abs()
    flat[[0, 5]] = 0
    assert sorted(found.positions) == sorted(flat.topk(2).indices.tolist())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_noticed(bad):
    gradient = torch.zeros(3, 4)
    gradient[1, 2] = bad
    found = Largest(np.array([6]), 12, 1, seed=0)
    found.see(gradient, 0)
    assert not found.finite


def test_equals_are_chosen_uniformly():
    """Four of sixteen zeros, 4,000 times: each is drawn 1,000 times, give or take five standard deviations of 27."""
    counts = np.zeros(16)
    for seed in range(4000):
        found = Largest(np.array([0]), 17, 4, seed)
        found.see(torch.zeros(1, 17), 0)
        found.settle()
        counts[found.positions - 1] += 1
    assert np.abs(counts - 1000).max() < 5 * math.sqrt(4000 * 0.25 * 0.75)


def test_lots_are_splitmix64():
    def by_definition(position, seed):
        z = (position * 0x9E3779B97F4A7C15 + seed) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    positions = [0, 1, 2, 2**31, 2**40]
    assert lots(np.array(positions), 7).tolist() == [by_definition(p, 7) for p in positions]
    assert by_definition(1, 0) == 0xE220A8397B1DCDAF  # the first number of the generator seeded with 0


@given(st.integers(1, 60), st.integers(0, 2**32 - 1), st.data())
def test_anywhere_is_outside_what_is_kept(size, seed, data):
    kept = np.array(sorted(data.draw(st.sets(st.integers(0, size - 1)))), dtype=np.int64)
    count = data.draw(st.integers(0, size - len(kept)))
    grown = anywhere(kept, size, count, seed)
    assert len(set(grown.tolist())) == count
    assert not set(grown.tolist()) & set(kept.tolist())
    assert all(0 <= p < size for p in grown)


def test_anywhere_is_everywhere():
    """Two of the five places beside {1, 4, 5} in range(8): each in two fifths of 2,000 draws, give or take."""
    counts = np.zeros(8)
    for seed in range(2000):
        counts[anywhere(np.array([1, 4, 5]), 8, 2, seed)] += 1
    assert counts[[1, 4, 5]].sum() == 0
    assert np.abs(counts[[0, 2, 3, 6, 7]] - 800).max() < 5 * math.sqrt(2000 * 0.4 * 0.6)


# --- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_an_update_of_a_resnet50_needs_no_more_than_its_largest_gradient():
    """At 0.1 %; by the accounting of benchmarks/rewiring_memory.py, with small batches, where weights weigh most."""
    path = Path(__file__).parents[1] / "benchmarks" / "rewiring_memory.py"
    spec = importlib.util.spec_from_file_location("rewiring_memory", path)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    result = benchmark.measure(batch=4, offset="dct")
    assert result["bound"] == round(1.1 * 4 * 2_359_296)
    assert result["extra"] <= result["bound"]
    assert 0 < result["own"] + result["numpy"] <= result["bound"]
