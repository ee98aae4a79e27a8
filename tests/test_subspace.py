"""Hyperplane Projection: w = d + U theta, its gradients, a state that knows where it belongs, and torch's habits."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load as read_safetensors
from safetensors.torch import save as write_safetensors
from torch import nn

import dctps
from dctps import models
from dctps.methods.subspace.subspace import Subspace, project
from helpers.marks import every_projection
from helpers.tolerances import assert_close

IMAGES, LABELS = torch.Size([8, 3, 8, 8]), 4


def small(seed: int = 0) -> nn.Module:
    """Convolutions with and without biases, BatchNorm, a linear layer: 3*6*9 + 6*5 + 5*4 = 212 weights."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 5, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(5, LABELS),
    )


def batch(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(IMAGES, generator=generator), torch.randint(0, LABELS, IMAGES[:1], generator=generator)


def steps(net: nn.Module, optimiser: torch.optim.Optimizer, seeds: range) -> float:
    for seed in seeds:
        x, y = batch(seed)
        optimiser.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimiser.step()
    return loss.item()


def moved(kind: str = "dense", dimensions: int = 10, seed: int = 0) -> Subspace:
    """A subspace network away from its origin."""
    net = project(small(), dimensions, kind, seed=seed)
    with torch.no_grad():
        net.theta.copy_(torch.randn(dimensions))
    return net


# --- the formula -----------------------------------------------------------------------------------------------------


@every_projection
def test_the_outputs_at_theta_zero_are_exactly_those_before(kind):
    plain, (x, _) = small(), batch()
    expected = plain.eval()(x)
    net = project(plain, 10, kind)
    assert torch.equal(net.theta, torch.zeros(10))
    assert not net.training
    assert torch.equal(net(x), expected)


@every_projection
def test_weights_are_the_origin_plus_the_matrix_times_theta(kind):
    origin = torch.cat([p.detach().flatten() for n, p in small().named_parameters() if p.dim() > 1])
    net = moved(kind)
    U = torch.stack([net.projection.apply(v) for v in torch.eye(10)], dim=1)
    weights = torch.cat([w.flatten() for w in net.weights().values()])
    assert list(net.weights()) == ["0.weight", "3.weight", "6.weight"]
    assert_close(weights, origin + U @ net.theta)


@every_projection
def test_gradients_are_those_of_the_dense_network_through_the_transposed_matrix(kind):
    net, (x, y) = moved(kind).double(), batch()
    twin = net.dense_network()
    F.cross_entropy(net(x.double()), y).backward()
    F.cross_entropy(twin(x.double()), y).backward()
    dense = dict(twin.named_parameters())
    flat = torch.cat([dense[name].grad.flatten() for name in net.weights()])
    U = torch.stack([net.projection.apply(v) for v in torch.eye(10).double()], dim=1)
    assert_close(net.theta.grad, U.T @ flat)
    for name, parameter in net.network.named_parameters():  # what is not projected trains as ever
        assert_close(parameter.grad, dense[name].grad)


@every_projection
def test_first_and_second_derivatives_by_differences(kind):
    net, (x, y) = moved(kind, 4).double().eval(), batch()

    def loss(theta: torch.Tensor) -> torch.Tensor:
        logits = torch.func.functional_call(net, {"theta": theta}, (x.double(),))
        return F.cross_entropy(logits.square(), y)

    theta = net.theta.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(loss, theta)
    assert torch.autograd.gradgradcheck(loss, theta)


@every_projection
def test_nothing_is_kept_for_the_gradient_but_the_matrix_itself(kind):
    net, kept = moved(kind, 100), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        shift = net.weights()
    assert sum(kept) == 0
    assert sum(w.numel() for w in shift.values()) == 212


def test_only_theta_and_what_is_not_projected_train():
    net = project(small(), 10)
    names = ["theta", "network.1.weight", "network.1.bias", "network.3.bias", "network.6.bias"]
    assert [name for name, _ in net.named_parameters()] == names
    before = {name: buffer.clone() for name, buffer in net.network.named_buffers() if name.endswith("weight")}
    assert len(before) == 3
    steps(net, torch.optim.Adam(net.parameters(), weight_decay=0.1), range(3))
    assert all(torch.equal(net.network.get_buffer(name), origin) for name, origin in before.items())


def test_excluded_layers_train_as_ever():
    net = project(small(), 10, exclude=["6"])
    assert "network.6.weight" in dict(net.named_parameters())
    assert list(net.weights()) == ["0.weight", "3.weight"]


@every_projection
def test_training_lowers_the_loss(kind):
    net, (x, y) = project(small(), 60, kind), batch(0)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.05)
    first = F.cross_entropy(net(x), y).item()
    for _ in range(30):
        last = steps(net, optimiser, range(1))
    assert last < 0.7 * first


