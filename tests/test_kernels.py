"""The native kernels against torch's own operators with the dense weight: every stage, shape, layout and stride.

`test_layers.py` compares them with the definition on small layers; here are the sizes that reach every branch.
"""

import contextlib
import dataclasses
import math
import os
import re
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dctps import TransformOffset
from dctps.core.geometry import Geometry
from dctps.core.transforms import TRANSFORMS
from dctps.ops import native
from helpers.offsets import recipes
from helpers.tolerances import assert_close

if native.kernels is None:
    pytest.skip(native.WHY_NOT, allow_module_level=True)

from dctps.ops.native import kernels, stages
from dctps.ops.routes import stage_kind
from helpers.kernels import LAYOUTS, Case


@contextlib.contextmanager
def cache_budget(size):
    """Chunks of this many bytes: small ones make many chunks and bands of rows."""
    before = kernels.cache_budget(size)
    try:
        yield
    finally:
        kernels.cache_budget(before)


@st.composite
def cases(draw):
    axes = draw(st.integers(0, 3))
    per_axis = st.tuples(*[st.integers(1, 3)] * axes)
    groups = draw(st.sampled_from([1, 1, 1, 2, 0])) if axes else 1
    channels, filters = draw(st.integers(1, 70)), draw(st.integers(1, 40))
    if not groups:  # depthwise
        groups, channels, filters = filters, 1, 1
    kernel, stride, dilation = draw(per_axis), draw(per_axis), draw(st.tuples(*[st.integers(1, 2)] * axes))
    padding = tuple(draw(st.integers(0, 3)) for _ in range(axes))
    geometry = Geometry((groups * filters, channels, *kernel), stride, padding, dilation, groups)
    spatial = [
        max(d * (k - 1) + 1 - 2 * p, 1) + draw(st.integers(0, 9 if axes < 3 else 3))
        for k, d, p in zip(kernel, dilation, padding, strict=True)
    ]
    nnz = draw(st.sampled_from([1, 7, 100, 10**6]))
    layout = draw(st.sampled_from(list(LAYOUTS)))
    dtype = draw(st.sampled_from([torch.float64, torch.float64, torch.float32]))
    batch = draw(st.integers(1, 5) | st.sampled_from([40, 67]))  # the large ones fill vectors with images
    return Case.of(geometry, spatial, draw(st.none() | recipes), batch, nnz, dtype, layout)


@given(cases(), st.sampled_from([1, 20_000, 10**6]))
@settings(max_examples=300)
def test_kernels_are_the_dense_operators(case, budget):
    with cache_budget(budget):
        case.check()


