"""Fine-tuning W = W0 + S: outputs and gradients by the dense definition, what is frozen, what is allocated."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import dctps
from dctps import LAYER_KINDS, LayerKind, Support
from dctps.nn.fine_tuned import FineTuned, tuned_weights
from dctps.ops import native
from helpers.finetuning import KINDS, Head, by_definition, gradients_of, shaken
from helpers.networks import assert_unchanged, cnn, snapshot
from helpers.tolerances import assert_close

PRETRAINED = {"offset": "pretrained"}


def made(kind, a=3, b=4, dtype=torch.float64):
    layer, x = KINDS[kind](a, b)
    return nn.Sequential(layer).to(dtype), x.to(dtype) if x.is_floating_point() else x


# --- the definition --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8)
@given(
    a=st.integers(1, 5),
    b=st.integers(1, 5),
    density=st.floats(0.05, 1),
    scaled=st.booleans(),
    train=st.sampled_from([(), "*.bias"]),
    seed=st.integers(0, 99),
)
def test_outputs_and_gradients_are_those_of_the_dense_weight(kind, a, b, density, scaled, train, seed):
    torch.manual_seed(seed)
    base, x = made(kind, a, b)
    if not any(name.endswith("bias") for name, _ in base.named_parameters()):
        train = ()
    options = {"train_alpha": scaled, "seed": seed, "train": train}
    if density * sum(p.numel() for p in base.parameters() if p.dim() > 1) < 0.5:
        density = 1.0
    net = dctps.sparsify(copy.deepcopy(base), density, **PRETRAINED, **options)
    assert torch.equal(net(x), base(x))
    shaken(net)
    y, gradients = gradients_of(net, x)
    expected_y, expected = by_definition(base, net, x)
    assert_close(y, expected_y)
    for name, gradient in gradients.items():
        assert_close(gradient, expected[name])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_before_the_first_step_every_bit_of_the_output_is_that_of_the_network(kind, dtype):
    base, x = made(kind, 4, 5, dtype)
    for train_alpha in (None, True):
        net = dctps.sparsify(copy.deepcopy(base), 0.5, **PRETRAINED, train_alpha=train_alpha)
        for mode in (True, False):
            assert torch.equal(net.train(mode)(x), base.train(mode)(x))
        with torch.no_grad():
            # Without gradients torch's attention may take another way for tensors that are no parameters.
            assert_close(net(x), base(x)) if kind == "attention" else _assert_equal(net(x), base(x))


def _assert_equal(a, b):
    assert torch.equal(a, b)


@pytest.mark.parametrize("kind", ["linear", "Conv2d", "ConvTranspose2d", "Conv1D of transformers"])
def test_second_derivatives(kind):
    base, x = made(kind, 2, 3)
    net = shaken(dctps.sparsify(base, 0.6, **PRETRAINED, train_alpha=True))
    x = x.requires_grad_()
    parameters = [p for p in net.parameters() if p.requires_grad]

    def output(x, *values):
        return net(x)

    assert torch.autograd.gradcheck(output, (x, *parameters))
    assert torch.autograd.gradgradcheck(output, (x, *parameters))


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_weights_keep_every_bit_in_100_steps_and_the_rest_trains(kind):
    base, x = made(kind, 3, 4, torch.float32)
    before = {name: p.detach().clone() for name, p in base.named_parameters()}
    net = dctps.sparsify(base, 0.5, **PRETRAINED)
    assert {id(p) for p in net.parameters()} >= {id(p) for p in base.parameters()}
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)  # it is given everything, as careless code would
    first = net(x).square().mean().item()
    for _ in range(100):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
    assert loss.item() < first
    for name, tensor in before.items():
        assert torch.equal(dict(net.named_parameters())[name], tensor)


def test_the_weight_is_shared_with_the_network_and_not_copied():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        layer = nn.Linear(6, 5).to(dtype)
        parameter, place = layer.weight, layer.weight.data_ptr()
        assert dctps.sparsify(layer, 0.3, **PRETRAINED) is layer
        kept = layer._parameters["weight"]
        assert kept is parameter
        assert kept.data_ptr() == place
        assert not kept.requires_grad
        assert layer.sparse_part["weight"].values.dtype == dtype
        assert layer.state_dict()["weight"].data_ptr() == place


# --- what is allocated -----------------------------------------------------------------------------------------------


class Sizes(TorchDispatchMode):
    """Notes the bytes of the largest new memory that an operation returns."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        known = {t.untyped_storage().data_ptr() for t in torch.utils._pytree.tree_leaves(args) if torch.is_tensor(t)}
        for t in torch.utils._pytree.tree_leaves(result):
            if torch.is_tensor(t) and t.untyped_storage().data_ptr() not in known:
                self.largest = max(self.largest, t.untyped_storage().nbytes())
        return result


