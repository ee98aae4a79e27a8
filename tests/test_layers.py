"""Layers against the definition: outputs and gradients of x, values, alpha and bias, on both backends."""

import math
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dctps
from dctps import OFFSETS, DpsConv1d, DpsConv2d, DpsConv3d, DpsLinear, Support
from dctps.core.geometry import convolve
from dctps.ops import offset_torch, routes, sparse
from dctps.ops.functional import backends
from dctps.ops.offset_torch import OFFSET_PRODUCTS
from dctps.ops.torch_routes import TorchRoute
from dctps.ops.weight import dense_weight
from helpers import oracles
from helpers.marks import every_backend
from helpers.offsets import Ones, recipes
from helpers.tolerances import assert_close

CONVS = {1: DpsConv1d, 2: DpsConv2d, 3: DpsConv3d}
every_offset = pytest.mark.parametrize("offset", [None, *OFFSETS])


@st.composite
def layers(draw):
    """A random layer in float64 with random values, and a random input for it."""
    axes = draw(st.integers(0, 3))
    offset = draw(st.one_of(st.none(), recipes))
    groups = draw(st.sampled_from([1, 1, 2, 3])) if axes else 1
    channels, filters = groups * draw(st.integers(1, 5)), groups * draw(st.integers(1, 5))
    sizes = st.tuples(*[st.integers(1, 3)] * axes)
    kernel, stride, dilation = draw(sizes), draw(sizes), draw(st.tuples(*[st.integers(1, 2)] * axes))
    padding = tuple(draw(st.integers(0, 2)) for _ in range(axes))
    options = {
        "bias": draw(st.booleans()),
        "density": draw(st.floats(0.01, 1)),
        "offset": offset,
        "alpha": draw(st.floats(-2, 2)),
        "backend": draw(st.sampled_from(backends())),
        "seed": draw(st.integers(0, 99)),
        "dtype": torch.float64,
    }
    if axes == 0:
        layer, spatial = DpsLinear(channels, filters, **options), ()
    else:
        layer = CONVS[axes](channels, filters, kernel, stride, padding, dilation, groups, **options)
        spatial = tuple(
            max(d * (k - 1) + 1 - 2 * p, 1) + draw(st.integers(0, 3))
            for k, d, p in zip(kernel, dilation, padding, strict=True)
        )
    torch.manual_seed(draw(st.integers(0, 2**32)))
    with torch.no_grad():
        layer.values.normal_()
    return layer, torch.randn(draw(st.integers(1, 3)), channels, *spatial, dtype=torch.float64)


def definition(layer, x, values, alpha, bias):
    """(alpha D + S) x + bias, entry by entry and patch by patch."""
    g = layer.geometry
    weight = torch.zeros(math.prod(g.weight_shape), dtype=x.dtype).index_put((layer.positions.long(),), values)
    weight = weight.view(g.weight_shape)
    if layer.offset is not None:
        own = oracles.offset_weight(layer.offset.recipe, g.weight_shape, layer.offset.rows, layer.offset.signs)
        weight = weight + alpha * own.to(x.dtype)
    y = oracles.convolution(x, weight, g.stride, g.padding, g.dilation, g.groups)
    return y if bias is None else y + bias.view(-1, *(1 for _ in g.kernel))


def results(run, layer, x):
    """Output and gradients of `run`, under a random upstream gradient."""
    leaves = {"x": x.clone(), "values": layer.values, "alpha": layer.alpha, "bias": layer.bias}
    leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in leaves.items() if leaf is not None}
    y = run(**{"values": None, "alpha": None, "bias": None, **leaves})
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(y.dtype)
    gradients = torch.autograd.grad(y, list(leaves.values()), upstream, allow_unused=True)
    return {"y": y, **dict(zip(leaves, gradients, strict=True))}


def as_function(layer):
    def run(x, values, alpha, bias):
        state = {"values": values, "alpha": alpha, "bias": bias}
        return torch.func.functional_call(layer, {k: v for k, v in state.items() if v is not None}, (x,))

    return run


def compare(layer, x):
    actual = results(as_function(layer), layer, x)
    expected = results(lambda x, values, alpha, bias: definition(layer, x, values, alpha, bias), layer, x)
    for name in expected:
        assert_close(actual[name], expected[name])


@given(layers())
def test_layers_are_the_definition_in_float64(drawn):
    compare(*drawn)


@given(layers())
def test_layers_are_the_definition_in_float32(drawn):
    layer, x = drawn
    compare(layer.float(), x.float())


@given(layers())
def test_the_way_without_csr_kernels(drawn):
    layer, x = drawn
    layer.backend = "torch"
    before = sparse.csr_works
    sparse.csr_works = lambda device, dtype: False
    try:
        compare(layer, x)
    finally:
        sparse.csr_works = before


