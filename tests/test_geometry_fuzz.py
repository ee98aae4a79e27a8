"""Generated layers on every backend, against the dense definition; and what infinities and NaNs do to a layer.

`docs/numerics.md` has the rule. A number that is infinite or NaN is called broken here.
"""

import dataclasses
import math

import pytest
import torch

from dctps.core.geometry import Geometry
from dctps.ops import native, routes
from dctps.ops.functional import backends
from dctps.ops.offset_torch import OFFSET_PRODUCTS
from dctps.ops.route import layout_of
from helpers.generated_layers import GeneratedLayer, expected_results, generated_layer
from helpers.marks import every_backend
from helpers.tolerances import assert_close

PART = 50  # layers of one test
QUICK, ALL = 8, 100  # parts of the ordinary suite, and of all tests


def check_part(part):
    for number in range(PART * part, PART * (part + 1)):
        layer = generated_layer(number)
        for backend in backends():
            expected = expected_results(layer, backend)
            for name, result in layer.results(backend).items():
                try:
                    expected[name].check(result)
                except AssertionError as error:
                    raise AssertionError(f"{name} by {backend}: {layer}") from error


@pytest.mark.parametrize("part", range(QUICK))
def test_generated_layers(part):
    check_part(part)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(QUICK, ALL))
def test_more_generated_layers(part):
    check_part(part)


# --- what is generated ------------------------------------------------------------------------------------------------


def backward_route(layer, backend):
    tensors = layer.tensors()
    layout = layout_of(tensors["x"], tensors["upstream"])
    return routes.choose(layer.bound_offset(), layer.geometry, layout, backend, layer.nnz).name


NATIVE = {"sparse", "filters", "depthwise", "pixels", "matrix", "line", "spectrum", "product", "hadamard"}
ROUTES = {
    "dense": {"dense"},
    "torch": {"sparse", *OFFSET_PRODUCTS},
    "native": NATIVE | {f"sparse and torch {name}" for name in OFFSET_PRODUCTS},
}


@every_backend
def test_every_route_is_taken(backend):
    taken = set()
    for number in range(PART * ALL):
        taken.add(backward_route(generated_layer(number), backend))
        if taken == ROUTES[backend]:
            return
    raise AssertionError(f"no generated layer takes {ROUTES[backend] - taken}")


def test_without_padding_the_verdict_on_gradients_of_parameters_is_the_same_everywhere():
    """`isfinite().all()`, which a GradScaler asks for, has one answer: where they may be broken, they must be."""
    for number in range(PART * QUICK):
        layer = generated_layer(number)
        if not any(layer.geometry.padding):
            for backend in backends():
                expected = expected_results(layer, backend)
                for name in ("values", "alpha"):
                    assert torch.equal(expected[name].must, expected[name].may), layer


# --- the rule, case by case -------------------------------------------------------------------------------------------

PLAIN = GeneratedLayer(
    number=0,
    geometry=Geometry((16, 12)),
    spatial=(),
    batch=2,
    nnz=40,
    offset="dct",
    alpha=0.7,
    dtype=torch.float64,
    layouts=("rows", "rows"),
    broken=None,
    needs=(True, True, True),
    threads=1,
    chunk=10**6,
)


UNREAD = {  # geometries, sizes of their inputs, and a pixel that no output reads
    "stride, one kernel position": (Geometry((16, 12, 1, 1), (2, 2), (0, 0), (1, 1)), (6, 6), (2, 3)),
    "stride beyond the kernel": (Geometry((70, 40, 2), (5,), (0,), (1,)), (14,), (7,)),
    "dilation beyond the output": (Geometry((70, 40, 3), (1,), (0,), (8,)), (18,), (4,)),
    "dilation, short filters": (Geometry((4, 3, 3), (1,), (0,), (8,)), (18,), (4,)),
    "behind the last window": (Geometry((16, 12, 3, 3), (3, 3), (0, 0), (1, 1)), (7, 8), (6, 7)),
    "depthwise": (Geometry((12, 1, 2, 2), (3, 3), (0, 0), (1, 1), 12), (8, 8), (5, 1)),
}