def largest_allocation(step):
    """The bytes of the largest tensor that torch allocates for a step, as its profiler sees them."""
    with torch.profiler.profile(profile_memory=True) as profiler:
        step()
    events = profiler.profiler.kineto_results.events()
    return max((event.nbytes() for event in events if event.name() == "[memory]"), default=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("train_alpha", [None, True])
def test_a_linear_layer_allocates_nothing_of_the_size_of_its_weight(dtype, backend, train_alpha):
    size, rows = 512, 16
    layer = nn.Linear(size, size).to(dtype)
    frozen = copy.deepcopy(layer).requires_grad_(False)
    dctps.sparsify(layer, 0.01, **PRETRAINED, backend=backend, train_alpha=train_alpha)
    x = torch.randn(rows, size, dtype=dtype, requires_grad=True)

    def step(layer=layer):
        layer(x).square().sum().backward()

    step()
    step(frozen)
    activation = 4 * rows * size  # in float32
    allowed = max(activation, largest_allocation(lambda: step(frozen)))
    assert largest_allocation(step) <= allowed < layer._parameters["weight"].nbytes
    with Sizes() as sizes:
        step()
    assert 0 < sizes.largest <= activation
    reading = largest_allocation(lambda: layer.weight)  # reading the weight builds it, and the measurement sees that
    assert reading >= layer._parameters["weight"].nbytes


def products(step):
    """How many matrix products torch computes in a step."""
    with torch.profiler.profile() as profiler:
        step()
    return sum(event.name in ("aten::mm", "aten::addmm", "aten::addmm_") for event in profiler.events())


@pytest.mark.skipif(native.kernels is None, reason=native.WHY_NOT)
def test_a_frozen_linear_layer_computes_one_product_forwards_and_one_backwards_only_where_x_wants_a_gradient():
    layer, x = nn.Linear(40, 30), torch.randn(2, 5, 40)
    dctps.sparsify(layer, 0.1, **PRETRAINED, train="bias", backend="native")
    assert products(lambda: layer(x).sum().backward()) == 1
    x.requires_grad_()
    assert products(lambda: layer(x).sum().backward()) == 2


@pytest.mark.parametrize("apart", ["a hook", "an observer", "a scale", "W0 trains"])
def test_a_linear_layer_that_is_watched_or_more_than_frozen_gives_the_same_apart(apart):
    torch.manual_seed(0)
    layer, x = nn.Linear(7, 6).double(), torch.randn(2, 3, 7, dtype=torch.float64)
    dctps.sparsify(layer, 0.4, **PRETRAINED, train="bias")
    layer = shaken(nn.Sequential(layer))[0]
    twin, seen = copy.deepcopy(layer), []
    part = twin.sparse_part["weight"]
    if apart == "a hook":
        part.register_forward_hook(lambda module, inputs, output: seen.append(output))
    elif apart == "an observer":
        part.observer = lambda x, y: seen.append(y) or y
    elif apart == "a scale":
        part.scale_base()
    else:
        twin._parameters["weight"].requires_grad_()
    y, gradients = gradients_of(nn.Sequential(layer), x)
    other_y, others = gradients_of(nn.Sequential(twin), x)
    assert_close(other_y, y)
    for name, gradient in gradients.items():
        assert_close(others[name], gradient)
    assert len(seen) == (apart in ("a hook", "an observer"))
    assert ((w0 := twin._parameters["weight"].grad) is not None) == (apart == "W0 trains")
    assert w0 is None or w0.abs().sum() > 0


def test_gradients_and_optimiser_state_are_of_the_size_of_what_trains():
    net = dctps.sparsify(nn.Sequential(nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 300)), 0.01, **PRETRAINED)
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad])
    net(torch.randn(4, 300)).sum().backward()
    optimizer.step()
    assert sum(p.grad.numel() for p in net.parameters() if p.grad is not None) == 1200
    held = sum(t.numel() for state in optimizer.state.values() for t in state.values() if t.dim())
    assert held == 2 * 1200


