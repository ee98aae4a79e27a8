"""In evaluation BatchNorm, residual and activation are computed in the convolution's write of its output."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

import dctps
from dctps.core.geometry import Geometry
from dctps.core.support import Support
from dctps.nn.layers import DpsConv2d
from dctps.nn.lazy import Product
from dctps.ops import native, normalise
from dctps.ops.finish import Finish
from dctps.ops.native import routes as native_routes
from helpers.tolerances import assert_close

needs_kernels = pytest.mark.skipif(native.kernels is None, reason="the native kernels are not there")
MODES = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
CHANNELS = 20  # a whole vector of channels of each type, and a rest


class Block(nn.Module):
    """Every way behind a convolution: relu, an addition and relu, relu6, an addition alone, nothing."""

    def __init__(self):
        super().__init__()
        for i in range(5):
            self.add_module(
                f"conv{i}", nn.Conv2d(CHANNELS, CHANNELS, 3 if i % 2 else 1, padding=i % 2, bias=i % 3 == 0)
            )
            self.add_module(f"bn{i}", nn.BatchNorm2d(CHANNELS, affine=i != 2))

    def forward(self, x):
        y = F.relu(self.bn0(self.conv0(x)), inplace=True)
        y = F.relu(self.bn1(self.conv1(y)) + x)
        y = F.relu6(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y)) + y
        return self.bn4(self.conv4(y))


class ChangedBetween(nn.Module):
    """The input of the convolution changes before its output is used."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS)

    def forward(self, x):
        x = x + 0
        y = self.bn(self.conv(x))
        x.mul_(3)
        return F.relu(y) + x


class ViewChangedBetween(ChangedBetween):
    def forward(self, x):
        x = x + 0
        view = x[:]
        y = self.bn(self.conv(view))
        x.mul_(3)
        return F.relu(y) + x


class ResidualChangedBetween(ChangedBetween):
    def forward(self, x):
        r = x + 1
        y = self.bn(self.conv(x)) + r
        r.mul_(3)
        return F.relu(y) + r


class SiblingViewChangedBetween(ChangedBetween):
    def forward(self, x):
        x = x + 0
        view = x[:]
        y = self.bn(self.conv(x))
        view.mul_(3)
        return F.relu(y)


class ChangedInEvaluation(ChangedBetween):
    def forward(self, x):
        x = x + 0
        y = self.bn(self.conv(x))
        if not self.training:
            x.clamp_(0, 1)
        return F.relu(y) + x


class ResidualOfPlainInput(ChangedBetween):
    """The input of the layer counts its changes, what is added does not."""

    def forward(self, x):
        r = x + 1
        y = self.bn(x) + r
        r.mul_(3)
        return F.relu(y)


class Gated(ChangedBetween):
    """The forward code takes another way than the one that was traced, once `gate` is set."""

    gate = False

    def forward(self, x):
        y = self.conv(x)
        if self.gate:
            return y * y + torch.sigmoid(y)
        return F.relu(self.bn(y))


def trained(model, dtype=torch.float64):
    """The network in evaluation, with numbers in its BatchNorm layers that a training may have left there."""
    torch.manual_seed(0)
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.running_mean.normal_(), norm.running_var.uniform_(0.1, 3)
        if norm.affine:
            nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    return model.to(dtype).eval()


def sparse(model, **options):
    model = dctps.sparsify(model, 0.2, **options)
    for layer in (m for m in model.modules() if isinstance(m, DpsConv2d)):
        nn.init.normal_(layer.values, std=0.1)
    return model


