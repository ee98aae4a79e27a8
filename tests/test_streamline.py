"""`streamline`: what the chains compute is what the network computes, whatever changes between two passes."""

import copy
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dctps
from dctps.core.support import Support
from dctps.nn import program_maker
from dctps.nn.layers import DpsConv2d
from dctps.nn.program import ChainPart
from dctps.ops import native
from helpers.tolerances import assert_close

pytestmark = pytest.mark.skipif(native.kernels is None, reason="the native kernels are not there")
MODES = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


class Block(nn.Module):
    """A residual block: with a shortcut, in place, and without an activation."""

    def __init__(self, channels, filters, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, filters, 3, stride, 1, bias=False), nn.BatchNorm2d(filters)
        self.conv2, self.bn2 = nn.Conv2d(filters, filters, 1), nn.BatchNorm2d(filters, affine=False)
        self.shortcut = nn.Identity()
        if stride > 1 or channels != filters:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, filters, 1, stride), nn.BatchNorm2d(filters))
        self.gate = True

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        if self.gate:
            y += self.shortcut(x)
        return F.relu6(y)


class Network(nn.Module):
    """A short patch first (its filters are dense), max-pools, blocks, an addition without an activation, a head."""

    def __init__(self):
        super().__init__()
        first = nn.Conv2d(3, 20, 3, padding=1), nn.BatchNorm2d(20), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        self.features = nn.Sequential(*first, nn.Dropout(0.5), Block(20, 20), Block(20, 36, 2), nn.MaxPool2d(3, 2))
        self.last, self.bn = nn.Conv2d(36, 36, 3, padding=1), nn.BatchNorm2d(36)
        self.plain = nn.Conv2d(36, 24, 3, padding=1)
        self.head = nn.Linear(24, 5)

    def forward(self, x):
        y = self.features(x)
        y = self.bn(self.last(y)) + y
        return self.head(F.relu(self.plain(y)).mean((2, 3)))


def network(dtype=torch.float64, backend="native", **options):
    """A sparse network in evaluation, with numbers in its BatchNorm layers that a training may have left there."""
    torch.manual_seed(0)
    net = dctps.sparsify(Network(), 0.2, backend=backend, **options)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(), module.running_var.uniform_(0.1, 3)
            if module.affine:
                nn.init.normal_(module.weight), nn.init.normal_(module.bias)
        if isinstance(module, DpsConv2d):
            nn.init.normal_(module.values, std=0.1)
    return dctps.fuse(net.to(dtype).eval())


def images(batch=2, dtype=torch.float64, layout=torch.contiguous_format):
    return torch.randn(batch, 3, 17, 16, dtype=dtype).to(memory_format=layout)