# --- what trains -----------------------------------------------------------------------------------------------------


def test_patterns_say_what_else_trains_and_the_report_lists_three_groups():
    net = dctps.sparsify(cnn(), 0.05, **PRETRAINED, train=("6", "norms", "*.bias"))
    report = dctps.report(net)
    assert [row.name for row in report.layers] == ["0", "3.0"]
    assert {row.offset for row in report.layers} == {"pretrained"}
    assert [row.name for row in report.trained] == ["1.weight", "1.bias", "3.0.bias", "6.weight", "6.bias"]
    assert [row.name for row in report.frozen] == ["0.weight", "3.0.weight"]
    assert report.sizes.trainable == report.nnz + sum(row.size for row in report.trained)
    assert report.sizes.parameters == sum(p.numel() for p in cnn().parameters())
    text = str(report)
    assert "trains sparsely: 252 values of 5,040 in 2 weights W0 + S" in text
    assert "trains as a whole: 394 numbers in 5 parameters" in text
    assert "frozen: 5,040 numbers in 2 parameters" in text
    assert "6: it trains as a whole" in text
    assert "former weights replaced" not in text


def test_everything_else_is_frozen_and_a_network_that_is_frozen_already_serves_as_well():
    for net in (cnn(), cnn().requires_grad_(False)):
        dctps.sparsify(net, 0.05, **PRETRAINED)
        names = [name for name, p in net.named_parameters() if p.requires_grad]
        assert names == [f"{layer}.sparse_part.weight.values" for layer in ("0", "3.0", "6")]
    net = cnn()
    net[6].weight.requires_grad_(False)
    dctps.sparsify(net, 0.05, **PRETRAINED)
    assert [row.name for row in dctps.report(net).layers] == ["0", "3.0"]


def test_supports_may_be_given_and_layers_excluded():
    net = cnn()
    given_supports = {"3.0": Support.sample((32, 16, 3, 3), 7, seed=3)}
    dctps.sparsify(net, supports=given_supports, **PRETRAINED)
    assert [row.nnz for row in dctps.report(net).layers] == [7]
    assert net[3][0].sparse_part["weight"].support == given_supports["3.0"]
    net = dctps.sparsify(cnn(), 0.05, **PRETRAINED, exclude=(nn.Linear, "0"))
    assert list(tuned_weights(net)) == ["3.0"]
    assert any(name == "0" and "excluded" in reason for name, reason in dctps.report(net).left_dense)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": "head"}, "train='head' matches no parameter"),
        ({"train": "*"}, "no weight to fine-tune"),
        ({"alpha": 0.5}, "alpha=0.5 would scale the pretrained weights"),
        ({"exclude": "*"}, "all are excluded"),
        ({"exclude": "nothing"}, "matches no layer"),
        ({"supports": {"9": Support.sample((2, 2), 1)}, "density": None}, "no layer '9'"),
        ({"density": 1e-9}, "less than one"),
        ({"offset": "dct", "train": "6"}, "needs offset='pretrained'"),
    ],
)
def test_a_request_that_cannot_be_leaves_the_network_as_it_was(options, message):
    net = cnn()
    before = snapshot(net)
    flags = [p.requires_grad for p in net.parameters()]
    with pytest.raises(ValueError, match=message):
        dctps.sparsify(net, **{"density": 0.1, **PRETRAINED, **options})
    assert_unchanged(net, before)
    assert [p.requires_grad for p in net.parameters()] == flags
    assert not any(isinstance(m, FineTuned) for m in net.modules())