# Shapes that reach each stage: (filters, channels, *kernel), stride, padding, input size
SHAPES = {
    "linear": ((96, 64), (), (), ()),
    "linear, more outputs": ((200, 50), (), (), ()),
    "linear, lengths of odd factors": ((7 * 31, 9 * 5), (), (), ()),
    "linear, a large prime": ((10, 127), (), (), ()),
    "pointwise": ((40, 96, 1, 1), (1, 1), (0, 0), (6, 5)),
    "pointwise, strided": ((96, 40, 1, 1), (2, 2), (0, 0), (7, 6)),
    "thin factors": ((80, 90, 3, 3), (1, 1), (1, 1), (9, 8)),
    "thin factors, strided": ((80, 90, 3, 3), (2, 2), (1, 1), (9, 8)),
    "more filters than patch": ((70, 7, 3, 3), (1, 1), (1, 1), (6, 6)),
    "direct": ((33, 3, 3, 3), (1, 1), (1, 1), (8, 8)),
    "one axis": ((20, 30, 5), (2,), (2,), (33,)),
    "three axes": ((16, 20, 3, 3, 3), (1, 2, 1), (1, 0, 1), (5, 6, 4)),
    "unread pixels": ((10, 12, 2, 2), (3, 3), (0, 0), (10, 10)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("transform", [None, *TRANSFORMS])
def test_every_stage(transform, shape, layout):
    weight, stride, padding, spatial = SHAPES[shape]
    geometry = Geometry(weight, stride, padding, (1,) * len(spatial))
    for order, signs, rows in [
        ("spatial", "none", "lowest"),
        ("channel", "channel", "lowest"),
        ("channel", "none", "random"),
    ]:
        recipe = None if transform is None else TransformOffset(transform, order, signs, rows, 4)
        Case.of(geometry, spatial, recipe, batch=3, nnz=50, layout=layout).check()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", [name for name in SHAPES if "linear" not in name])
@pytest.mark.parametrize("transform", [None, *TRANSFORMS])
def test_images_that_fill_vectors(transform, shape, dtype):
    """Small channels-last images are neighbours in the packed grid; the batch does not divide into whole vectors."""
    weight, stride, padding, spatial = SHAPES[shape]
    geometry = Geometry(weight, stride, padding, (1,) * len(spatial))
    for order, signs in [("spatial", "none"), ("channel", "channel")]:
        recipe = None if transform is None else TransformOffset(transform, order, signs, "lowest", 4)
        Case.of(geometry, spatial, recipe, batch=67, nnz=50, dtype=dtype, layout="channels last").check()


def kind(shape, **options):
    return stage_kind(TransformOffset(**options).bind(shape), Geometry(shape, (1, 1), (0, 0), (1, 1)))


def test_options_stay_on_their_fast_stage():
    square = (64, 64, 3, 3)
    assert kind(square) == "product"
    assert kind(square, order="channel", signs="channel") == "spectrum"
    assert kind(square, order="channel", signs="channel", rows="random") == "spectrum"
    assert kind(square, transform="hadamard", signs="channel", rows="random") == "hadamard"
    assert kind((256, 64, 1, 1), signs="channel", rows="random") == "line"
    first, second, _ = stages.folded_product(TransformOffset("dct").bind(square), torch.float32).arguments
    # the rank of 64 channels, of which the paper's rows use a ninth, in an even and an odd half
    assert sum(factor.shape[0] for factor in first) == sum(factor.shape[1] for factor in second) < 24


@given(
    recipes.filter(lambda r: r.transform not in ("hadamard", "rotation") and r.signs != "position"),
    st.integers(2, 9),
    st.integers(1, 30),
)
def test_folded_factors_are_the_offset(recipe, channels, filters):
    offset = dataclasses.replace(recipe, signs="none").bind((filters, channels, 3))
    even, odd, weights = stages.folded_factors(offset)
    expected = offset.matrix(torch.float64).view(filters, channels, 3)
    for c in range(channels):
        near, sign = min(c, channels - 1 - c), 1 if c < channels / 2 else -1
        sine = odd[:, near] if near < odd.shape[1] else 0 * odd[:, 0]
        column = even[:, near, None] * weights[:, 0] + sign * sine[:, None] * weights[:, 1]
        assert_close(torch.from_numpy(column), expected[:, c])


ODD = {
    "one pixel": (Geometry((4, 6, 1, 1), (1, 1), (0, 0), (1, 1)), (1, 1), 2),
    "one channel": (Geometry((1, 1, 3, 3), (1, 1), (1, 1), (1, 1)), (5, 5), 2),
    "no batch": (Geometry((4, 70, 3, 3), (1, 1), (1, 1), (1, 1)), (5, 5), 0),
    "depthwise": (Geometry((12, 1, 3, 3), (2, 2), (1, 1), (1, 1), 12), (7, 6), 3),
    "padding wider than the input": (Geometry((3, 70, 3, 3), (1, 1), (4, 4), (1, 1)), (1, 2), 2),
    "kernel as large as the input": (Geometry((3, 70, 4, 4), (1, 1), (0, 0), (1, 1)), (4, 4), 2),
}


@pytest.mark.parametrize(
    "recipe", [None, TransformOffset("dct"), TransformOffset("hadamard", signs="channel")], ids=str
)
@pytest.mark.parametrize("nnz", [0, 1, 10**6])
@pytest.mark.parametrize("name", ODD)
def test_odd_sizes(name, nnz, recipe):
    geometry, spatial, batch = ODD[name]
    Case.of(geometry, spatial, recipe, batch, nnz).check()


def test_large_images_are_cut_into_bands():
    geometry = Geometry((8, 70, 3, 3), (1, 1), (1, 1), (1, 1))
    with cache_budget(100_000):
        Case.of(geometry, (60, 40), TransformOffset("dct"), batch=2, nnz=300).check()
        Case.of(dataclasses.replace(geometry, stride=(2, 2)), (61, 40), TransformOffset("dct"), nnz=300).check()


@pytest.fixture
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("name", ["dct", "dct_signed", "srht"])
def test_results_do_not_depend_on_the_number_of_threads(name):
    geometry = Geometry((96, 64, 3, 3), (1, 1), (1, 1), (1, 1))
    case = Case.of(geometry, (16, 16), TransformOffset.parse(name), batch=7, nnz=500, dtype=torch.float32)
    grad, results = torch.randn(7, 96, 16, 16), []
    for threads in (1, 2, 3, 2):
        torch.set_num_threads(threads)
        results.append([case.forward(), *case.backward(grad)])
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            # sums of 1,792 products in another order
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-3)
    for mine, theirs in zip(results[1], results[3], strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("needs", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1), (0, 0, 0)], ids=str)
