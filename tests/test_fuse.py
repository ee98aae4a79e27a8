"""`fuse`: networks compute the same as before, only faster, and stay what they were in every other respect."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

import dctps
from dctps.nn.fuse import fused_layers
from dctps.nn.fused_norm import FusedBatchNorm2d, Pending
from dctps.ops import native
from helpers.tolerances import assert_close


class Residual(nn.Module):
    """A block in the manner of many libraries: one ReLU module for all, additions in place, F.relu."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv3, self.bn3 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4, momentum=None)
        self.relu, self.calls = nn.ReLU(inplace=True), 0

    def forward(self, x):
        self.calls += 1
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x
        y = self.relu(y)
        return F.relu6(x + self.bn3(self.conv3(y)))


class Untraceable(Residual):
    def forward(self, x):
        return super().forward(x) if x.sum() > -1e9 else x


class UsedTwice(nn.Module):
    """The output of the layer is used twice, so it must exist."""

    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        y = self.bn(x)
        return F.relu(y) + y


class Gated(nn.Module):
    """The forward code takes another way than the one that was traced, once `gate` is set."""

    def __init__(self):
        super().__init__()
        self.bn, self.gate = nn.BatchNorm2d(4), False

    def forward(self, x):
        y = self.bn(x)
        return torch.sigmoid(y) * y if self.gate else F.relu(y)


def sequential():
    return nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))


NETWORKS = {
    "residual": (Residual, ["relu", "add and relu", "add and relu6"]),
    "sequential": (sequential, ["relu", ""]),
    "untraceable": (Untraceable, ["", "", ""]),
    "used twice": (UsedTwice, [""]),
    "resnet18": (lambda: dctps.models.build("resnet18", width=8), None),
    "mobilenetv2": (lambda: dctps.models.build("mobilenetv2"), None),
}


def network(name):
    torch.manual_seed(0)
    return NETWORKS[name][0]().double()


def images(model, batch=6):
    return torch.randn(batch, 3 if hasattr(model, "fc") else 4, 8, 8, dtype=torch.float64)


def gradients(model, x):
    y = model(x)
    model.zero_grad()
    y.square().sum().backward()
    return [y.detach(), *(p.grad for p in model.parameters()), *(b.clone() for b in model.buffers())]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_gradients_and_statistics_are_the_same(name, training):
    plain = network(name).train(training)
    fused = dctps.fuse(copy.deepcopy(plain))
    x = images(plain)
    for _ in range(2):  # statistics of the second batch build on those of the first
        for ours, theirs in zip(gradients(fused, x), gradients(plain, x), strict=True):
            # a gradient that is zero in theory is what rounding leaves, so the largest one gives the scale
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", [name for name, (_, found) in NETWORKS.items() if found is not None])
def test_what_follows_a_layer_is_found(name):
    model = dctps.fuse(network(name))
    assert [row.followed_by for row in fused_layers(model)] == NETWORKS[name][1]


def test_tracing_leaves_no_mark_on_the_module():
    model = dctps.fuse(Residual())
    assert model.calls == 0


def test_nothing_but_the_class_changes():
    plain = network("residual")
    before, keys = dict(plain.named_parameters()), list(plain.state_dict())
    hooks = plain.bn1._forward_hooks
    fused = dctps.fuse(plain)
    assert fused is plain
    assert all(p is before[name] for name, p in fused.named_parameters())
    assert list(fused.state_dict()) == keys
    assert fused.bn1._forward_hooks is hooks
    assert isinstance(fused.bn1, nn.BatchNorm2d)
    assert [name for name, _ in fused.named_modules()] == [name for name, _ in network("residual").named_modules()]


def test_twice_is_once_and_densify_undoes_it():
    model = dctps.fuse(dctps.fuse(network("residual")))
    assert type(model.bn1) is FusedBatchNorm2d
    dctps.densify(model)
    assert type(model.bn1) is nn.BatchNorm2d
    assert "followed_by" not in vars(model.bn1)
    with pytest.raises(ValueError, match="no sparse layer"):
        dctps.densify(model)


def test_copies_and_pickles_are_fused():
    model = dctps.fuse(network("residual"))
    x = images(model)
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    loaded = torch.load(stream, weights_only=False)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
        assert fused_layers(twin) == fused_layers(model)
        assert torch.equal(twin.eval()(x), model.eval()(x))


def test_hooks_see_the_output_of_the_layer():
    plain, seen = network("residual"), []
    fused = dctps.fuse(copy.deepcopy(plain))
    for model in (plain, fused):
        model.bn2.register_forward_hook(lambda m, args, y: seen.append(y))
        model.bn3.register_full_backward_hook(lambda m, grad_in, grad_out: seen.append(grad_out[0]))
        gradients(model, torch.ones(4, 4, 8, 8, dtype=torch.float64).cumsum(3).sin())
    for theirs, ours in zip(seen[:2], seen[2:], strict=True):
        assert isinstance(ours, torch.Tensor)
        assert_close(ours.detach(), theirs.detach())


