"""The one place that decides how a layer computes: foreign transforms, names, and counts of multiply-adds."""

import numpy as np
import pytest
import torch

import dctps
from dctps import DpsConv1d, DpsConv2d, DpsLinear, TransformOffset, count_ops
from dctps.core.geometry import convolve
from dctps.core.transforms import TRANSFORMS
from dctps.ops import native
from dctps.ops.functional import backends
from helpers.counting import Reference
from helpers.tolerances import assert_close
from helpers.transforms import Dct4, FastDct4, HalfDone, Rotation, ThreeTerms

FOREIGN = {"dct4": Dct4(), "fast_dct4": FastDct4(), "three_terms": ThreeTerms(), "own_rotation": Rotation()}
LAYERS = {
    "linear": lambda **o: (DpsLinear(60, 50, **o), (4, 60)),
    "small linear": lambda **o: (DpsLinear(12, 20, **o), (4, 12)),
    "dense linear": lambda **o: (DpsLinear(100, 80, **o), (4, 100)),
    "1x1": lambda **o: (DpsConv2d(48, 56, 1, **o), (2, 48, 4, 5)),
    "1x1 strided": lambda **o: (DpsConv2d(48, 56, 1, 2, 1, **o), (2, 48, 5, 5)),
    "3x3": lambda **o: (DpsConv2d(24, 16, 3, 1, 1, **o), (2, 24, 5, 6)),
    "3x3, wide": lambda **o: (DpsConv2d(80, 16, 3, 1, 1, **o), (2, 80, 4, 4)),
    "3x3, more filters": lambda **o: (DpsConv2d(8, 90, 3, 1, 1, **o), (2, 8, 4, 5)),
    "5x5": lambda **o: (DpsConv2d(40, 12, 5, 1, 2, **o), (1, 40, 5, 4)),
    "strided": lambda **o: (DpsConv2d(24, 16, 3, 2, 1, **o), (2, 24, 7, 6)),
    "grouped": lambda **o: (DpsConv2d(24, 16, 3, 1, 1, groups=4, **o), (2, 24, 5, 5)),
    "depthwise": lambda **o: (DpsConv2d(10, 10, 3, 1, 1, groups=10, **o), (2, 10, 5, 5)),
    "1-D": lambda **o: (DpsConv1d(30, 20, 5, 2, 3, 2, **o), (2, 30, 19)),
}


@pytest.fixture(autouse=True)
def _foreign_transforms(monkeypatch):
    for name, transform in (FOREIGN | {"half_done": HalfDone()}).items():
        monkeypatch.setitem(TRANSFORMS, name, transform)