@given(layers())
def test_the_dense_weight_gives_the_same_outputs(drawn):
    layer, x = drawn
    g = layer.geometry
    y = convolve(x, layer.dense_weight(), layer.bias, g)
    assert_close(layer(x), y)


# Shapes on which each way of applying an offset is the chosen one, small and large against the patch
WAYS = {
    "transform": (DpsConv2d, (40, 24, 1, 2, 1), (2, 40, 5, 6)),
    "separable": (DpsConv2d, (80, 16, 3, 2, 1), (3, 80, 6, 5)),
    "separable, more filters": (DpsConv2d, (80, 800, 3, 1, 1), (1, 80, 4, 3)),
    "separable, 1-D": (DpsConv1d, (160, 24, 9, 2, 3, 2), (2, 160, 21)),
    "separable, 3-D": (DpsConv3d, (40, 24, 3, 1, 1), (1, 40, 4, 3, 5)),
    "direct": (DpsConv2d, (3, 64, 3, 1, 1), (2, 3, 6, 6)),
    "direct, depthwise": (DpsConv2d, (32, 32, 3, 2, 1, 1, 32), (2, 32, 7, 7)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("recipe", ["dct", "dct_signed", "dst", "hartley", "srht", "dct/spatial/position/lowest/0"])
def test_every_way_of_applying_an_offset(way, dtype, recipe):
    kind, arguments, shape = WAYS[way]
    layer = kind(*arguments, density=0.01, offset=recipe, alpha=0.7, backend="torch", dtype=dtype)
    chosen = routes.product_name(layer.offset, layer.geometry)
    if "position" not in recipe or way == "transform":  # signs per position are separable for one position only
        assert chosen == way.split(",")[0]
    else:
        assert chosen == ("patches" if way == "separable, more filters" else "direct")
    nn.init.normal_(layer.values)
    x = torch.randn(shape, dtype=dtype)

    def densely(x, values, alpha, bias):  # the torch operator, itself compared with the definition above
        weight = dense_weight(values, layer.positions, alpha, layer.offset, layer.geometry.weight_shape)
        return convolve(x, weight, bias, layer.geometry)

    actual, expected = results(as_function(layer), layer, x), results(densely, layer, x)
    for name in expected:
        scale = expected[name].abs().max()  # sums over up to 720 entries: compare relative to their size
        assert_close(actual[name] / scale, expected[name] / scale)


def test_slices_of_the_batch_change_nothing(monkeypatch):
    for recipe in ("dct", "dct/spatial/position/lowest/0"):
        layer = DpsConv2d(80, 16, 3, padding=1, density=0.01, offset=recipe, backend="torch", dtype=torch.float64)
        x = torch.randn(5, 80, 6, 6, dtype=torch.float64, requires_grad=True)
        whole = torch.autograd.grad(layer(x).square().sum(), [x, layer.values])
        monkeypatch.setattr(offset_torch, "SCRATCH", 1)
        for sliced, expected in zip(
            torch.autograd.grad(layer(x).square().sum(), [x, layer.values]), whole, strict=True
        ):
            assert_close(sliced, expected)
        monkeypatch.undo()


@pytest.mark.parametrize("way", ["patches", "direct", "separable"])
@given(drawn=layers())
def test_ways_that_sizes_would_not_choose(way, drawn):
    """Every way is right for every layer that has it, not only where it pays."""
    layer, x = drawn
    separable = layer.offset is not None and layer.offset.separable and layer.geometry.axes
    if layer.offset is None or (way == "separable" and not separable):
        return
    layer.backend = "torch"
    route = TorchRoute(layer.geometry, OFFSET_PRODUCTS[way](layer.offset, layer.geometry))
    with mock.patch.object(routes, "choose", return_value=route):
        compare(layer, x)


@every_backend
@pytest.mark.parametrize("build", [lambda o: DpsConv2d(8, 6, 3, **o), lambda o: DpsLinear(8, 6, **o)])
def test_results_can_be_changed_in_place(backend, build):
    """No result is a view, at batch size 1 and without a batch axis least of all."""
    layer = build({"density": 0.2, "bias": False, "backend": backend})
    for shape in [(1, 8), (4, 8), (8,)] if isinstance(layer, DpsLinear) else [(1, 8, 5, 5), (3, 8, 5, 5), (8, 5, 5)]:
        y = layer(torch.randn(shape, requires_grad=True))
        F.relu(y, inplace=True).sum().backward()


@every_backend
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float64, torch.bfloat16, torch.complex64])
def test_inputs_of_another_type_are_refused(backend, dtype):
    with pytest.raises(ValueError, match=r"the layer torch.float32; convert one of them"):
        DpsLinear(8, 4, density=0.2, backend=backend)(torch.ones(2, 8).to(dtype))