def chains(fast):
    """The chains of the only program."""
    (program,) = fast._programs.values()
    assert program is not None, fast.why_not
    return [part for part in program.parts if isinstance(part, ChainPart)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", [{}, {"offset": None}, {"offset": "hadamard"}, {"offset": "dct_signed"}])
def test_outputs_are_those_of_the_network(options, mode, layout, dtype):
    net = network(dtype, **options)
    fast = dctps.streamline(net)
    for batch in (1, 2, 33):
        x = images(batch, dtype, layout)
        with MODES[mode]():
            wanted, found = net(x), [fast(x) for _ in range(3)]
        for y in found:
            assert_close(y, wanted)
            assert y.is_inference() == wanted.is_inference()
    assert len(fast._programs) == 3


def test_one_chain_computes_all_convolutions():
    fast, x = dctps.streamline(network()), images()
    with torch.no_grad():
        fast(x)
    assert len(chains(fast)) == 1


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_maps_between_the_layers_of_a_chain_have_neighbouring_channels(layout, monkeypatch):
    """The output keeps the layout that the network gives it, and so does the residual that is added to it."""
    written = []
    step = program_maker.layer_step
    monkeypatch.setattr(program_maker, "layer_step", lambda *args: written.append(args[2].strides) or step(*args))
    net = nn.Sequential(nn.Conv2d(3, 20, 3), Block(20, 20), Block(20, 36, 2), Block(36, 36))
    net = dctps.fuse(dctps.sparsify(net, 0.2, backend="native").double().eval())
    fast, x = dctps.streamline(net), images(layout=layout)
    with torch.no_grad():
        wanted, found = net(x), [fast(x) for _ in range(2)][1]
    assert_close(found, wanted)
    assert found.stride() == wanted.stride()
    bound = 3  # the output, the output of the block before, which is added to it, and the shortcut added to that one
    assert sum(strides[1] == 1 for strides in written) == (8 if layout == torch.channels_last else 8 - bound)


@pytest.mark.parametrize("backend", ["dense", "torch"])
def test_layers_of_other_backends_are_called(backend):
    net = network()
    net.last.backend = net.features[5].conv2.backend = backend
    fast, x = dctps.streamline(net), images()
    with torch.no_grad():
        for _ in range(3):
            assert_close(fast(x), net(x))
    assert len(chains(fast)) > 1


def data_of_values(net):
    net.features[5].conv1.values.data.mul_(2)


def values_in_place(net):
    net.features[5].conv1.values.mul_(2)


def data_replaced(net):
    net.last.values.data = net.last.values.data * 2


def parameter_replaced(net):
    net.last.values = nn.Parameter(net.last.values.detach() * 3)


def alpha_changed(net):
    net.features[0].alpha.data.fill_(0.3)
    net.last.alpha.data.fill_(0.3)


def first_values(net):
    net.features[0].values.data.add_(1)


def statistics(net):
    net.bn.running_mean.data.add_(1), net.features[1].running_var.data.mul_(2)


def affine(net):
    net.features[5].bn1.weight.data.mul_(-1), net.bn.bias.data.add_(1)


def bias(net):
    net.plain.bias.data.add_(1)


def eps(net):
    net.bn.eps = 0.5


def moved(net):
    layer = net.last
    places = torch.arange(layer.nnz) + 7
    layer.move(Support(layer.geometry.weight_shape, places), torch.randn(layer.nnz))


def moved_to_fewer(net):
    layer = net.last
    layer.move(Support(layer.geometry.weight_shape, torch.arange(9)), torch.randn(9))


def state_loaded(net):
    other = network(seed=5)
    nn.init.normal_(other.last.values)
    net.load_state_dict(other.state_dict())


def attribute(net):
    net.features[5].gate = False


def layer_replaced(net):
    net.features[5].bn1 = nn.BatchNorm2d(20).to(torch.float64).eval()


def layer_added(net):
    net.features.append(nn.BatchNorm2d(36, eps=1).to(torch.float64).eval())


def forward_replaced(net):
    net.bn.forward = lambda x: x + 0.5


def in_numpy(net):
    net.last.values.detach().numpy()[:] = 3


CHANGES = [data_of_values, values_in_place, data_replaced, parameter_replaced, alpha_changed, first_values, statistics]
CHANGES += [affine, bias, eps, moved, moved_to_fewer, state_loaded, attribute, layer_replaced, layer_added, in_numpy]
CHANGES += [forward_replaced]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change, mode):
    net = network()
    fast, x = dctps.streamline(net), images()
    with MODES[mode]():
        before = [fast(x) for _ in range(3)][-1]
    with torch.no_grad():
        change(net)
    with MODES[mode]():
        wanted = copy.deepcopy(net)(x)
        assert not torch.allclose(wanted, before)
        for _ in range(3):
            assert_close(fast(x), wanted)


def test_positions_of_others_are_refused():
    net, other = network(), network(seed=3)
    fast, x = dctps.streamline(net), images()
    with torch.no_grad():
        fast(x), fast(x)
        for own, theirs in zip(net.buffers(), other.buffers(), strict=True):
            own.copy_(theirs)
        with pytest.raises(RuntimeError, match="other positions"):
            fast(x)


def test_hooks_training_and_gradients_are_left_to_the_network():
    net = network()
    fast, x, seen = dctps.streamline(net), images(), []
    with torch.no_grad():
        wanted = fast(x), fast(x)
        hook = net.features[5].conv1.register_forward_hook(lambda module, args, output: seen.append(output))
        assert_close(fast(x), wanted[0])
        assert [type(output) for output in seen] == [torch.Tensor]
        hook.remove()
        fast(x)
        assert len(seen) == 1
        fast.train()
        mean = net.bn.running_mean.clone()
        fast(x)
        assert not torch.equal(mean, net.bn.running_mean)
        fast.eval()
        assert_close(fast(x), net(x))
    fast(x).sum().backward()
    assert net.last.values.grad is not None


def test_results_are_never_overwritten():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(20, 20, 3, padding=1), nn.BatchNorm2d(20)
            self.drop = nn.Dropout()

        def forward(self, x):
            return self.drop(F.relu(self.norm(self.conv(x))))

    net = dctps.fuse(dctps.sparsify(Bare(), 0.2, backend="native").eval())
    fast, xs = dctps.streamline(net), [torch.randn(1, 20, 8, 8) for _ in range(4)]
    with torch.inference_mode():
        found = [fast(x) for x in xs]
        for x, y in zip(xs, found, strict=True):
            assert_close(y, net(x))


