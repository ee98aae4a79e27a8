"""The positions and the identity of a layer: what averages, casts, copies and states of other code do to them."""

import copy
import pickle
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torch.nn.utils.prune
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

import dctps
from dctps import DpsLinear, Support
from dctps.nn import identity
from dctps.nn.dps_layer import DpsLayer
from dctps.nn.supported import SupportedLayer
from dctps.ops import autotune
from dctps.ops.functional import backends, multiply
from helpers.checkpoints import with_positions
from helpers.networks import cnn

GOLDEN = Path(__file__).parent / "golden" / "state-with-positions.pt"


def sparse(**options):
    torch.manual_seed(0)
    return dctps.sparsify_norms(dctps.sparsify(cnn(), 0.05, **options), 0.5)


def supports(net):
    return {name: layer.positions.clone() for name, layer in net.named_modules() if isinstance(layer, SupportedLayer)}


def assert_supports(net, expected):
    found = supports(net)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name].cpu(), positions) for name, positions in expected.items())


def train(net, after=lambda: None, steps=20):
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(4, 3, 12, 12)).square().mean().backward()
        optimizer.step()
        after()


# --- averages and loops over buffers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("use_buffers", [True, False])
@pytest.mark.parametrize("average", [get_ema_multi_avg_fn(0.9), get_swa_multi_avg_fn()], ids=["ema", "swa"])
def test_averages_leave_the_positions_alone(average, use_buffers):
    net = dctps.sparsify(nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1600, 10)), 0.05)
    averaged = AveragedModel(net, multi_avg_fn=average, use_buffers=use_buffers)
    expected = supports(net)
    train(net, lambda: averaged.update_parameters(net), steps=200)
    assert_supports(averaged.module, expected)
    x = torch.randn(2, 3, 12, 12)
    for backend in backends():
        for layer in averaged.modules():
            if isinstance(layer, DpsLayer):
                layer.backend = backend
        torch.testing.assert_close(averaged.eval()(x), dctps.densify(copy.deepcopy(averaged.module))(x))


def test_an_average_over_other_positions_is_refused():
    net = sparse()
    averaged = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    averaged(torch.randn(2, 3, 12, 12))
    layer = net[0]
    layer.move(Support.sample(layer.support.shape, layer.nnz, seed=9), torch.randn(layer.nnz))
    averaged.update_parameters(net)
    with pytest.raises(RuntimeError, match="values of this DpsConv2d belong to other positions"):
        averaged(torch.randn(2, 3, 12, 12))
    averaged.module.load_state_dict(net.state_dict())
    averaged(torch.randn(2, 3, 12, 12))


@pytest.mark.parametrize("change", [torch.Tensor.zero_, lambda b: b.mul_(3), lambda b: b.copy_(torch.rand(b.shape))])
def test_loops_over_buffers_do_not_reach_the_positions(change):
    net = sparse()
    expected = supports(net)
    for buffer in net.buffers():
        if buffer.is_floating_point():
            change(buffer)
    assert_supports(net, expected)
    net(torch.randn(2, 3, 12, 12))


def test_positions_changed_in_place_are_refused():
    layer = DpsLinear(8, 8, nnz=4, support=None)
    layer(torch.randn(2, 8))
    layer.positions.copy_(torch.tensor([0, 1, 2, 3], dtype=torch.int32))
    with pytest.raises(RuntimeError, match="use `move`"):
        layer(torch.randn(2, 8))


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("bad", [[3, 1, 2], [1, 1, 2], [1, 2, 64], [-1, 1, 2]])
@pytest.mark.parametrize("offset", [None, "dct"])
def test_every_backend_refuses_what_is_no_support(backend, bad, offset):
    layer = DpsLinear(8, 8, nnz=3, offset=offset, bias=False)
    places = torch.tensor(bad, dtype=torch.int32)
    with pytest.raises((ValueError, RuntimeError), match=r"position"):
        multiply(torch.randn(2, 8), layer.values, places, layer.alpha, None, layer.offset, layer.geometry, backend)


def test_members_of_an_ensemble_need_one_support():
    members = [dctps.sparsify(nn.Sequential(nn.Linear(6, 5)), 0.3, seed=seed) for seed in (0, 0, 1)]
    x = torch.randn(2, 6)

    def outputs(nets):
        state = torch.func.stack_module_state(nets)
        base = copy.deepcopy(nets[0]).to("meta")
        return torch.vmap(lambda *s: torch.func.functional_call(base, s, (x,)))(*state)

    with torch.no_grad():
        for member in members:
            member[0].values.normal_()
    torch.testing.assert_close(outputs(members[:2]), torch.stack([member(x) for member in members[:2]]))
    with pytest.raises(RuntimeError, match="belong to other positions"):
        outputs(members[1:])