def test_sizes_may_be_numpy_s(tmp_path):
    layer = DpsConv2d(np.int64(3), np.prod((2, 2)), np.int64(3), np.int64(1), density=0.2)
    dctps.save(layer, tmp_path / "layer")
    dctps.save(DpsLinear(np.prod((4, 5)), np.int64(8), density=0.3), tmp_path / "layer")


@every_backend
@every_offset
def test_gradcheck(backend, offset):
    for layer, shape in [
        (DpsLinear(5, 7, density=0.3, offset=offset, backend=backend, dtype=torch.float64), (3, 5)),
        (
            DpsConv2d(4, 6, 3, 2, 1, 1, 2, density=0.2, offset=offset, backend=backend, dtype=torch.float64),
            (2, 4, 4, 5),
        ),
    ]:
        nn.init.normal_(layer.values)
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        names = [name for name, _ in layer.named_parameters()]

        def run(x, *tensors, layer=layer, names=names):
            return torch.func.functional_call(layer, dict(zip(names, tensors, strict=True)), (x,))

        assert torch.autograd.gradcheck(run, (x, *(p for _, p in layer.named_parameters())))


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [1, (2, 1), "same", "valid"])
@every_backend
def test_padding_modes_are_torch_s(mode, padding, backend):
    arguments = {"kernel_size": (3, 4), "padding": padding, "dilation": (1, 2), "padding_mode": mode}
    ours = DpsConv2d(3, 5, **arguments, density=0.1, backend=backend)
    theirs = nn.Conv2d(3, 5, **arguments)
    theirs.weight.data, theirs.bias.data = ours.dense_weight().detach(), ours.bias.detach()
    x = torch.randn(2, 3, 9, 11)
    assert_close(ours(x), theirs(x))
    assert_close(ours(x[0]), theirs(x[0]))  # without a batch axis


@every_backend
def test_linear_layers_take_any_leading_axes(backend):
    layer = DpsLinear(6, 4, density=0.2, backend=backend)
    for shape in [(6,), (3, 6), (2, 3, 6), (0, 6), (2, 0, 6)]:
        assert layer(torch.randn(shape)).shape == (*shape[:-1], 4)


@every_backend
def test_empty_batches_and_empty_supports(backend):
    layer = DpsConv2d(3, 4, 3, nnz=0, backend=backend)
    y = layer(torch.randn(0, 3, 8, 8))
    assert y.shape == (0, 4, 6, 6)
    x = torch.randn(2, 3, 8, 8)
    assert_close(layer(x), F.conv2d(x, layer.dense_weight(), layer.bias))
    layer(x).sum().backward()
    assert layer.values.grad.shape == (0,)


@every_backend
def test_non_contiguous_and_channels_last_inputs(backend):
    layer = DpsConv2d(8, 16, 3, padding=1, density=0.1, backend=backend)
    x = torch.randn(2, 8, 6, 7)
    expected = layer(x)
    assert_close(layer(x.to(memory_format=torch.channels_last)), expected)
    assert_close(layer(x.transpose(2, 3).contiguous().transpose(2, 3)), expected)
    assert_close(layer(x[:, :, :1, :1].expand(-1, -1, 6, 7)), layer(x[:, :, :1, :1].expand(-1, -1, 6, 7).contiguous()))


def test_only_what_needs_a_gradient_gets_one():
    layer = DpsLinear(600, 400, density=0.01, train_alpha=False, backend="torch")
    x = torch.randn(2, 600)
    layer(x).sum().backward()
    assert layer.values.grad is not None
    assert x.grad is None
    assert not isinstance(layer.alpha, nn.Parameter)
    assert "alpha" in layer.state_dict()


def test_alpha_is_a_parameter_a_buffer_or_absent():
    trained, fixed, none = (
        DpsLinear(4, 4, nnz=2, **options) for options in ({}, {"train_alpha": False, "alpha": -0.25}, {"offset": None})
    )
    assert isinstance(trained.alpha, nn.Parameter)
    assert trained.alpha.shape == (1,)
    assert fixed.alpha.item() == -0.25
    assert none.alpha is None
    assert [sorted(layer.state_dict()) for layer in (trained, fixed, none)] == [
        ["_extra_state", "alpha", "bias", "values"],
        ["_extra_state", "alpha", "bias", "values"],
        ["_extra_state", "bias", "values"],
    ]