def test_a_bare_layer_and_a_layer_used_twice():
    layer = nn.Linear(4, 4)
    x = torch.randn(3, 4)
    expected = layer(layer(x))
    assert torch.equal(project(copy.deepcopy(layer), 5)(x), layer(x))
    net = project(nn.Sequential(layer, layer), 5)
    assert torch.equal(net(x), expected)
    nn.init.ones_(net.theta)
    assert_close(net(x), net.dense_network()(x))
    assert not torch.allclose(net(x), expected)


@every_projection
def test_the_dense_network_is_plain_and_has_the_same_outputs(kind):
    net, (x, _) = moved(kind), batch()
    plain = net.dense_network()
    assert [(n, p.shape) for n, p in plain.named_parameters()] == [(n, p.shape) for n, p in small().named_parameters()]
    assert plain.state_dict().keys() == small().state_dict().keys()
    assert all(p.requires_grad for p in plain.parameters())
    assert torch.equal(plain.eval()(x), net.eval()(x))
    with torch.no_grad():  # a copy: it no longer follows
        before = net(x)
        plain[0].weight.zero_()
        assert torch.equal(net(x), before)


def test_lenet_has_as_many_dimensions_as_a_sparse_network_has_weights():
    net = project(models.build("lenet"), 615, "fastfood")
    assert [tuple(p.shape) for p in net.parameters()] == [(615,)]
    assert repr(net).startswith("Subspace(\n  615 of 61510 dimensions, kind=fastfood, seed=0")


# --- the state -------------------------------------------------------------------------------------------------------


@every_projection
def test_the_state_holds_neither_origin_nor_matrix(kind):
    state = moved(kind).state_dict()
    others = {f"network.{key}" for key in small().state_dict() if key not in ("0.weight", "3.weight", "6.weight")}
    assert state.keys() == {"theta", "identity"} | others


def as_torch(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def as_safetensors(state):
    return read_safetensors(write_safetensors(state))


@every_projection
@pytest.mark.parametrize("through", [as_torch, as_safetensors])
def test_a_run_goes_on_bit_for_bit(kind, through):
    straight = project(small(), 10, kind)
    optimiser = torch.optim.Adam(straight.parameters(), lr=0.01)
    steps(straight, optimiser, range(3))
    state, momenta = through(straight.state_dict()), copy.deepcopy(optimiser.state_dict())
    steps(straight, optimiser, range(3, 6))
    resumed = project(small(), 10, kind)
    resumed.load_state_dict(state)
    optimiser = torch.optim.Adam(resumed.parameters(), lr=0.01)
    optimiser.load_state_dict(momenta)
    steps(resumed, optimiser, range(3, 6))
    for key, tensor in straight.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[key]), key


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: project(small(), 10, seed=1), "another subspace: seed 0 instead of 1"),
        (lambda: project(small(), 10, "sparse"), "another subspace: kind 'dense' instead of 'sparse'"),
        (lambda: project(small(), 11), "another subspace: dimensions 10 instead of 11"),
        (lambda: project(small(), 10, exclude="6"), "another subspace: weights 212 instead of 192"),
        (lambda: project(small(seed=1), 10), "a network with other initial weights"),
    ],
)
def test_a_state_of_another_subspace_is_refused_before_anything_is_loaded(other, message):
    net = moved()
    steps(net, torch.optim.SGD(net.parameters(), lr=0.1), range(2))
    target = other()
    before = copy.deepcopy(target.state_dict())
    with pytest.raises(RuntimeError, match=message):
        target.load_state_dict(net.state_dict())
    assert all(torch.equal(tensor, before[key]) for key, tensor in target.state_dict().items())


def test_a_state_with_a_damaged_identity_is_refused():
    net, state = moved(), moved().state_dict()
    state["identity"] = torch.zeros(3, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="another subspace: kind None instead of 'dense'"):
        net.load_state_dict(state)


def test_the_origin_is_known_by_its_numbers_whatever_their_precision():
    net, double = moved(), project(small().double(), 10)
    double.load_state_dict(net.state_dict())
    assert double.theta.dtype == torch.float64
    assert torch.equal(double.theta.float(), net.theta)


def test_dctps_save_says_what_to_save_instead(tmp_path):
    with pytest.raises(dctps.CheckpointError, match="no sparse layer; save its state_dict with safetensors"):
        dctps.save(moved(), tmp_path / "net.safetensors")


# --- torch's habits --------------------------------------------------------------------------------------------------