# --- copies, casts and devices ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pass_through",
    [
        copy.deepcopy,
        lambda net: pickle.loads(pickle.dumps(net)),
        lambda net: net.half().float(),
        lambda net: net.bfloat16().double().float(),
        lambda net: net.to("meta").to_empty(device="cpu"),
        lambda net: net.to(memory_format=torch.channels_last),
        lambda net: net.share_memory(),
    ],
    ids=["deepcopy", "pickle", "half", "bfloat16", "meta", "channels last", "shared memory"],
)
def test_positions_follow_a_network(pass_through):
    net = sparse()
    expected = supports(net)
    other = pass_through(net)
    assert_supports(other, expected)
    other.load_state_dict(sparse().state_dict())
    x = torch.randn(2, 3, 12, 12)
    torch.testing.assert_close(other.eval()(x), sparse().eval()(x))


def test_a_layer_on_the_meta_device_knows_its_positions_and_computes_shapes():
    net = sparse(backend="dense").to("meta")
    assert net(torch.randn(2, 3, 12, 12, device="meta")).shape == (2, 10)


# --- states -----------------------------------------------------------------------------------------------------------


def through_safetensors(state, tmp_path):
    safetensors.torch.save_file(state, tmp_path / "state.safetensors")
    return safetensors.torch.load_file(tmp_path / "state.safetensors")


@pytest.mark.parametrize(
    "change",
    [
        lambda state, _: dict(state),
        through_safetensors,
        lambda state, _: {key: tensor.half() for key, tensor in state.items()},
        lambda state, _: {key: tensor.float() * 0.9 + tensor.float() * 0.1 for key, tensor in state.items()},
        lambda state, _: {key: torch.tensor(tensor.numpy().astype(float)) for key, tensor in state.items()},
    ],
    ids=["without metadata", "safetensors", "half", "average", "numpy"],
)
def test_a_state_carries_the_identity_of_its_layers_through_other_tools(change, tmp_path):
    net, other = sparse(), dctps.sparsify_norms(dctps.sparsify(cnn(), 0.05, seed=1), 0.5, seed=1)
    state = change(net.state_dict(), tmp_path)
    other.load_state_dict(state)
    assert_supports(other, supports(net))
    assert other[0].seed == net[0].seed
    for options in ({"offset": "dct"}, {"offset": None}):
        with pytest.raises(
            RuntimeError, match=r"0: the state belongs to a layer with .* offset dct_signed, this layer"
        ):
            sparse(**options).load_state_dict(state)


def test_an_average_of_states_with_different_supports_is_refused():
    one, two = (dctps.sparsify(cnn(), 0.05, seed=seed) for seed in (0, 1))
    mean = {key: (tensor.float() + two.state_dict()[key].float()) / 2 for key, tensor in one.state_dict().items()}
    before = supports(one)
    with pytest.raises(RuntimeError, match="identity is damaged: states of layers with different supports"):
        one.load_state_dict(mean)
    assert_supports(one, before)


@pytest.mark.parametrize("content", [b"[]", b"5", b'{"dctps": 2}', b'{"dctps": 1, "shape": 5}', b"\xff", b"[" * 200])
def test_bytes_that_are_no_identity_are_refused(content):
    padded = (content + b"\n").ljust(identity.BLOCK)
    state = torch.frombuffer(bytearray(padded + identity._digest(padded)), dtype=torch.uint8)
    with pytest.raises(ValueError, match="identity cannot be read"):
        identity.decode(state)


def test_a_state_of_an_earlier_version_loads():
    """Written by that version: positions are tensors, alphas have no axis, metadata name the offset."""
    golden = torch.load(GOLDEN)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    dctps.sparsify_norms(dctps.sparsify(net, 0.05, offset="dct_signed", seed=4), 0.5, seed=4)
    net.load_state_dict(golden["model"])
    x = torch.linspace(-1, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8)
    torch.testing.assert_close(net.eval()(x), golden["output"])
    dctps.densify(net)
    dctps.sparsify(net, 0.05, offset="dct")
    with pytest.raises(RuntimeError, match=r"offset dct_signed, this layer has .* offset dct"):
        net.load_state_dict(golden["model"])


def test_a_state_with_two_sets_of_positions_is_unexpected():
    net = sparse()
    state = net.state_dict()
    with pytest.raises(RuntimeError, match="Unexpected key"):
        net.load_state_dict({**state, "0.positions": with_positions(state, lambda p: p)["0.positions"]})