def test_a_change_in_place_between_layers_is_respected():
    class Changing(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(20, 20, 3, padding=1) for _ in range(3))
            self.norm = nn.BatchNorm2d(20)

        def forward(self, x):
            y = F.relu(self.a(x))
            z = self.norm(self.b(y))
            y.add_(self.c(y))
            return F.relu(z) + y

    net = dctps.sparsify(Changing(), 0.2, backend="native").eval()
    net.norm.running_mean.fill_(0.1)
    plain, x = copy.deepcopy(net), torch.randn(2, 20, 8, 8)
    for module in (m for m in plain.modules() if isinstance(m, DpsConv2d)):
        module.backend = "dense"
    fast = dctps.streamline(net)
    with torch.inference_mode():
        wanted = plain(x)
        for _ in range(3):
            assert_close(fast(x), wanted)


@pytest.mark.parametrize("size", [1, 2, 4, 5, 9])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("offset", ["dct", "dct_signed", "hadamard", None])
def test_threads_share_a_single_small_image(offset, layout, size):
    torch.manual_seed(0)
    layers = [nn.Conv2d(100, 140, 3, padding=1), nn.BatchNorm2d(140), nn.ReLU(), nn.Conv2d(140, 100, 3, 2, 1)]
    net = dctps.sparsify(nn.Sequential(*layers), 0.05, offset=offset, backend="native").double().eval()
    for layer in (net[0], net[3]):
        nn.init.normal_(layer.values)
    net[1].running_mean.normal_()
    x, dense = torch.randn(1, 100, size, size).double().to(memory_format=layout), copy.deepcopy(net)
    dense[0].backend = dense[3].backend = "dense"
    before, found = torch.get_num_threads(), {}
    fast = dctps.streamline(net)
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            with torch.inference_mode():
                found[threads] = [fast(x) for _ in range(2)][1]
    finally:
        torch.set_num_threads(before)
    with torch.inference_mode():
        for y in found.values():
            assert_close(y, dense(x))
    assert all(program is not None for program in fast._programs.values())


def test_another_name_of_a_changed_tensor_has_the_change():
    class Renaming(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(20, 20, 3, padding=1), nn.Conv2d(20, 20, 1)

        def forward(self, x):
            y = z = F.relu(self.a(x))
            y += x
            return self.b(z) + y

    class Multiplying(Renaming):
        def forward(self, x):
            y = z = F.relu(self.a(x))
            y *= 2
            return self.b(z)

    for kind in (Renaming, Multiplying):
        net = dctps.sparsify(kind(), 0.2, backend="native").eval()
        fast, x = dctps.streamline(net), torch.randn(2, 20, 8, 8)
        with torch.inference_mode():
            wanted = net(x)
            for _ in range(3):
                assert_close(fast(x), wanted)
        assert ("imul" in fast.why_not) == (kind is Multiplying)


def test_code_that_cannot_be_traced_computes_as_before():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(20, 20, 3, padding=1)

        def forward(self, x):
            y = self.conv(x)
            return y if y.sum() > 0 else -y

    class Unknown(Branching):
        def forward(self, x):
            return self.conv(torch.sort(x).values)

    for kind, why in ((Branching, "cannot trace"), (Unknown, "is not among")):
        net = dctps.sparsify(kind(), 0.2, backend="native").eval()
        fast, x = dctps.streamline(net), torch.randn(1, 20, 8, 8)
        with torch.no_grad():
            for _ in range(3):
                assert torch.equal(fast(x), net(x))
        assert why in fast.why_not


def test_copies_pickles_and_states_hold_no_program():
    net = network()
    fast, x = dctps.streamline(net), images()
    with torch.no_grad():
        wanted = fast(x)
        for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(dctps.streamline(net.features)))):
            assert not other._programs
            assert other.net is not net
        twin = copy.deepcopy(fast)
        assert_close(twin(x), wanted), assert_close(twin(x), wanted)
    assert list(fast.state_dict()) == [f"net.{name}" for name in net.state_dict()]
    assert dctps.streamline(fast) is fast
    with pytest.raises(TypeError, match="a network of torch"):
        dctps.streamline(3)


def test_threads_may_call_at_the_same_time():
    net = network(torch.float32)
    fast, xs = dctps.streamline(net), [images(1, torch.float32) for _ in range(4)]
    with torch.no_grad():
        wanted, found = [net(x) for x in xs], {}
        fast(xs[0])

    def work(i):
        with torch.inference_mode():
            found[i] = [fast(xs[i]) for _ in range(30)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, y in enumerate(wanted):
        for one in found[i]:
            assert_close(one, y)


def test_a_maximum_that_is_no_number_is_none():
    net = network()
    fast, x = dctps.streamline(net), images()
    x[0, 0, 3, 3] = torch.nan
    with torch.no_grad():
        wanted = net(x)
        assert wanted[0].isnan().any()
        assert not wanted[1].isnan().any()
        for _ in range(2):
            assert torch.equal(fast(x).isnan(), wanted.isnan())