@every_projection
def test_copies_are_independent_and_share_the_matrix(kind):
    net, (x, _) = moved(kind), batch()
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(twin.eval()(x), net.eval()(x))
        nn.init.zeros_(twin.theta)
        assert not torch.equal(twin(x), net(x))
    assert copy.deepcopy(net).projection is net.projection


@every_projection
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(kind, dtype):
    net, (x, _) = moved(kind).eval(), batch()
    expected = net(x)
    net = net.to(dtype)
    assert net.theta.dtype == net.weights()["0.weight"].dtype == dtype
    assert net.projection.dtype == (dtype if dtype == torch.float64 else torch.float32)
    assert_close(net(x.to(dtype)), expected)


def test_theta_of_a_half_network_is_float32():
    net = project(small().bfloat16(), 10)
    assert net.theta.dtype == torch.float32
    assert net.weights()["0.weight"].dtype == torch.bfloat16


@every_projection
def test_autocast_leaves_the_weights_and_their_gradient_in_full_precision(kind):
    net, (x, y) = moved(kind), batch()
    expected = net.weights()
    with torch.autocast("cpu", torch.bfloat16):
        weights = net.weights()
        assert all(torch.equal(weights[name], expected[name]) for name in expected)
        F.cross_entropy(net(x), y).backward()
        shift = sum(w.sum() for w in net.weights().values())
        (inside,) = torch.autograd.grad(shift, net.theta)
    (outside,) = torch.autograd.grad(sum(w.sum() for w in net.weights().values()), net.theta)
    assert net.theta.grad.dtype == torch.float32
    assert torch.equal(inside, outside)


def test_channels_last():
    net, (x, _) = moved().eval(), batch()
    expected = net(x)
    net = net.to(memory_format=torch.channels_last)
    assert net.weights()["0.weight"].is_contiguous(memory_format=torch.channels_last)
    assert_close(net(x.to(memory_format=torch.channels_last)), expected)


def test_the_global_generator_is_left_alone():
    plain = small()
    before = torch.get_rng_state()
    project(plain, 10)
    assert torch.equal(torch.get_rng_state(), before)


def test_hooks_and_keyword_arguments_reach_the_network():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x, *, scale=1.0):
            return scale * self.layer(x)

    net, seen = project(Scaled(), 2), []
    net.network.layer.register_forward_hook(lambda module, inputs, output: seen.append(module))
    x = torch.randn(1, 3)
    assert torch.equal(net(x, scale=2.0), 2 * net(x))
    assert seen == [net.network.layer] * 2


def test_distributed_data_parallel(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        alone, parallel = project(small(), 10), nn.parallel.DistributedDataParallel(project(small(), 10))
        for net in (alone, parallel):
            steps(net, torch.optim.Adam(net.parameters()), range(3))
    finally:
        torch.distributed.destroy_process_group()
    assert torch.equal(alone.theta, parallel.module.theta)


@pytest.mark.process
@every_projection
def test_torch_compile(kind):
    net, (x, y) = moved(kind), batch()
    twin = copy.deepcopy(net)
    compiled = torch.compile(twin, backend="aot_eager")
    for module in (net, compiled):
        F.cross_entropy(module(x), y).backward()
    torch._dynamo.reset()
    assert_close(twin.theta.grad, net.theta.grad)


# --- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimensions", [0, -1, 213])
def test_impossible_dimensions(dimensions):
    plain = small()
    with pytest.raises(ValueError, match=f"of 212 weights has from 1 to 212 dimensions, not {dimensions}"):
        project(plain, dimensions)
    assert isinstance(plain[0].weight, nn.Parameter)


@every_projection
def test_as_many_dimensions_as_weights(kind):
    project(small(), 212, kind)


def test_dimensions_are_a_whole_number():
    with pytest.raises(TypeError):
        project(small(), 0.5)


def test_unknown_kinds_are_listed():
    with pytest.raises(ValueError, match="unknown projection 'fast'; choose one of: dense, sparse, sparse_per_tensor"):
        project(small(), 10, "fast")


def test_networks_that_cannot_be_projected():
    with pytest.raises(ValueError, match="sparse or projected already"):
        project(dctps.sparsify(small(), 0.1), 10)
    with pytest.raises(ValueError, match="sparse or projected already"):
        project(project(small(), 10), 10)
    with torch.device("meta"):
        empty = nn.Linear(3, 3)
    with pytest.raises(ValueError, match="on the meta device: its weights have no values to start from"):
        project(nn.Sequential(empty), 2)
    with pytest.raises(ValueError, match="no layer to convert"):
        project(nn.ReLU(), 2)
    with pytest.raises(ValueError, match="a seed is a non-negative integer, not -1"):
        project(small(), 10, seed=-1)
