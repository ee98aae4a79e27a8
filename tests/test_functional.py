"""The operators as torch sees them, and everything that must work around a layer."""

import concurrent.futures
import copy
import gc
import io
import shutil
import subprocess
import sys
import textwrap
import weakref

import pytest
import torch
from torch import nn

from dctps import DpsConv2d, DpsLinear, Support
from dctps.ops import native, operators, sparse
from dctps.ops.weight import weight
from helpers.marks import every_backend
from helpers.processes import environment
from helpers.tolerances import assert_close


def network(backend: str, offset: str | None = "dct") -> nn.Module:
    """A convolution that takes the separable way, a strided one, a linear layer; values that are not zero."""
    torch.manual_seed(1)
    options = {"density": 0.02, "backend": backend, "offset": offset}
    net = nn.Sequential(
        DpsConv2d(40, 80, 3, padding=1, **options),
        nn.ReLU(),
        DpsConv2d(80, 16, 3, stride=2, groups=2, **options),
        nn.Flatten(),
        DpsLinear(16 * 9, 10, **options),
    )
    for name, parameter in net.named_parameters():
        if name.endswith("values"):
            nn.init.normal_(parameter, std=0.1)
    return net


def inputs() -> torch.Tensor:
    return torch.randn(3, 40, 8, 8, generator=torch.Generator().manual_seed(5))


def gradients(net: nn.Module, y: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(y.square().sum(), list(net.parameters())))


def assert_same_results(net, other, x):
    y, z = net(x), other(x)
    assert_close(z, y)
    for mine, theirs in zip(gradients(net, y), gradients(other, z), strict=True):
        torch.testing.assert_close(theirs, mine, rtol=1e-3, atol=1e-3)  # gradients of sums of hundreds of squares


@every_backend
def test_operators_are_well_formed(backend):
    layer = DpsConv2d(4, 6, 3, padding=1, density=0.2, backend=backend)
    x = torch.randn(2, 4, 5, 5, requires_grad=True)
    shape = list(layer.geometry.weight_shape)
    if backend != "dense":
        layer_args = "dct", layer.geometry.pack(), backend == "native"
        torch.library.opcheck(operators.multiply, (x, layer.values, layer.positions, layer.alpha, *layer_args))
        back = (torch.randn(2, 6, 5, 5), x.detach(), layer.values.detach(), layer.positions, layer.alpha.detach())
        for needs in ([True, True, True], [False, True, False], [True, False, False], [False, False, True]):
            torch.library.opcheck(operators.multiply_backward, (*back, *layer_args, needs))
    else:
        torch.library.opcheck(weight, (layer.values, layer.positions, layer.alpha, "dct", shape))


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch's inductor needs a C++ compiler")


@pytest.mark.process
@every_backend
@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=needs_compiler)])
def test_compile_without_graph_breaks(backend, compiler):
    net = network(backend)
    assert_same_results(net, torch.compile(net, backend=compiler, fullgraph=True), inputs())


@every_backend
def test_export(backend):
    net, x = network(backend), inputs()
    program = torch.export.export(net, (x,))
    assert_close(program.module()(x), net(x))


@every_backend
def test_autocast_computes_in_bfloat16_and_keeps_float32_gradients(backend):
    net, x = network(backend), inputs()
    expected = net(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = net(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), expected, rtol=0.05, atol=0.05)  # three layers of 8-bit mantissas
    y.float().sum().backward()
    assert {p.grad.dtype for p in net.parameters()} == {torch.float32}


@every_backend
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_whole_networks_in_another_precision(backend, dtype):
    net, x = network(backend), inputs()
    expected = net(x)
    y = net.to(dtype)(x.to(dtype))
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), expected, rtol=0.05, atol=0.05)
    y.float().sum().backward()