def test_a_layer_of_ours_and_the_meta_device_have_no_weight_to_keep():
    with pytest.raises(ValueError, match="for sparsify alone"):
        dctps.DpsLinear(3, 3, nnz=2, offset="pretrained")
    with torch.device("meta"):
        net = cnn()
    with pytest.raises(ValueError, match="on the meta device"):
        dctps.sparsify(net, 0.1, **PRETRAINED)
    with pytest.raises(ValueError, match="sparse already"):
        dctps.sparsify(dctps.sparsify(cnn(), 0.1, **PRETRAINED), 0.1, **PRETRAINED)


# --- the layers people have ------------------------------------------------------------------------------------------


def test_a_tied_weight_has_one_sparse_part():
    net = dctps.sparsify(Head(9, 4), 0.5, **PRETRAINED)
    assert net.table.sparse_part["weight"] is net.last.sparse_part["weight"]
    assert [row.name for row in dctps.report(net).layers] == ["table"]
    assert sum(p.requires_grad for p in net.parameters()) == 1
    copied = copy.deepcopy(net)
    assert copied.table.sparse_part["weight"] is copied.last.sparse_part["weight"]


def test_convolutions_that_share_a_weight_but_not_a_stride_read_the_sum():
    net = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, stride=2))
    net[1].weight = net[0].weight
    base, x = copy.deepcopy(net).double(), torch.randn(2, 3, 7, 7, dtype=torch.float64)
    net = shaken(dctps.sparsify(net.double(), 0.5, **PRETRAINED))
    y, gradients = gradients_of(net, x)
    expected_y, expected = by_definition(base, net, x)
    assert_close(y, expected_y)
    assert_close(gradients["0 values"], expected["0 values"])


def test_recurrent_layers_and_odd_embeddings_stay_with_the_reason():
    net = nn.ModuleDict({"lstm": nn.LSTM(3, 4), "norm": nn.Embedding(5, 3, max_norm=1.0), "linear": nn.Linear(3, 3)})
    dctps.sparsify(net, 0.5, **PRETRAINED)
    assert list(tuned_weights(net)) == ["linear"]
    reasons = dict(dctps.report(net).left_dense)
    assert "fused kernels" in reasons["lstm"]
    assert "max_norm" in reasons["norm"]


class Mixer(nn.Module):
    """A layer whose weight has another name than torch's."""

    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(3, 3))

    def forward(self, x):
        return x @ self.kernel


def test_a_class_of_one_s_own_is_entered_in_the_registry(monkeypatch):
    with pytest.raises(ValueError, match="Mixer has no parameter `weight`, but kernel"):
        dctps.sparsify(Mixer(), 0.5, **PRETRAINED)
    monkeypatch.setitem(LAYER_KINDS, Mixer, LayerKind(weights=("kernel",)))
    net = dctps.sparsify(nn.Sequential(Mixer()), 0.5, **PRETRAINED)
    assert list(tuned_weights(net)) == ["0.kernel"]
    shaken(net)(torch.ones(2, 3)).sum().backward()
    assert net[0].sparse_part["kernel"].values.grad.abs().sum() > 0


def test_a_change_of_the_weight_that_would_be_lost_is_refused():
    layer = dctps.sparsify(nn.Linear(4, 4), 0.5, **PRETRAINED)
    with pytest.raises(RuntimeError, match="W0 is frozen"):
        nn.init.zeros_(layer.weight)
    assert torch.equal(layer.weight, layer._parameters["weight"])


# --- copies, states, and back ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_copies_pickles_and_states(kind, tmp_path):
    base, x = made(kind, 3, 4, torch.float32)
    net = shaken(dctps.sparsify(copy.deepcopy(base), 0.5, **PRETRAINED, train_alpha=True))
    y = net(x)
    torch.save(net, tmp_path / "net.pt")
    copies = [copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(tmp_path / "net.pt", weights_only=False)]
    other = dctps.sparsify(copy.deepcopy(base), 0.5, **PRETRAINED, train_alpha=True)
    other.load_state_dict(net.state_dict())
    for twin in (*copies, other):
        assert torch.equal(twin(x), y)
        assert not {p.data_ptr() for p in twin.parameters()} & {p.data_ptr() for p in net.parameters()}
        assert [type(m) for m in twin.modules()] == [type(m) for m in net.modules()]
    assert str(dctps.report(copies[0])) == str(dctps.report(net))