# --- changes that would be lost ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda w: nn.init.normal_(w),
        lambda w: nn.init.xavier_uniform_(w),
        lambda w: nn.init.orthogonal_(w),
        lambda w: nn.init.sparse_(w, 0.5),
        lambda w: w.data.mul_(2),
        lambda w: w.detach().zero_(),
        lambda w: w.view(-1).fill_(1),
        lambda w: w.data[0].add_(1),
        lambda w: w.__setitem__(0, 1.0),
        lambda w: torch.add(w, 1, out=w),
        lambda w: w.requires_grad_(False),
        lambda w: w.data.__imul__(2),
    ],
)
def test_a_change_of_the_built_weight_is_refused(change):
    layer = DpsLinear(8, 8, nnz=9)
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"change layer\.values .* or layer\.move"):
        change(layer.weight)


def test_the_built_weight_is_read_like_any_other():
    layer, x = DpsLinear(8, 6, nnz=9), torch.randn(3, 8)
    nn.functional.linear(x, layer.weight, layer.bias).sum().backward()
    expected = layer.values.grad.clone()
    layer.values.grad = None
    layer(x).sum().backward()
    torch.testing.assert_close(layer.values.grad, expected)
    assert type(layer.weight * 2) is torch.Tensor
    assert layer.weight.data.norm() > 0
    assert layer.weight.numpy(force=True).shape == (6, 8)
    assert layer.weight.shape == (6, 8)


@pytest.mark.parametrize("name", ["weight", "density", "nnz", "support", "positions"])
def test_what_a_layer_does_not_let_others_set(name):
    layer = DpsLinear(8, 8, nnz=9)
    value = nn.Parameter(torch.zeros(8, 8)) if name == "weight" else 0.5
    with pytest.raises(AttributeError, match=rf"{name} of a DpsLinear cannot be set: .*layer\.move\(support, values\)"):
        setattr(layer, name, value)
    assert layer.density == 9 / 64


def test_a_sparse_norm_refuses_changes_that_would_be_lost():
    norm = dctps.sparsify_norms(nn.Sequential(nn.BatchNorm2d(8)), 0.5)[0]
    with pytest.raises(RuntimeError, match=r"change norm\.shift"):
        nn.init.zeros_(norm.bias)
    with pytest.raises(AttributeError, match=r"change norm\.scale"):
        norm.weight = nn.Parameter(torch.ones(8))


# --- tracing, scripts and exports -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", backends())
def test_a_trace_computes_the_same(backend):
    net, x = sparse(backend=backend).eval(), torch.randn(2, 3, 12, 12)
    traced = torch.jit.trace(net, x)
    other = torch.randn(5, 3, 12, 12)
    torch.testing.assert_close(traced(other), net(other))


def test_a_script_is_refused_with_a_way_out_and_leaves_the_network_alone():
    net = sparse()
    with pytest.raises(RuntimeError, match=r"cannot compile a DpsConv2d; .*dctps\.densify\(copy\.deepcopy\(net\)\)"):
        torch.jit.script(net)
    assert isinstance(net[0], DpsLayer)


@pytest.mark.parametrize("dynamo", [True, False])
def test_an_export_to_onnx_says_densify(dynamo, tmp_path):
    pytest.importorskip("onnxscript")
    with pytest.raises(Exception, match=r"densify") as caught:
        torch.onnx.export(sparse().eval(), (torch.randn(2, 3, 12, 12),), tmp_path / "net.onnx", dynamo=dynamo)
    assert "dctps.densify(copy.deepcopy(net)) first" in str(caught.value)


@pytest.mark.parametrize("layer", [DpsLinear(4, 4, nnz=2), dctps.DpsConv2d(4, 4, 1, nnz=2)], ids=["linear", "conv"])
def test_inputs_that_are_no_tensors_of_the_layer_s_type_are_refused(layer):
    x = torch.ones(1, 4, 4, 4)
    with pytest.raises(TypeError, match=r"numpy.ndarray, not a tensor; pass torch.from_numpy\(x\)"):
        layer(x.numpy())
    with pytest.raises(TypeError, match="the input is a list, not a tensor"):
        layer(x.tolist())
    with pytest.raises(ValueError, match=r"the input is torch\.int64, but the layer torch\.float32"):
        layer(x.long())


# --- what a hostile or clumsy program tries ---------------------------------------------------------------------------