@every_backend
def test_functional_call_deepcopy_and_pickle(backend):
    net, x = network(backend), inputs()
    doubled = {name: 2 * tensor for name, tensor in net.named_parameters()}
    twin = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(2)
    assert_close(torch.func.functional_call(net, doubled, (x,)), twin(x))
    file = io.BytesIO()
    torch.save(twin, file)
    file.seek(0)
    assert_same_results(twin, torch.load(file, weights_only=False), x)


@every_backend
def test_state_dict_round_trip(backend):
    net, x = network(backend), inputs()
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other = network(backend)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(torch.load(file))  # weights_only: the default
    assert torch.equal(other(x), net(x))
    sizes = {key: tensor.numel() for key, tensor in net.state_dict().items() if not key.endswith("_extra_state")}
    assert max(sizes.values()) <= 16 * 9 * 10  # D is nowhere


@every_backend
def test_gradient_checkpointing(backend):
    net, x = network(backend), inputs().requires_grad_()
    plain = torch.autograd.grad(net(x).sum(), [x, *net.parameters()])
    y = torch.utils.checkpoint.checkpoint_sequential(net, 2, x, use_reentrant=False)
    for a, b in zip(torch.autograd.grad(y.sum(), [x, *net.parameters()]), plain, strict=True):
        assert torch.equal(a, b)


@every_backend
@pytest.mark.parametrize("offset", ["dct", None])
@pytest.mark.parametrize("optimiser", [torch.optim.Adam, torch.optim.SGD, torch.optim.AdamW])
def test_training_follows_the_masked_dense_network(backend, offset, optimiser):
    """Ten steps on the values are ten steps on a dense weight whose gradient is masked to the support."""
    torch.manual_seed(2)
    layer = DpsLinear(30, 20, density=0.1, offset=offset, backend=backend, dtype=torch.float64, train_alpha=False)
    mask, start = layer.support.mask(), layer.dense_weight().detach()
    dense = nn.Linear(30, 20, dtype=torch.float64)
    dense.weight.data, dense.bias.data = start.clone(), layer.bias.detach().clone()
    dense.weight.register_hook(lambda grad: grad * mask)
    options = {"lr": 0.01, "weight_decay": 0.0}
    optimisers = [optimiser(net.parameters(), **options) for net in (layer, dense)]
    for _ in range(10):
        x, target = torch.randn(8, 30, dtype=torch.float64), torch.randn(8, 20, dtype=torch.float64)
        for net, opt in zip((layer, dense), optimisers, strict=True):
            opt.zero_grad()
            (net(x) - target).square().mean().backward()
            opt.step()
    assert_close(layer.dense_weight(), dense.weight)
    assert torch.equal(dense.weight[~mask], start[~mask])
    assert torch.count_nonzero(layer.dense_weight() - start) == layer.nnz


@every_backend
@pytest.mark.parametrize("offset", ["dct", "dct_signed", None])
def test_second_derivatives(backend, offset):
    for layer, shape in [
        (DpsLinear(5, 4, density=0.3, offset=offset, backend=backend, dtype=torch.float64), (2, 5)),
        (DpsConv2d(2, 4, 3, 2, 1, density=0.2, offset=offset, backend=backend, dtype=torch.float64), (1, 2, 3, 4)),
    ]:
        nn.init.normal_(layer.values)
        leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True), layer.values, layer.bias]
        leaves += [] if layer.alpha is None else [layer.alpha]

        def run(x, values, bias, alpha=None, layer=layer):
            state = {"values": values, "bias": bias} | ({} if alpha is None else {"alpha": alpha})
            return torch.func.functional_call(layer, state, (x,))

        assert torch.autograd.gradgradcheck(run, leaves)