def test_initial_values():
    assert DpsLinear(50, 50, density=0.5).values.abs().max() == 0  # S = 0 under an offset (paper: section 3)
    drawn = DpsLinear(100, 50, density=0.5, offset=None, seed=3).values
    assert 0.09 < drawn.abs().max() <= 0.1  # U(+-1/sqrt(fan_in)), as torch draws a linear layer
    assert torch.equal(drawn, DpsLinear(100, 50, density=0.5, offset=None, seed=3).values)


@every_backend
def test_a_user_s_own_offset(backend):
    layer = DpsConv2d(3, 4, 3, density=0.1, offset=Ones((4, 27)), alpha=0.5, backend=backend)
    nn.init.normal_(layer.values)
    x = torch.randn(2, 3, 5, 5, requires_grad=True)
    leaves = [x, layer.values, layer.alpha]
    weight = 0.5 * torch.ones(4, 3, 3, 3) + Support(
        layer.support.shape, layer.positions
    ).mask() * layer.dense_weight().sub(0.5)
    assert_close(layer(x), F.conv2d(x, weight, layer.bias))
    actual = torch.autograd.grad(layer(x).square().sum(), leaves)
    expected = torch.autograd.grad(F.conv2d(x, layer.dense_weight(), layer.bias).square().sum(), leaves)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-2)  # sums of squares of some hundreds


def test_repr_tells_the_science():
    layer = DpsLinear(512, 10, nnz=118, bias=False)
    assert repr(layer) == "DpsLinear(512 -> 10, bias=False, offset=dct_signed, nnz=118, density=0.023, alpha=1)"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: DpsLinear(4, 4), "exactly one of density=, nnz= and support="),
        (lambda: DpsLinear(4, 4, density=0.5, nnz=3), "exactly one of"),
        (lambda: DpsLinear(4, 4, density=0), r"density must be in \(0, 1\]"),
        (lambda: DpsLinear(4, 4, density=float("nan")), r"density must be in \(0, 1\]"),
        (lambda: DpsLinear(4, 4, nnz=1, alpha=float("nan")), "alpha must be a finite number"),
        (lambda: DpsLinear(4, 4, nnz=17), "cannot place 17 weights"),
        (lambda: DpsLinear(4, 4, nnz=-1), "cannot place -1 weights"),
        (lambda: DpsLinear(0, 4, nnz=0), "no place for a trainable value|at least one element"),
        (lambda: DpsLinear(4, 4, support=Support.sample((4, 5), 2)), r"support of shape \(4, 5\) cannot serve"),
        (lambda: DpsLinear(4, 4, nnz=1, backend="cuda"), "unknown backend.*dense, torch"),
        (lambda: DpsLinear(4, 4, nnz=1, offset="dft"), "unknown offset 'dft'"),
        (lambda: DpsLinear(4, 4, nnz=1, offset=Ones((4, 5))), "cannot serve a weight"),
        (lambda: DpsLinear(4, 4, nnz=1, device="meta"), "never holds a dense weight"),
        (lambda: DpsConv2d(4, 4, 3, groups=3, nnz=1), "groups=3 must divide"),
        (lambda: DpsConv2d(4, 4, (3, 3, 3), nnz=1), "one number or 2"),
        (lambda: DpsConv2d(4, 4, 3, padding="full", nnz=1), "choose one of: same, valid"),
        (lambda: DpsConv2d(4, 4, 3, padding="same", stride=2, nnz=1), "needs stride 1"),
        (lambda: DpsConv2d(4, 4, 3, stride=0, nnz=1), "must be at least 1"),
        (lambda: DpsConv2d(4, 4, 3, padding=-1, nnz=1), "must not be negative"),
        (
            lambda: DpsConv2d(4, 4, 3, nnz=1, backend="torch")(torch.zeros(1, 4, 2, 5)),
            r"\(2, 5\) is smaller than the kernel",
        ),
        (
            lambda: DpsConv2d(4, 4, 3, nnz=1, offset=None, backend="torch")(torch.zeros(1, 4, 2, 5)),
            "smaller than the kernel",
        ),
        (lambda: DpsLinear(4, 4, nnz=1, dtype=torch.complex64), "real floating point"),
        (lambda: DpsLinear(4, 4, nnz=1, offset=3), "an offset is a name"),
        (lambda: DpsLinear(4, 4, support=torch.ones(4, 4)), "must be a Support, not a Tensor"),
        (lambda: DpsConv2d(4, 4, 3, padding_mode="mirror", nnz=1), "choose one of: zeros, reflect"),
        (lambda: DpsConv2d(4, 4, 3, nnz=1)(torch.zeros(1, 3, 8, 8)), r"expected an input \(\[batch,\] 4"),
        (lambda: DpsLinear(4, 4, nnz=1)(torch.zeros(1, 3)), r"expected an input \(..., 4\)"),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(ValueError, match=message):
        build()