@every_backend
@pytest.mark.parametrize("layout", ["rows", "channels last"])
@pytest.mark.parametrize("offset", [None, "dct", "dct_signed", "srht"])
@pytest.mark.parametrize("name", UNREAD)
def test_a_pixel_that_no_output_reads_changes_nothing(name, offset, layout, backend):
    geometry, spatial, pixel = UNREAD[name]
    options = {"offset": offset, "layouts": (layout, layout), "nnz": min(40, math.prod(geometry.weight_shape))}
    layer = dataclasses.replace(PLAIN, geometry=geometry, spatial=spatial, **options)
    zero, infinite = (
        dataclasses.replace(layer, broken=("x", (0, 1, *pixel), number)).results(backend) for number in (0.0, math.inf)
    )
    for quantity in zero:
        assert_close(infinite[quantity], zero[quantity])


@every_backend
def test_without_an_offset_numbers_travel_along_the_support_alone(backend):
    layer = dataclasses.replace(PLAIN, offset=None, nnz=1)
    filter_, channel = divmod(int(layer.tensors()["positions"]), 12)
    x, upstream = (0, (channel + 1) % 12), (1, (filter_ + 1) % 16)
    for name, place, quantity in (("x", x, "y"), ("upstream", upstream, "x")):
        results = dataclasses.replace(layer, broken=(name, place, math.nan)).results(backend)
        assert results["values"].isfinite().all()
        # the dense weight has zeros there, and zero times a NaN is a NaN
        assert results[quantity].isfinite().all() == (backend != "dense")


OFFSET_LAYERS = {
    "pixels": (Geometry((40, 48)), ()),
    "matrix": (Geometry((16, 12)), ()),
    "line": (Geometry((128, 96)), ()),
    "product": (Geometry((80, 90, 3), (1,), (1,), (1,)), (5,)),
    "product, strided": (Geometry((80, 90, 3), (2,), (1,), (1,)), (5,)),
    "filters": (Geometry((8, 3, 3), (1,), (1,), (1,)), (5,)),
    "groups": (Geometry((8, 40, 3), (1,), (1,), (1,), 2), (5,)),
}


@every_backend
@pytest.mark.parametrize("layout", ["rows", "channels last"])
@pytest.mark.parametrize("offset", ["dct", "dct_signed", "srht"])
@pytest.mark.parametrize("name", OFFSET_LAYERS)
def test_an_alpha_of_zero_hides_nothing(name, offset, layout, backend):
    geometry, spatial = OFFSET_LAYERS[name]
    options = {"geometry": geometry, "spatial": spatial, "offset": offset, "layouts": (layout, layout)}
    layer = dataclasses.replace(PLAIN, alpha=0.0, **options)
    pixel, output = (2,) * len(spatial), (1,) * len(spatial)  # this output reads this pixel
    filters = slice(geometry.filters // geometry.groups)  # those of the first group, to which channel 1 belongs
    results = dataclasses.replace(layer, broken=("x", (1, 1, *pixel), math.inf)).results(backend)
    assert not results["y"][(1, filters, *output)].isfinite().any()
    results = dataclasses.replace(layer, broken=("upstream", (1, 1, *output), math.inf)).results(backend)
    assert not results["x"][(1, slice(geometry.group_channels), *pixel)].isfinite().any()


@every_backend
@pytest.mark.parametrize("name", OFFSET_LAYERS)
def test_gradients_beyond_the_largest_number_are_not_finite(name, backend):
    geometry, spatial = OFFSET_LAYERS[name]
    options = {"geometry": geometry, "spatial": spatial, "dtype": torch.float32}
    results = dataclasses.replace(PLAIN, scale=1e25, **options).results(backend)
    assert results["y"].isfinite().all()
    assert not results["values"].isfinite().any()
    assert not results["alpha"].isfinite().any()


@pytest.mark.skipif(native.kernels is None, reason=native.WHY_NOT)
def test_bands_of_rows_sum_their_own_outputs_again():
    """Where a sum is not finite, it is summed again, by every band over its own outputs."""
    geometry = Geometry((70, 40, 3, 3), (1, 1), (1, 1), (1, 1))
    options = {"geometry": geometry, "spatial": (60, 40), "nnz": 3000, "chunk": 100_000}
    layer = dataclasses.replace(PLAIN, broken=("x", (0, 5, 0, 7), math.inf), **options)
    expected = expected_results(layer, "native")
    for name, result in layer.results("native").items():
        expected[name].check(result)
        assert not expected[name].may.all() or name == "alpha"