@pytest.mark.parametrize("geometry", [ODD["depthwise"][0], Geometry((40, 70, 3, 3), (1, 1), (1, 1), (1, 1))], ids=str)
def test_only_what_is_needed_is_computed(geometry, needs):
    case = Case.of(geometry, (7, 6), TransformOffset("dct"), nnz=20)
    grad = torch.randn(2, geometry.filters, *case.output(), dtype=torch.float64)
    whole, part = case.backward(grad), case.backward(grad, tuple(map(bool, needs)))
    for needed, mine, theirs in zip(needs, part, whole, strict=True):
        assert (mine is not None) == bool(needed)
        if needed:
            assert_close(mine, theirs)


# --- what does not fit is refused, never read ------------------------------------------------------------------------


def arguments(**changes):
    """Arguments of a forward call that fit together, but for the changes."""
    geometry = [1, 6, 4, 3, 3, 1, 1, 1, 1, 1, 1]
    own = kernels.Sparse(geometry, torch.tensor([0, 5, 215]).numpy())
    fitting = {
        "geometry": geometry,
        "x": torch.zeros(2, 4, 5, 5),
        "offset": None,
        "alpha": 1.0,
        "sparse": own,
        "values": torch.zeros(3),
        "bias": None,
        "y": torch.zeros(2, 6, 5, 5),
        "threads": 1,
    }
    return {**fitting, **changes}


def test_arguments_that_fit():
    kernels.forward(**arguments())


EMPTY_OFFSET = kernels.Offset32(6, 1, 9, torch.arange(6, dtype=torch.int32).numpy(), torch.zeros(54).double().numpy())


@pytest.mark.parametrize(
    "changes",
    [
        {"x": torch.zeros(2, 3, 5, 5)},
        {"x": torch.zeros(2, 4, 5)},
        {"x": torch.zeros(2, 4, 5, 5, dtype=torch.float16)},
        {"x": torch.zeros(2, 4, 5, 5, dtype=torch.float64)},
        {"x": torch.zeros(2, 4, 5, 5, device="meta")},
        {"y": torch.zeros(2, 6, 5, 4)},
        {"y": torch.zeros(2, 6, 5, 5, dtype=torch.float64)},
        {"values": torch.zeros(2)},
        {"values": torch.zeros(6)[::2]},
        {"values": torch.zeros(3, dtype=torch.float64)},
        {"bias": torch.zeros(5)},
        {"threads": 0},
        {"sparse": kernels.Sparse([1, 6, 5], torch.tensor([0]).numpy())},
        {
            "offset": kernels.Offset32(
                6, 1, 9, torch.arange(6, dtype=torch.int32).numpy(), torch.zeros(54).double().numpy()
            )
        },
        {"geometry": [1, 6, 4, 3, 3, 1, 1, 1, 1, 1]},
        {"geometry": [1, 6, 4, 3, 3, 0, 1, 1, 1, 1, 1]},
    ],
    ids=lambda changes: str({n: re.sub(" at 0x.*", "", str(getattr(v, "shape", v))) for n, v in changes.items()})[:60],
)
def test_arguments_that_do_not_fit_are_errors(changes):
    with pytest.raises((ValueError, TypeError, BufferError)):
        kernels.forward(**arguments(**changes))