def test_a_state_of_another_support_or_density_is_refused():
    net = dctps.sparsify(cnn(), 0.1, **PRETRAINED)
    with pytest.raises(RuntimeError, match="same density"):
        net.load_state_dict(dctps.sparsify(cnn(), 0.2, **PRETRAINED).state_dict())
    layer = dctps.sparsify(nn.Linear(4, 4, bias=False), 0.5, offset=None).state_dict()
    renamed = {f"sparse_part.weight.{key}": value for key, value in layer.items()}
    tuned = dctps.sparsify(nn.Linear(4, 4, bias=False), 0.5, **PRETRAINED)
    with pytest.raises(RuntimeError, match="offset None"):
        tuned.load_state_dict(renamed | {"weight": tuned.state_dict()["weight"]})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_densify_merges_and_unmerge_takes_every_bit_back(kind, dtype):
    base, x = made(kind, 3, 4, dtype)
    types, flags = [type(m) for m in base.modules()], [p.requires_grad for p in base.parameters()]
    for train_alpha in (None, True):
        net = shaken(dctps.sparsify(copy.deepcopy(base), 0.5, **PRETRAINED, train_alpha=train_alpha))
        y, state = net(x), {k: v.clone() for k, v in net.state_dict().items()}
        places = {name: p.data_ptr() for name, p in net.named_parameters() if "sparse_part" not in name}
        assert dctps.densify(net) is net
        assert [type(m) for m in net.modules()] == types
        assert [p.requires_grad for p in net.parameters()] == flags
        assert {name: p.data_ptr() for name, p in net.named_parameters()} == places
        assert_close(net(x), y)
        assert dctps.unmerge(net) is net
        assert torch.equal(net(x), y)
        assert all(torch.equal(state[key], value) for key, value in net.state_dict().items())
        net(x).float().sum().backward()


def test_weights_of_any_strides_are_merged_and_unmerged():
    net = nn.Sequential(nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(6, 5)).to(memory_format=torch.channels_last)
    net[2].weight = nn.Parameter(torch.randn(6, 5).t())
    before = {name: p.clone() for name, p in net.named_parameters()}
    shaken(dctps.sparsify(net, 0.3, **PRETRAINED))
    dctps.unmerge(dctps.densify(net))
    now = dict(net.named_parameters())
    assert all(torch.equal(now[name], p) for name, p in before.items())


def test_weights_that_were_changed_after_merging_are_not_taken_back():
    net = dctps.densify(shaken(dctps.sparsify(cnn(), 0.1, **PRETRAINED)))
    with torch.no_grad():
        net[6].weight.mul_(2)
    before = snapshot(net)
    with pytest.raises(ValueError, match="'6' has changed"):
        dctps.unmerge(net)
    assert_unchanged(net, before)
    with pytest.raises(ValueError, match="nothing to unmerge"):
        dctps.unmerge(cnn())


def test_compiled_exported_and_under_autocast():
    base, x = made("linear", 8, 6, torch.float32)
    net = shaken(dctps.sparsify(base, 0.3, **PRETRAINED))
    y = net(x)
    exported = torch.export.export(net, (x,)).module()
    assert_close(exported(x), y)
    assert_close(torch.compile(net, backend="aot_eager")(x), y)
    with torch.autocast("cpu", torch.bfloat16):
        assert net(x).dtype == torch.bfloat16
        assert_close(net(x), y)
    assert_close(torch.func.vmap(net)(x), y)


def test_count_ops_counts_both_parts():
    net = dctps.sparsify(nn.Sequential(nn.Linear(100, 10)), 0.05, **PRETRAINED)
    ops = dctps.count_ops(net, (100,))
    assert (ops.dense, ops.performed) == (1000, 1050)