def gradients(y: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad((y * torch.arange(y.numel()).view(y.shape).sin()).sum(), inputs)


def check_against_the_matrix(layer, shape, channels_last=False):
    """Outputs and gradients equal those of torch's operator with W = alpha D + S, D from `entries` alone."""
    torch.nn.init.normal_(layer.values)
    x = torch.randn(shape, dtype=torch.float64)
    if channels_last and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    offset, shape = layer.offset, layer.geometry.weight_shape
    D = offset.transform.entries(offset.rows, offset.slots, offset.length)
    D = (D * offset.signs.expand(-1, len(offset.tap_slots)).reshape(-1)).view(shape)
    S = torch.zeros(D.numel(), dtype=torch.float64).index_put((layer.positions.long(),), layer.values).view(shape)
    leaves = x, layer.values, layer.alpha
    expected = convolve(x, layer.alpha * D + S, layer.bias, layer.geometry)
    actual = layer(x)
    assert_close(actual, expected)
    for mine, theirs in zip(gradients(actual, *leaves), gradients(expected, *leaves), strict=True):
        assert_close(mine, theirs)


@pytest.mark.parametrize("backend", [*backends(), "auto"])
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("transform", FOREIGN)
def test_a_foreign_transform_is_computed_as_itself(transform, kind, backend):
    for order, signs, rows in (("spatial", "none", "lowest"), ("channel", "channel", "random")):
        recipe = TransformOffset(transform, order, signs, rows)
        for channels_last in (False, True):
            layer, shape = LAYERS[kind](nnz=9, offset=recipe, alpha=0.7, backend=backend, dtype=torch.float64)
            check_against_the_matrix(layer, shape, channels_last)


@pytest.mark.parametrize("backend", [*backends(), "auto"])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_transform_that_contradicts_itself_is_refused_or_computed_by_its_entries(kind, backend):
    layer, shape = LAYERS[kind](nnz=9, offset=TransformOffset("half_done"), backend=backend, dtype=torch.float64)
    message = ""
    try:
        check_against_the_matrix(layer, shape)
    except ValueError as error:
        message = str(error)
    assert not message or "contradicts itself" in message


def test_the_refusal_says_what_to_mend():
    layer = DpsConv2d(80, 16, 3, nnz=9, offset=TransformOffset("half_done"), backend="torch")
    with pytest.raises(ValueError, match=r"'half_done' contradicts itself: its method 'form'.*'entries'.*leave it out"):
        layer(torch.zeros(1, 80, 4, 4))


def test_factors_of_a_transform_without_an_addition_theorem_are_refused():
    with pytest.raises(ValueError, match="no addition theorem"):
        TransformOffset("own_rotation").bind((4, 3, 3)).factors()


def test_a_foreign_transform_goes_through_conversion_report_and_file(tmp_path):
    net = dctps.sparsify(dctps.models.build("lenet"), 0.01, offset=TransformOffset("dct4", "channel"))
    assert {row.offset for row in dctps.report(net).layers} == {"dct4/channel/none/lowest/0"}
    x = torch.randn(2, 3, 32, 32)
    dctps.save(net, tmp_path / "net.safetensors")
    again = dctps.load(tmp_path / "net.safetensors", dctps.models.build("lenet"))
    assert torch.equal(again(x), net(x))
    assert_close(dctps.densify(again)(x), net(x))


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(native.kernels is None, reason=native.WHY_NOT)
def test_routes_of_the_native_backend_by_name():
    def name(kind, layout=torch.contiguous_format, **options):
        layer, shape = LAYERS[kind](nnz=9, backend="native", **options)
        return layer.route(torch.zeros(shape).contiguous(memory_format=layout)).name

    last = torch.channels_last
    assert name("linear") == "pixels"
    assert name("1x1") == "line"
    assert name("1x1", last) == "pixels"
    assert name("3x3", offset="dct") == "product"
    assert name("3x3", offset="dct_signed") == "spectrum"
    assert name("3x3", offset="srht") == "hadamard"
    assert name("3x3", offset=None) == "sparse"
    assert name("3x3", offset="dct/spatial/position/lowest/0") == "sparse and torch direct"
    assert name("grouped") == "filters"
    assert name("depthwise") == "filters"
    assert name("depthwise", last) == "depthwise"
    assert name("1x1 strided", offset=TransformOffset("own_rotation")) == "sparse and torch transform"


def test_an_offset_of_a_users_own_has_a_route_and_a_count():
    class Ones:
        shape = (6, 5)

        def apply(self, x):
            return x.sum(-1, keepdim=True).expand(*x.shape[:-1], 6)

        def adjoint(self, v):
            return v.sum(-1, keepdim=True).expand(*v.shape[:-1], 5)

        def matrix(self):
            return torch.ones(6, 5)

    layer = DpsLinear(5, 6, nnz=3, offset=Ones(), backend="torch")
    assert layer.route(torch.zeros(2, 5)).name == "transform"
    assert count_ops(layer, (5,)).performed == 3 + round(6 * np.log2(6))


# --- counts ---------------------------------------------------------------------------------------------------------

RECIPES = ("dct", "dct_signed", "dst", "hartley", "srht", "dct/spatial/position/lowest/0", "dct/channel/none/random/3")


def generated(number: int):
    """A layer and an image for it: the kind, offset, sizes and backend follow from the number."""
    draw = np.random.default_rng(number)

    def one_of(*choices):
        return choices[int(draw.integers(len(choices)))]

    names = [name for name in backends() if name != "dense"]
    options = {"offset": one_of(*RECIPES, None), "backend": names[number % len(names)], "bias": False}
    channels, filters = int(draw.integers(4, 40)), int(draw.integers(4, 60))
    if one_of(True, False, False, False):
        return DpsLinear(channels * 3, filters, nnz=7, **options), torch.randn(1, channels * 3)
    groups = one_of(1, 1, 1, 2, 4)
    channels, filters = groups * -(-channels // groups), groups * -(-filters // groups)
    kernel, stride, padding, dilation = one_of(1, 2, 3, 3), one_of(1, 1, 2, 3), one_of(0, 1), one_of(1, 1, 2)
    shape = 1, channels, int(draw.integers(5, 8)), int(draw.integers(5, 8))
    layer = DpsConv2d(channels, filters, kernel, stride, padding, dilation, groups, nnz=7, **options)
    x = torch.randn(shape)
    return layer, x.contiguous(memory_format=one_of(torch.contiguous_format, torch.channels_last))


# Layers for the routes that small ones rarely take: the backend, the arguments of DpsConv2d, its offset, and its input
CHOSEN = {
    "separable": ("torch", (80, 16, 3, 1, 1), "dct", (1, 80, 3, 4)),
    "separable, groups": ("torch", (96, 64, 5, 2, 2, 1, 2), "srht", (1, 96, 3, 3)),
    "patches": ("torch", (64, 200, 3, 1, 1), "dct/spatial/position/lowest/0", (1, 64, 2, 3)),
    "line": ("native", (64, 100, 1, 2, 1), "dst", (1, 64, 5, 4)),
    "product": ("native", (64, 64, 3, 1, 1), "hartley", (1, 64, 3, 3)),
    "product, strided": ("native", (64, 64, 3, 2, 1), "dct", (1, 64, 5, 5)),
    "product, few pixels read": ("native", (64, 64, 2, 3, 0), "dct", (1, 64, 5, 5)),
    "spectrum": ("native", (24, 40, 3, 2, 1), "dct_signed", (1, 24, 5, 5)),
    "hadamard": ("native", (24, 40, 3, 2, 1), "srht", (1, 24, 5, 5)),
    "filters": ("native", (12, 8, 3, 1, 1, 1, 4), "dct", (1, 12, 4, 4)),
    "sparse and torch separable": ("native", (96, 64, 5, 1, 2, 1, 2), "srht", (1, 96, 3, 3)),
}


def chosen(name: str):
    backend, arguments, offset, shape = CHOSEN[name]
    return DpsConv2d(*arguments, nnz=7, offset=offset, backend=backend, bias=False), torch.randn(shape)


def check_count(layer, x):
    torch.nn.init.normal_(layer.values)
    reference = Reference(layer, x)
    y = torch.from_numpy(reference.run(layer.route(x).name))
    assert_close(layer(x)[0].detach().flatten(), y.flatten().float())
    assert count_ops(layer, x).performed == reference.count


@pytest.mark.parametrize("number", range(40))
def test_counts_are_those_of_an_instrumented_reference(number):
    check_count(*generated(number))


@pytest.mark.parametrize("name", [name for name, (backend, *_) in CHOSEN.items() if backend in backends()])
def test_counts_of_routes_that_small_layers_rarely_take(name):
    layer, x = chosen(name)
    assert layer.route(x).name == name.split(",")[0]
    check_count(layer, x)


def test_a_small_linear_layer_counts_the_dense_product_that_it_performs():
    layer = DpsLinear(100, 80, nnz=100)
    expected = 8000 if native.kernels is not None else count_ops(layer, (100,)).performed
    assert count_ops(layer, (100,)).performed == expected


def test_strided_pointwise_layers_count_only_the_pixels_that_they_read():
    for backend in backends():
        strided = DpsConv2d(64, 100, 1, stride=2, nnz=50, backend=backend, bias=False)
        plain = DpsConv2d(64, 100, 1, nnz=50, backend=backend, bias=False)
        assert count_ops(strided, (64, 8, 8)).performed == count_ops(plain, (64, 4, 4)).performed