def one():
    return dctps.sparsify(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8)), 0.2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {k: v for k, v in s.items() if k != "0.values"}, "0: the state holds positions without 'values'"),
        (lambda s: {**s, "0.values": None}, "0: the state holds a NoneType as 'values'"),
        (lambda s: {**s, "0.values": [1.0]}, "0: the state holds a list as 'values'"),
        (
            lambda s: {**s, "0.alpha": torch.ones(2)},
            r"0: the state holds 'alpha' of shape \(2,\), this layer",
        ),
        (lambda s: {**s, "0._extra_state": s["0._extra_state"].to_sparse()}, "0: its identity cannot be read"),
        (lambda s: {**s, "0._extra_state": s["0._extra_state"].to("meta")}, "0: its identity cannot be read"),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_a_state_that_does_not_fit_changes_nothing(change, message, strict):
    net, other = one(), dctps.sparsify(one_plain(), 0.2, seed=1)
    before = copy.deepcopy(net[0].state_dict())
    with pytest.raises(RuntimeError, match=message):
        net.load_state_dict(change(other.state_dict()), strict=strict)
    assert all(torch.equal(tensor, before[key]) for key, tensor in net[0].state_dict().items())


def one_plain():
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8))


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("nnz", [9, 20])
def test_the_graph_of_a_pass_before_a_move_is_refused(backend, nnz):
    layer = DpsLinear(8, 8, nnz=9, backend=backend)
    y = layer(torch.randn(2, 8, requires_grad=True)).sum()
    layer.move(Support.sample((8, 8), nnz, seed=5), torch.randn(nnz))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    layer(torch.randn(2, 8)).sum().backward()
    assert layer.values.grad.shape == (nnz,)


def test_a_network_that_changes_in_inference_mode_trains_afterwards():
    net = one()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(2):
        net(torch.randn(4, 16)).sum().backward()
        optimizer.step()
        with torch.inference_mode():
            dctps.set_density(net, 0.4, optimizer)


@pytest.mark.parametrize("values", [torch.ones(6, device="meta"), torch.ones(6) * 1j, [1.0] * 6, None])
def test_a_move_that_cannot_be_changes_nothing(values):
    layer = DpsLinear(8, 8, nnz=4)
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(ValueError, match="expected values in a tensor of real numbers"):
        layer.move(Support.sample((8, 8), 6, seed=5), values)
    assert all(torch.equal(tensor, before[key]) for key, tensor in layer.state_dict().items())


def test_values_that_are_computed_do_not_move():
    layer = DpsLinear(8, 8, nnz=9)
    nn.utils.prune.l1_unstructured(layer, "values", 0.5)
    with pytest.raises(RuntimeError, match="computed from other parameters"):
        layer.move(layer.support, torch.ones(9))


def test_a_fingerprint_stays_the_same_tensor_of_its_type():
    net = one().bfloat16()
    buffers = list(net.buffers())
    net.load_state_dict(dctps.sparsify(one_plain(), 0.2, seed=1).state_dict())
    assert all(a is b for a, b in zip(buffers, net.buffers(), strict=True))
    assert {buffer.dtype for buffer in buffers} == {torch.bfloat16}


def test_a_support_that_stays_keeps_its_seed():
    net = one()
    seeds = [net[0].seed, net[2].seed]
    dctps.set_density(net, 0.2)
    assert [net[0].seed, net[2].seed] == seeds


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.chunk(2)[0].zero_(),
        lambda w: [row.zero_() for row in w],
        lambda w: torch._foreach_mul_([w], 2),
        lambda w: nn.functional.relu(w, inplace=True),
        lambda w: torch.clamp_(input=w, min=0),
    ],
)
def test_roundabout_changes_of_the_built_weight_are_refused(change):
    with torch.no_grad(), pytest.raises(RuntimeError, match="would change a weight"):
        change(DpsLinear(8, 8, nnz=9).weight)


def test_a_built_weight_is_copied_and_saved_as_a_tensor(tmp_path):
    weight = DpsLinear(8, 8, nnz=9).weight.detach()
    torch.save({"w": weight}, tmp_path / "w.pt")
    assert type(torch.load(tmp_path / "w.pt")["w"]) is torch.Tensor
    assert type(copy.deepcopy(weight)) is torch.Tensor
    with pytest.raises(ValueError, match="read-only"):
        weight.numpy()[0] = 1


def test_a_trace_does_not_measure(monkeypatch):
    monkeypatch.delenv("DCTPS_TUNE")
    monkeypatch.setattr(autotune, "times_of", lambda case, **options: pytest.fail("a measurement inside of a trace"))
    torch.jit.trace(DpsLinear(40, 40, nnz=4), torch.randn(3, 40), check_trace=False)
