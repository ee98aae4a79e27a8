"""The kernels that take channels-last tensors as they lie: depthwise convolutions and 1x1 layers of few channels."""

import math
import types

import pytest
import torch

from dctps import TransformOffset
from dctps.core.geometry import Geometry
from dctps.ops import native

if native.kernels is None:
    pytest.skip(native.WHY_NOT, allow_module_level=True)

from dctps.ops.native import kernels
from dctps.ops.native import routes as native_routes
from helpers.kernels import Case

DCT = TransformOffset.parse("dct")
DEPTHWISE = {
    "3x3": ((3, 3), (1, 1), (1, 1), (1, 1), (9, 7)),
    "3x3 by two": ((3, 3), (2, 2), (1, 1), (1, 1), (8, 9)),
    "stride beyond the kernel": ((2, 2), (3, 3), (0, 0), (1, 1), (9, 10)),
    "dilated by two": ((3, 3), (2, 2), (2, 3), (2, 3), (11, 12)),
    "5x4, no padding": ((5, 4), (1, 2), (0, 0), (1, 1), (7, 9)),
    "one pixel": ((3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "a long row": ((1, 7), (1, 1), (0, 3), (1, 1), (1, 40)),
    "signals": ((5,), (2,), (2,), (1,), (17,)),
    "volumes": ((3, 2, 3), (1, 2, 1), (1, 0, 1), (1, 1, 2), (4, 5, 6)),
}
CHANNELS = [2, 16, 21, 40, 70]


def depthwise(name, channels, **options):
    kernel, stride, padding, dilation, spatial = DEPTHWISE[name]
    geometry = Geometry((channels, 1, *kernel), stride, padding, dilation, channels)
    return Case.of(geometry, spatial, DCT, layout="channels last", **options)


def pointwise(filters, channels, spatial=(5, 7), **options):
    ones, zeros = (1,) * len(spatial), (0,) * len(spatial)
    geometry = Geometry((filters, channels, *ones), ones, zeros, ones, 1)
    return Case.of(geometry, spatial, DCT, layout="channels last", **options)


@pytest.fixture
def called(monkeypatch):
    """The names of the native functions that were called."""
    names = []

    class Spy:
        def __init__(self, module):
            self.module = module

        def __getattr__(self, name):
            names.append(name)
            found = getattr(self.module, name)
            return Spy(found) if isinstance(found, types.ModuleType) else found  # a module for each type of numbers

    monkeypatch.setattr(native_routes, "kernels", Spy(kernels))
    return names


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise(name, channels, dtype, called):
    depthwise(name, channels, batch=3, dtype=dtype).check()
    assert {"depthwise_forward", "depthwise_backward"} <= set(called)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("filters", "channels"), [(1, 100), (97, 1), (24, 16), (40, 37), (96, 64)])
@pytest.mark.parametrize("spatial", [(), (29,), (5, 7), (3, 2, 5)])
def test_pointwise(filters, channels, spatial, dtype, called):
    pointwise(filters, channels, spatial, batch=5, nnz=1 + filters * channels // 40, dtype=dtype).check()
    assert {"pointwise_forward", "pointwise_backward"} <= set(called)


@pytest.mark.parametrize("width", [1, 7, 8, 9, 15, 16, 17, 24, 33, 47, 48, 49, 63, 64, 65, 80, 127, 129])
def test_panels_of_every_width(width):
    """The last panel of a product is as narrow as its columns, forwards (filters) and backwards (channels)."""
    pointwise(width, 32, batch=2, nnz=9).check()
    pointwise(32, width, batch=2, nnz=9).check()


@pytest.mark.parametrize("nnz", [0, 1])
def test_pointwise_without_single_weights(nnz):
    pointwise(24, 40, batch=3, nnz=nnz).check()


@pytest.mark.parametrize(
    "needs", [(True, False, False), (False, True, False), (False, False, True), (False, True, True)]
)
@pytest.mark.parametrize("make", [lambda: depthwise("3x3", 21), lambda: pointwise(24, 32)])
def test_only_the_gradients_that_are_asked_for(make, needs):
    case = make()
    grad = torch.randn_like(case.forward())
    for some, every, needed in zip(case.backward(grad, needs), case.backward(grad), needs, strict=True):
        assert (some is not None) == needed
        if needed:
            torch.testing.assert_close(some, every, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make", [lambda b: depthwise("3x3 by two", 21, batch=b), lambda b: pointwise(24, 32, batch=b)])
def test_empty_batches(make):
    case = make(0)
    y = case.forward()
    assert y.shape[0] == 0
    x, values, alpha = case.backward(y)
    assert x.shape == case.x.shape
    assert not values.any()
    assert alpha == 0


@pytest.mark.parametrize("kind", ["depthwise", "pointwise"])
def test_large_results_are_written_past_the_caches(kind):
    """More than 16 MB of aligned float64, so that the other kind of store is taken."""
    ones, zeros = (1, 1), (0, 0)
    wide = Geometry((48, 1, 3, 3), ones, ones, ones, 48)
    geometry = wide if kind == "depthwise" else Geometry((48, 96, 1, 1), ones, zeros, ones, 1)
    case = Case.of(geometry, (32, 32), DCT, batch=44, layout="channels last")
    assert case.forward().numel() * 8 > 16 << 20
    case.check()


@pytest.mark.parametrize("make", [lambda: depthwise("3x3", 21, batch=9), lambda: pointwise(24, 32, batch=9)])
def test_threads_change_nothing_but_rounding_and_repeat_exactly(make):
    case, before = make(), torch.get_num_threads()
    grad = torch.randn_like(case.forward())
    try:
        results = []
        for threads in (1, 2, 2, 5):
            torch.set_num_threads(threads)
            results.append((case.forward(), *case.backward(grad)))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(a, b) for a, b in zip(results[1], results[2], strict=True))


@pytest.mark.parametrize("make", [lambda: depthwise("3x3", 21, batch=4), lambda: pointwise(24, 32, batch=4)])
def test_one_image_never_reaches_another(make):
    case = make()
    expected = case.forward()
    case.x[2] = math.inf
    changed = case.forward()
    assert torch.equal(changed[[0, 1, 3]], expected[[0, 1, 3]])


def last(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "changes",
    [
        {"x": torch.zeros(2, 6, 5, 5)},
        {"x": last(2, 5, 5, 5)},
        {"x": last(2, 6, 5, 5, dtype=torch.float64)},
        {"y": torch.zeros(2, 6, 5, 5)},
        {"y": last(2, 6, 5, 4)},
        {"weight": torch.zeros(53)},
        {"weight": torch.zeros(108)[::2]},
        {"threads": 0},
        {"geometry": [1, 6, 6, 3, 3, 1, 1, 1, 1, 1, 1]},
        {"geometry": [6, 6, 1, 9, 9, 1, 1, 4, 4, 1, 1], "weight": torch.zeros(486)},
    ],
)
def test_depthwise_arguments_that_do_not_fit_are_errors(changes):
    good = {"geometry": [6, 6, 1, 3, 3, 1, 1, 1, 1, 1, 1], "x": last(2, 6, 5, 5), "y": last(2, 6, 5, 5)}
    good |= {"weight": torch.zeros(54), "threads": 1}
    kernels.depthwise_forward(**good)
    with pytest.raises((ValueError, TypeError)):
        kernels.depthwise_forward(**(good | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"x": torch.zeros(2, 4, 5, 5)},
        {"x": last(2, 3, 5, 5)},
        {"x": last(2, 4, 5, 10)[..., ::2]},
        {"x": last(2, 4, 5, 5).double()},
        {"y": last(2, 6, 5, 4)},
        {"offset": torch.zeros(6, 5)},
        {"offset": torch.zeros(4, 6).T},
        {"offset": torch.zeros(6, 4).double()},
        {"values": torch.zeros(2)},
        {"threads": 0},
        {"sparse": kernels.Sparse([1, 6, 4, 1, 1, 2, 2, 0, 0, 1, 1], torch.tensor([0, 3, 8]).numpy())},
        {"sparse": kernels.Sparse([2, 6, 4, 1, 1, 1, 1, 0, 0, 1, 1], torch.tensor([0, 3, 8]).numpy())},
    ],
)
def test_pointwise_arguments_that_do_not_fit_are_errors(changes):
    sparse = kernels.Sparse([1, 6, 4, 1, 1, 1, 1, 0, 0, 1, 1], torch.tensor([0, 3, 8]).numpy())
    good = {"x": last(2, 4, 5, 5), "offset": torch.zeros(6, 4), "alpha": 1.0, "sparse": sparse}
    good |= {"values": torch.zeros(3), "y": last(2, 6, 5, 5), "threads": 1}
    kernels.pointwise_forward(**good)
    with pytest.raises((ValueError, TypeError)):
        kernels.pointwise_forward(**(good | changes))