def images(dtype=torch.float64, layout=torch.contiguous_format):
    return torch.randn(3, CHANNELS, 6, 5, dtype=dtype).to(memory_format=layout)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "options", [{}, {"offset": None}, {"offset": "hadamard"}, {"backend": "dense"}, {"backend": "torch"}]
)
def test_outputs_are_those_of_the_unfused_network(options, mode, layout, dtype):
    plain = trained(sparse(Block(), **{"backend": "native" if native.kernels else "torch"} | options), dtype)
    fused = dctps.fuse(copy.deepcopy(plain))
    x = images(dtype, layout)
    with MODES[mode]():
        found = fused(x)
        assert_close(found, plain(x))
    assert found.stride() == plain(x).stride()
    assert_close(fused(x), plain(x))  # with gradients


@needs_kernels
def test_the_kernels_finish_their_outputs(monkeypatch):
    finished, alone = [], []
    for route in (native_routes.StagedRoute, native_routes.SparseRoute):
        real = route.forward_finished
        monkeypatch.setattr(route, "forward_finished", lambda *a, real=real: finished.append(a[-1]) or real(*a))
    monkeypatch.setattr(normalise.native.kernels, "normalise_forward", lambda *a: alone.append(a))
    net = dctps.fuse(trained(sparse(Block(), backend="native")))
    with torch.inference_mode():
        net(images())
    assert [f.activation for f in finished] == ["none" if i > 2 else "relu6" if i == 2 else "relu" for i in range(5)]
    assert [f.residual is None for f in finished] == [True, False, True, False, True]
    assert not alone


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "kind",
    [
        ChangedBetween,
        ViewChangedBetween,
        SiblingViewChangedBetween,
        ChangedInEvaluation,
        ResidualChangedBetween,
        ResidualOfPlainInput,
    ],
)
def test_a_change_in_place_before_the_output_is_used_is_seen(kind, mode):
    plain = trained(sparse(kind()))
    fused, x = dctps.fuse(copy.deepcopy(plain)), images()
    with MODES[mode]():
        if kind.__name__.startswith("Residual") and mode == "no_grad" and native.kernels is not None:
            with pytest.raises(RuntimeError, match="changed in place"):
                fused(x)
        else:
            assert_close(fused(x), plain(x))
    assert not any(m.feeds_norm for m in fused.modules() if isinstance(m, DpsConv2d))


@pytest.mark.parametrize("mode", MODES)
def test_another_way_than_the_traced_one_is_right_too(mode):
    plain = trained(sparse(Gated()))
    fused, x = dctps.fuse(copy.deepcopy(plain)), images()
    plain.gate = fused.gate = True
    with MODES[mode]():
        assert_close(fused(x), plain(x))


def test_weights_are_those_of_the_call():
    net = dctps.fuse(trained(sparse(Block())))
    conv, x = net.conv1, images()
    with torch.no_grad():
        before = conv(x)
        conv.values.mul_(2)
        if isinstance(before, Product):
            with pytest.raises(RuntimeError, match="changed in place"):
                before.sum()
        doubled = torch.func.functional_call(conv, {"values": 2 * conv.values}, (x,)) + 0
        conv.values.mul_(2)
        assert_close(doubled, conv(x) + 0)


def test_checkpoints_keep_their_gradients():
    net = nn.Sequential(nn.ReLU(), nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.BatchNorm2d(CHANNELS), nn.ReLU())
    fused, x = dctps.fuse(sparse(net).double()), images().requires_grad_()
    checkpoint_sequential(fused, 2, x, use_reentrant=True).sum().backward()
    assert x.grad is not None
    assert fused[1].values.grad is not None


@needs_kernels
def test_a_gradient_that_is_lost_has_a_word():
    net = nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 3), nn.BatchNorm2d(CHANNELS), nn.ReLU())
    fused = dctps.fuse(sparse(net).double()).eval()
    with torch.no_grad():
        y = fused[0](images())
    with pytest.warns(UserWarning, match="the layer gets no gradient"):
        fused[1](y)