def test_another_way_than_the_traced_one_is_right_too():
    plain = Gated().double()
    fused = dctps.fuse(copy.deepcopy(plain))
    assert fused.bn.followed_by == "relu"
    plain.gate = fused.gate = True
    x = torch.randn(4, 4, 8, 8, dtype=torch.float64)
    for ours, theirs in zip(gradients(fused, x), gradients(plain, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.skipif(native.kernels is None, reason="without kernels nothing is pending")
def test_a_pending_output_refuses_what_would_be_wrong():
    layer = dctps.fuse(nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()))[0]
    x = torch.randn(4, 4, 8, 8)
    pending = layer(x)
    assert isinstance(pending, Pending)
    x.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        F.relu(pending)
    pending = layer(x)
    with torch.no_grad(), pytest.raises(RuntimeError, match="gradient would be lost"):
        F.relu(pending)
    assert layer(x).shape == x.shape
    assert_close(layer(x) * 2, F.batch_norm(x, None, None, training=True) * 2)


def test_a_pending_output_updates_the_statistics_once():
    model, x = dctps.fuse(Gated()), torch.randn(4, 4, 8, 8)
    model.gate = True
    model(x)
    assert_close(model.bn.running_mean, 0.1 * x.mean((0, 2, 3)))


def test_training_follows_the_unfused_network():
    """After 50 steps of SGD in float64 the parameters differ by what rounding of 1e-16 a step has grown to."""
    plain = network("residual")
    fused = dctps.fuse(copy.deepcopy(plain))
    for model in (plain, fused):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        generator = torch.Generator().manual_seed(1)
        for _ in range(50):
            x = torch.randn(8, 4, 6, 6, dtype=torch.float64, generator=generator)
            optimiser.zero_grad()
            (model(x) - x.flip(3)).square().mean().backward()
            optimiser.step()
    for ours, theirs in zip(fused.state_dict().values(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("before", [True, False])
def test_with_sparsify(before):
    model = dctps.models.build("resnet18", width=8)
    model = dctps.fuse(dctps.sparsify(model, 0.05)) if not before else dctps.sparsify(dctps.fuse(model), 0.05)
    assert len(fused_layers(model)) == 20
    x = torch.randn(4, 3, 8, 8)
    model(x).sum().backward()
    dctps.count_ops(model, (3, 8, 8))
    assert not fused_layers(dctps.densify(model))


def test_sparse_norms_are_left_alone_with_a_reason():
    model = dctps.fuse(network("residual"))
    dctps.sparsify_norms(model, 0.5)
    assert not fused_layers(model)
    mixed = dctps.fuse(nn.Sequential(model, nn.BatchNorm2d(4)))
    assert [name for name, _ in dctps.report(mixed).left_unfused] == ["0.bn1", "0.bn2", "0.bn3"]
    assert "forward pass of its own" in str(dctps.report(mixed))


def test_the_report_says_what_was_fused():
    text = str(dctps.report(dctps.fuse(network("residual"))))
    assert "1 with relu, 1 with add and relu, 1 with add and relu6" in text
    assert "fused" not in str(dctps.report(network("residual")))


def test_exclude():
    model = dctps.fuse(network("residual"), exclude="bn[12]")
    assert [row.name for row in fused_layers(model)] == ["bn3"]
    with pytest.raises(ValueError, match="bn1, bn2, bn3"):
        dctps.fuse(model, exclude="norm*")
    with pytest.raises(TypeError, match="takes a network"):
        dctps.fuse([])


def test_classes_of_their_own_are_left_alone():
    class Own(nn.BatchNorm2d):
        pass

    model = nn.Sequential(nn.SyncBatchNorm(4), Own(4), nn.BatchNorm2d(4))
    assert [row.name for row in fused_layers(dctps.fuse(model))] == ["2"]


def test_rules_of_torch_hold_for_special_layers():
    for options in ({"affine": False}, {"track_running_stats": False}, {"momentum": None}):
        plain = nn.BatchNorm1d(5, **options).double()
        fused = dctps.fuse(copy.deepcopy(plain))
        for training in (True, True, False):
            x = torch.randn(7, 5, dtype=torch.float64)
            assert_close(fused.train(training)(x), plain.train(training)(x))
        for ours, theirs in zip(fused.state_dict().values(), plain.state_dict().values(), strict=True):
            assert torch.allclose(ours.double(), theirs.double())
    with pytest.raises(ValueError, match="more than 1 value"):
        dctps.fuse(nn.BatchNorm1d(5))(torch.randn(1, 5))
    with pytest.raises(ValueError, match="expected 4D"):
        dctps.fuse(nn.BatchNorm2d(5))(torch.randn(3, 5))


def test_half_precision_export_and_compile_see_torch():
    plain = network("residual").float().eval()
    fused, x = dctps.fuse(copy.deepcopy(plain)), torch.randn(2, 4, 8, 8)
    assert_close(fused(x), plain(x))
    with torch.autocast("cpu"):
        assert_close(fused(x), plain(x))
    assert_close(torch.export.export(fused, (x,)).module()(x), plain(x))
    assert_close(torch.compile(fused, backend="aot_eager")(x), plain(x))
    assert_close(torch.func.vmap(fused)(x[None])[0], plain(x))
    traced = dctps.fuse(sequential()).eval()
    assert_close(torch.fx.symbolic_trace(traced)(x), traced(x))


def test_files_are_the_same(tmp_path):
    model = dctps.sparsify(dctps.models.build("resnet18", width=8), 0.05)
    dctps.save(model, tmp_path / "plain.safetensors")
    dctps.save(dctps.fuse(model), tmp_path / "fused.safetensors")
    plain, fused = (load_file(tmp_path / f"{name}.safetensors") for name in ("plain", "fused"))
    assert plain.keys() == fused.keys()
    assert all(torch.equal(plain[key], fused[key]) for key in plain)
    fresh = dctps.fuse(dctps.models.build("resnet18", width=8))
    dctps.load(tmp_path / "fused.safetensors", fresh)
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(fresh.eval()(x), model.eval()(x))


def test_inference_mode_computes_what_the_network_computes():
    """Tensors of the inference mode have no versions; what waits is what nothing can change."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU()
    )
    x = torch.randn(2, 3, 6, 6)
    expected = net.eval()(x)
    dctps.fuse(net)
    with torch.inference_mode():
        torch.testing.assert_close(net(x), expected)
    with torch.no_grad():
        torch.testing.assert_close(net(x), expected)