@pytest.mark.parametrize("positions", [[-1], [216], [3, 3], [5, 4]])
def test_positions_outside_of_the_weight_are_errors(positions):
    with pytest.raises(ValueError, match="sorted, distinct and within"):
        kernels.Sparse([1, 6, 4, 3, 3, 1, 1, 1, 1, 1, 1], torch.tensor(positions).numpy())


def test_tables_that_do_not_fit_are_errors():
    ones, index = torch.ones(4).double().numpy(), torch.arange(4, dtype=torch.int32).numpy()
    own = kernels.Offset64(4, 1, 1, index, ones)
    with pytest.raises(ValueError, match="above 31"):
        own.fourier(37, index, ones, index, ones, ones)
    with pytest.raises(ValueError, match="outside of the transform"):
        own.fourier(3, index, ones, index, ones, ones)
    with pytest.raises(ValueError, match="power of two"):
        own.hadamard(6, ones, index, 1.0)
    with pytest.raises(ValueError, match="does not have"):
        own.hadamard(4, ones, index[:2], 1.0)
    with pytest.raises(ValueError, match="do not fit together"):
        kernels.Offset64(4, 1, 1, index[:3], ones)


SETS = ["plain", "avx2", "avx512"]  # each has what is before it


@pytest.mark.process
@pytest.mark.parametrize("isa", SETS[: SETS.index(kernels.instruction_set())])
def test_every_lesser_instruction_set_gives_the_same(isa):
    """The best one of this machine is what all other tests run on."""
    files = [__file__, __file__.replace("test_kernels", "test_direct_kernels")]
    which = "every_stage or ((test_depthwise or test_pointwise) and dtype0)"
    code = "import sys, pytest; from dctps.ops.native import kernels; assert kernels.instruction_set() == sys.argv[1]; "
    code += f"sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-k', {which!r}, *sys.argv[2:]]))"
    environment = {**os.environ, "DCTPS_ISA": isa}
    subprocess.run([sys.executable, "-c", code, isa, *files], env=environment, check=True, capture_output=True)


@pytest.mark.process
def test_a_set_that_the_machine_lacks_is_the_next_one_it_has():
    code = "from dctps.ops.native import kernels; print(kernels.instruction_set())"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "DCTPS_ISA": "avx512"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == kernels.instruction_set()


@pytest.mark.parametrize("shape", ["linear", "pointwise", "thin factors"])
@pytest.mark.parametrize("name", ["dct", "dct_signed", "hartley", "srht"])
def test_one_image_never_reaches_another(name, shape):
    weight, stride, padding, spatial = SHAPES[shape]
    case = Case.of(
        Geometry(weight, stride, padding, (1,) * len(spatial)), spatial, TransformOffset.parse(name), batch=40
    )
    expected = case.forward()
    case.x[3] = math.inf
    changed = case.forward()
    others = [i for i in range(40) if i != 3]
    assert torch.equal(changed[others], expected[others])
    grad = torch.randn_like(expected)
    expected, _, _ = case.backward(grad, (True, False, False))
    grad[3] = math.nan
    changed, _, _ = case.backward(grad, (True, False, False))
    assert torch.equal(changed[others], expected[others])