def test_an_adapter_behind_a_frozen_trunk_has_its_gradient():
    class Trunk(ChangedBetween):
        def forward(self, x):
            with torch.no_grad():
                y = self.bn(self.conv(x))
            return F.relu(y + self.adapter)

    net = trained(sparse(Trunk()))
    net.adapter = nn.Parameter(torch.randn(3, CHANNELS, 6, 5, dtype=torch.float64))
    dctps.fuse(net)(images()).sum().backward()
    assert net.adapter.grad is not None


def test_hooks_of_the_norm_see_tensors():
    net, seen = dctps.fuse(trained(sparse(Block()))), []
    net.bn1.register_forward_pre_hook(lambda module, args: seen.append(type(args[0])))
    net.bn3.register_forward_hook(lambda module, args, y: seen.extend([type(args[0]), type(y)]))
    with torch.no_grad():
        net(images())
    assert set(seen) == {torch.Tensor}


def test_a_bias_of_another_type_is_added_as_without_fusing():
    plain = trained(sparse(Block(), backend="native" if native.kernels else "torch"))
    plain.conv0.bias = nn.Parameter(plain.conv0.bias.detach().float())
    fused, x = dctps.fuse(copy.deepcopy(plain)), images()
    with torch.no_grad():
        assert_close(fused(x), plain(x))


def test_what_waits_may_reach_a_linear_layer():
    class Head(nn.Module):
        gate = False

        def __init__(self):
            super().__init__()
            self.bn, self.fc = nn.BatchNorm1d(8), nn.Linear(8, 8)

        def forward(self, x):
            y = self.bn(x)
            return self.fc(y) if self.gate else F.relu(y)

    plain = sparse(Head()).double().eval()
    fused, x = dctps.fuse(copy.deepcopy(plain)), torch.randn(3, 8, dtype=torch.float64)
    plain.gate = fused.gate = True
    assert_close(fused(x), plain(x))


def test_loading_into_a_fused_network_marks_its_layers(tmp_path):
    dctps.save(sparse(Block()), tmp_path / "net.safetensors")
    net = dctps.load(tmp_path / "net.safetensors", dctps.fuse(Block()))
    assert all(m.feeds_norm for m in net.modules() if isinstance(m, DpsConv2d))


def test_attributes_of_other_modules_are_left_alone():
    net = sparse(Block())
    net.is_sheltered = "mine"
    dctps.densify(dctps.fuse(net))
    assert net.is_sheltered == "mine"


def test_copies_keep_the_marks():
    net = pickle.loads(pickle.dumps(copy.deepcopy(dctps.fuse(sparse(Block())))))
    assert all(m.feeds_norm for m in net.modules() if isinstance(m, DpsConv2d))
    assert net.bn1.is_sheltered


@pytest.mark.parametrize("mode", MODES)
def test_traces_and_autocast_see_tensors(mode):
    fused = dctps.fuse(trained(sparse(Block()), torch.float32))
    x = images(torch.float32)
    with MODES[mode]():
        expected = fused(x)
        assert_close(torch.jit.trace(fused, (x,), check_trace=False)(x), expected)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(fused(x).float(), expected, rtol=0.1, atol=0.3)  # five layers of 8 bits each


def test_hooks_see_the_output_of_the_convolution():
    net = dctps.fuse(trained(sparse(Block())))
    seen = []
    net.conv1.register_forward_hook(lambda module, args, y: seen.append(y))
    with torch.no_grad():
        net(images())
    assert type(seen[0]) is torch.Tensor


