"""What layers keep from call to call never shows: not in results, after whatever change, nor in states and copies."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from dctps import DpsConv2d, DpsLinear, Support
from dctps.nn.dps_layer import DpsLayer
from dctps.ops import autotune, bound, functional
from dctps.ops.bound import BoundLayer
from helpers.tolerances import assert_close


def layers():
    options = {"density": 0.2, "seed": 3}
    return {
        "linear": (DpsLinear(12, 8, backend="dense", **options), torch.randn(5, 12)),
        "conv": (DpsConv2d(3, 4, 3, padding=1, backend="dense", **options), torch.randn(2, 3, 6, 6)),
        "sparse": (DpsLinear(12, 8, backend="dense", offset=None, **options), torch.randn(5, 12)),
        "fixed alpha": (DpsLinear(12, 8, backend="dense", train_alpha=False, **options), torch.randn(5, 12)),
        "native": (DpsLinear(12, 8, backend=functional.backends()[-1], **options), torch.randn(5, 12)),
    }


def definition(layer, x):
    """The output by a layer that keeps nothing: W is built here."""
    with torch.no_grad():
        W = layer.dense_weight()
        if x.dim() == 2:
            return x @ W.T + layer.bias
        return nn.functional.conv2d(x, W, layer.bias, padding=1)


def set_data(layer):
    layer.values.data = torch.randn_like(layer.values)


def swap_data_back_and_forth(layer):
    first = layer.values.data
    layer.values.data = torch.randn_like(first)
    first.normal_()
    layer.values.data = first  # the address is the one that the layer met before


def average(layer):
    torch._foreach_lerp_([p.data for p in layer.parameters()], [torch.ones_like(p) for p in layer.parameters()], 0.5)


def step(layer):
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.5, foreach=True)
    for p in layer.parameters():
        p.grad = torch.ones_like(p)
    optimiser.step()


def share_with_numpy(layer):
    layer.values.detach().numpy()[0] = 7.0


def write_alpha(layer):
    if layer.alpha is not None:
        layer.alpha.data.fill_(-2.0)


def load(layer):
    other = copy.deepcopy(layer)
    nn.init.normal_(other.values)
    other.move(Support.sample(layer.geometry.weight_shape, layer.nnz, seed=77), other.values.detach().clone())
    layer.load_state_dict(other.state_dict())


def move_to_fewer(layer):
    layer.move(Support.sample(layer.geometry.weight_shape, layer.nnz - 2, seed=5), torch.randn(layer.nnz - 2))


def replace_parameter(layer):
    layer.values = nn.Parameter(torch.randn_like(layer.values))


def shift_positions(layer):
    layer.move(Support.sample(layer.geometry.weight_shape, layer.nnz, seed=6), layer.values.detach().clone())


CHANGES = {
    "in place": lambda layer: nn.init.normal_(layer.values),
    "in place of data": lambda layer: layer.values.data.copy_(torch.randn_like(layer.values)),
    "one number of data": lambda layer: layer.values.data[-1].add_(1e-3),
    "data set": set_data,
    "data set twice": swap_data_back_and_forth,
    "average of data": average,
    "step": step,
    "numpy": share_with_numpy,
    "alpha of data": write_alpha,
    "load": load,
    "positions": shift_positions,
    "fewer values": move_to_fewer,
    "another parameter": replace_parameter,
    "other strides": lambda layer: setattr(layer.values, "data", torch.randn(2 * layer.nnz)[::2]),
    "bias": lambda layer: layer.bias.data.add_(1.0),
    "inference mode": lambda layer: torch.inference_mode()(lambda: layer.values.copy_(layer.values + 1))(),
}


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", layers())
def test_a_change_is_seen(kind, change, without):
    layer, x = layers()[kind]
    nn.init.normal_(layer.values)
    with without():
        for _ in range(3):  # the first call prepares
            assert_close(layer(x), definition(layer, x))
    CHANGES[change](layer)
    with without():
        for _ in range(2):
            assert_close(layer(x), definition(layer, x))
    assert_close(layer(x), definition(layer, x))  # with gradients


@pytest.mark.skipif(bound.native.kernels is None, reason="compares the two checks")
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_without_the_kernels(change, monkeypatch):
    monkeypatch.setattr(bound.native, "kernels", None)
    test_a_change_is_seen("linear", change, torch.no_grad)


def test_the_weight_is_built_once(monkeypatch):
    layer, x = layers()["linear"]
    built = []
    build = BoundLayer._built
    monkeypatch.setattr(BoundLayer, "_built", lambda self, *args: built.append(1) or build(self, *args))
    with torch.no_grad():
        for batch in (x, x, x[:2], x, x[None]):
            layer(batch)
    assert len(built) == 1
    layer(x)
    assert len(built) == 2
    assert layer._bound.prepared is None  # gradients are wanted: W is released


def test_frozen_layers_keep_the_weight_while_others_train():
    layer, x = layers()["linear"]
    layer.requires_grad_(False)
    x = x.requires_grad_()
    (first,) = torch.autograd.grad(layer(x).sum(), x)
    assert layer._bound.prepared is not None
    with torch.inference_mode():
        layer(x)
    (again,) = torch.autograd.grad(layer(x).sum(), x)
    assert_close(first, again)
    assert_close(first, layer.dense_weight().sum(0).expand_as(x))


@pytest.mark.parametrize("kind", layers())
def test_copies_and_states_hold_nothing_prepared(kind):
    layer, x = layers()[kind]
    before = len(pickle.dumps(layer)), list(layer.state_dict())
    with torch.no_grad():
        layer(x)
    assert (len(pickle.dumps(layer)), list(layer.state_dict())) == before
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for other in (
        copy.deepcopy(layer),
        copy.copy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(file, weights_only=False),
    ):
        assert other._bound is None
        assert_close(other(x), layer(x))
    assert layer.double()._bound is None
    assert_close(layer(x.double()), definition(layer, x.double()))


def test_another_offset_or_geometry_forgets():
    layer, x = layers()["linear"]
    with torch.no_grad():
        layer(x)
        layer.offset = None
        layer.alpha = None
        assert_close(layer(x), definition(layer, x))


def test_an_offset_of_a_users_own_may_change():
    class Own:
        shape = (8, 12)
        scale = 1.0

        def matrix(self):
            return torch.full(self.shape, self.scale)

        def apply(self, x):
            return x @ self.matrix().T

        def adjoint(self, y):
            return y @ self.matrix()

    own = Own()
    layer, x = DpsLinear(12, 8, density=0.1, offset=own, backend="dense"), torch.randn(5, 12)
    with torch.no_grad():
        layer(x)
        own.scale = 2.0
        assert_close(layer(x), definition(layer, x))


def test_functional_calls_and_transforms_do_not_meet_the_kept_weight():
    layer, x = layers()["linear"]
    with torch.no_grad():
        layer(x)
        state = {name: torch.randn_like(p) for name, p in layer.named_parameters()}
        other = copy.deepcopy(layer)
        for name, p in other.named_parameters():
            p.copy_(state[name])
        assert_close(torch.func.functional_call(layer, state, (x,)), definition(other, x))
        ones = {name: torch.ones_like(p) for name, p in state.items()}
        found = torch.func.jvp(lambda s: torch.func.functional_call(layer, s, (x,)), (state,), (ones,))[1]
        other.values.fill_(1), other.bias.fill_(1), other.alpha.fill_(1)
        assert_close(found, definition(other, x))
        traced = torch.jit.trace(layer, x)
        layer.values.fill_(0.25)
        assert_close(traced(x), definition(layer, x))


@pytest.mark.parametrize("backend", functional.backends())
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_first_and_second_derivatives(kind, backend):
    layer, x = layers()[kind]
    layer.backend = backend
    layer, x = layer.double(), x.double().requires_grad_()
    names = ["values", "alpha", "bias"]

    def run(x, *tensors):
        return torch.func.functional_call(layer, dict(zip(names, tensors, strict=True)), (x,))

    inputs = x, *(getattr(layer, name).detach().clone().requires_grad_() for name in names)
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


def test_the_environment_and_the_rule_are_read_in_each_call(monkeypatch):
    layer, x = DpsLinear(12, 8, density=0.2), torch.randn(5, 12)
    used = []
    multiply = functional.multiply
    monkeypatch.setattr(functional, "multiply", lambda *args: used.append(args[-1]) or multiply(*args))
    with torch.no_grad():
        layer(x)
        monkeypatch.setenv("DCTPS_BACKEND", "torch")
        layer(x)
        layer(x)
        monkeypatch.delenv("DCTPS_BACKEND")
        layer(x)
    assert used == ["torch", "torch"]
    before = autotune.settings()
    with autotune.by_rule():
        assert autotune.settings() != before


def test_an_observer_sees_every_pass():
    layer, x = layers()["linear"]
    seen = []
    with torch.no_grad():
        layer(x)
        layer.observer = lambda x, y: seen.append(1) or y
        layer(x)
    assert seen == [1]
    assert isinstance(layer, DpsLayer)


def test_what_is_prepared_does_not_compile_a_network_again():
    layer, x = layers()["linear"]
    counter = CompileCounter()
    compiled = torch.compile(layer, backend=counter)
    for _ in range(3):
        assert_close(compiled(x), definition(layer, x))
        with torch.no_grad():
            layer(x)
    assert counter.frame_count == 1