@every_backend
@pytest.mark.parametrize("offset", ["dct", None])
def test_torch_func_transforms(backend, offset):
    """grad, vmap of grad, jvp and jacobians agree with the plain composition: none is silently zero."""
    layer = DpsLinear(6, 4, density=0.4, offset=offset, backend=backend, dtype=torch.float64)
    nn.init.normal_(layer.values)
    x = torch.randn(3, 6, dtype=torch.float64)
    weight = layer.dense_weight().detach()
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, (x,)).square().sum()

    assert_close(torch.func.jvp(layer, (x,), (torch.ones_like(x),))[1], torch.ones_like(x) @ weight.T)
    assert_close(torch.func.jacrev(layer)(x[0]), weight)
    assert_close(torch.func.jacfwd(layer)(x[0]), weight)
    whole = torch.func.grad(loss)(parameters, x)
    singly = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    plain = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
    for (name, _), expected in zip(layer.named_parameters(), plain, strict=True):
        assert_close(whole[name], expected)
        assert_close(singly[name].sum(0), expected)


def test_threads_share_layers():
    net, x = network("torch"), inputs()
    expected = net(x)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for y in pool.map(lambda _: net(x), range(100)):
            torch.testing.assert_close(y, expected)


def test_plans_follow_the_positions_and_die_with_them():
    layer, x = DpsLinear(60, 50, density=0.1, backend="torch", offset=None), torch.randn(2, 60)
    layer(x)
    assert id(layer.positions) in sparse._derived
    first = sparse.taps_of(layer.positions, layer.geometry)
    assert sparse.taps_of(layer.positions, layer.geometry)[0] is first[0]
    layer.move(Support.sample((50, 60), layer.nnz, seed=9), layer.values.detach().clone())
    assert_close(layer(x), x @ layer.dense_weight().T + layer.bias)
    positions = weakref.ref(layer.positions)
    del layer, first
    gc.collect()
    assert positions() is None
    assert all(kept() is not None for kept, _ in sparse._derived.values())  # the dictionary holds no dead ones either


DDP = """
    import sys, torch, torch.distributed as dist
    from torch import nn
    from test_functional import network, inputs
    rank, folder = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    net = network("torch")
    ddp = nn.parallel.DistributedDataParallel(net)
    x = inputs().repeat(2, 1, 1, 1)[3 * rank : 3 * rank + 3] * (1 + rank)
    ddp(x).square().mean().backward()
    torch.save([p.grad for p in net.parameters()], f"{folder}/gradients{rank}")
    dist.destroy_process_group()
"""


@pytest.mark.process
def test_distributed_data_parallel_averages_the_values_gradients(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(DDP)]
    processes = [subprocess.Popen([*command, str(rank), str(tmp_path)], env=environment()) for rank in (0, 1)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    first, second = (torch.load(tmp_path / f"gradients{rank}") for rank in (0, 1))
    net = network("torch")
    x = torch.cat([inputs(), 2 * inputs()])
    expected = torch.autograd.grad(net(x).square().mean(), list(net.parameters()))
    for a, b, e in zip(first, second, expected, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(native.kernels is None, reason=native.WHY_NOT)
@pytest.mark.parametrize("offset", ["dct", "dct_signed", "srht", None])
def test_training_with_native_kernels_follows_the_dense_backend(offset):
    """50 steps of SGD in float32: rounding grows by training alone, not by the kernels.

    The bound: a float64 run is the truth; both float32 runs may leave it by as much as eps = 1.2e-7 grows in 50 steps
    (about 1e-5 is seen), and native may be at most ten times as far from it as dense, or within 1e-5.
    """
    losses = {}
    for backend, dtype in (("dense", torch.float64), ("dense", torch.float32), ("native", torch.float32)):
        net = network(backend, offset).to(dtype)
        optimiser = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
        generator, rows = torch.Generator().manual_seed(0), []
        for _ in range(50):
            x = torch.randn(8, 40, 8, 8, generator=generator).to(dtype)
            y = torch.randint(10, (8,), generator=generator)
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimiser.step()
            rows.append(loss.item())
        losses[backend, dtype] = torch.tensor(rows, dtype=torch.float64)
    truth = losses["dense", torch.float64]
    dense, native = ((losses[b, torch.float32] - truth).abs().max().item() for b in ("dense", "native"))
    assert losses["native", torch.float32][-5:].mean() != truth[:5].mean()
    assert native <= max(10 * dense, 1e-5)
    assert native < 1e-3