def test_batch_statistics_are_used_and_updated_where_gradients_are_off():
    plain = trained(sparse(Block()))
    fused, x = dctps.fuse(copy.deepcopy(plain)), images()
    with torch.no_grad():
        assert_close(fused.train()(x), plain.train()(x))
    for ours, theirs in zip(fused.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_sparsify_behind_fuse_finds_the_layers_and_densify_forgets_them():
    net = sparse(dctps.fuse(Block()))
    assert all(m.feeds_norm for m in net.modules() if isinstance(m, DpsConv2d))
    layer = net.conv0
    dctps.densify(net)
    assert not layer.feeds_norm


def test_a_product_is_used_like_a_tensor():
    y = Product(torch.ones(2, 3), (), torch.Size([2, 3]), lambda layer, x, finish: 2 * x)
    assert y.shape == (2, 3)
    assert torch.equal(y + 1, torch.full((2, 3), 3.0))
    assert torch.equal(torch.cat([y, y]), torch.full((4, 3), 2.0))
    assert y.sum() == 12
    assert float(y[0, 0]) == 2
    assert torch.equal(2**y, torch.full((2, 3), 4.0))
    same = y
    y *= 2
    assert torch.equal(same + 0, y)
    assert same.shape.numel() == 6


@needs_kernels
@pytest.mark.parametrize("activation", normalise.ACTIVATIONS)
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_finished_output_is_the_composition(activation, with_residual, layout):
    torch.manual_seed(0)
    layer = DpsConv2d(16, CHANNELS, 3, stride=2, padding=1, density=0.3, backend="native", dtype=torch.float64)
    nn.init.normal_(layer.values)
    x = torch.randn(2, 16, 9, 8, dtype=torch.float64).to(memory_format=layout)
    with torch.no_grad():
        y = layer(x)
        x[0, 0, 0, 0] = float("nan")
        numbers = torch.randn(3, CHANNELS, dtype=torch.float64)
        residual = torch.randn_like(y).contiguous() if with_residual else None
        finish = Finish(numbers[0], numbers[1], numbers[2], torch.rand(CHANNELS).double(), 1e-3, residual, activation)
        layer_args = layer.values, layer.positions, layer.alpha, layer.bias
        found = layer.route(x).forward_finished(x, *layer_args, finish)
        composed = normalise.finished(layer(x), finish)
    assert torch.equal(found.isnan(), composed.isnan())
    assert found.isnan().any()
    assert_close(found.nan_to_num(), composed.nan_to_num())


SIZES = {  # batch, channels, filters, side, options
    "interleaved images": (67, 16, 24, 4, {"padding": 1}),
    "streamed": (40, 16, 64, 24, {"padding": 1}),
    "groups and dilation": (5, 32, 20, 9, {"padding": 2, "dilation": 2, "groups": 2}),
    "padded by torch": (5, 16, 20, 9, {"padding": 1, "padding_mode": "circular"}),
    "one image": (1, 16, 20, 40, {"padding": "same"}),
}


@needs_kernels
@pytest.mark.parametrize("budget", [20_000, 10**6])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", SIZES)
def test_finished_outputs_of_every_division_into_chunks(size, layout, budget):
    torch.manual_seed(0)
    batch, channels, filters, side, options = SIZES[size]
    conv = nn.Conv2d(channels, filters, 3, bias=False, **options)
    plain = trained(sparse(nn.Sequential(conv, nn.BatchNorm2d(filters), nn.ReLU()), backend="native"), torch.float32)
    fused = dctps.fuse(copy.deepcopy(plain))
    x = torch.randn(batch, channels, side, side).to(memory_format=layout)
    before = native.kernels.cache_budget(budget)
    try:
        with torch.no_grad():
            assert_close(fused(x), plain(x))
    finally:
        native.kernels.cache_budget(before)


@needs_kernels
def test_a_residual_of_other_strides_is_refused_by_the_kernels():
    geometry = Geometry((4, 4, 1, 1), (1, 1), (0, 0), (1, 1), 1)
    places = native_routes.compiled_support(Support((4, 4, 1, 1), torch.tensor([1, 5])).positions, geometry)
    x, y, values = torch.ones(2, 4, 3, 3), torch.empty(2, 4, 3, 3), torch.ones(2)
    residual = torch.ones(2, 4, 3, 3).to(memory_format=torch.channels_last)
    with pytest.raises(ValueError, match="other strides"):
        native.kernels.forward(geometry.pack(), x, None, 0.0, places, values, None, y, 1, [], 0.0, residual, 1)
