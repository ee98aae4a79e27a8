"""BatchNorm with residual and activation in one operation: torch's composition is the definition."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from dctps.ops import native, normalise
from dctps.ops.normalise import ACTIVATIONS, composed
from helpers.tolerances import assert_close

kernels = pytest.mark.skipif(native.kernels is None, reason="the native kernels are not there")

# small planes and large ones, few channels that are folded, more columns than a tile has, rows that fill no vector
SHAPES = [
    (5, 3),
    (300, 48),
    (6, 100, 7),
    (2, 7, 3, 4, 5),
    (7, 64, 8, 8),
    (4, 24, 5, 5),
    (3, 5, 17, 17),
    (2, 3, 40, 41),
    (2, 9000, 1, 2),
    (600, 8, 2, 2),
    (65, 130, 4, 4),
    (2, 1, 3, 3),
    (1, 2, 70, 70),
]


def laid_out(shape, channels_last, dtype=torch.float64, scale=3.0, shift=1.0):
    x = torch.randn(shape, dtype=dtype) * scale + shift
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if channels_last else x


def results(operation, x, weight, bias, residual, grad, training, activation, momentum=0.1):
    """The output, the running statistics and all gradients."""
    channels, kind = x.shape[1], {"dtype": x.dtype}
    mean, var = torch.full((channels,), 0.5, **kind), torch.full((channels,), 2.0, **kind)
    y = operation(x, weight, bias, mean, var, training, momentum, 1e-5, activation, residual)
    inputs = [t for t in (x, weight, bias, residual) if t is not None]
    return [y.detach(), mean, var, *torch.autograd.grad(y, inputs, grad)]


def compare(shape, channels_last, activation, has_residual, training, affine):
    dtype = torch.float64
    x, residual, grad = (laid_out(shape, channels_last, dtype) for _ in range(3))
    x.requires_grad_()
    added = residual.requires_grad_() if has_residual else None
    weight, bias = (torch.randn(shape[1], dtype=dtype, requires_grad=True) if affine else None for _ in range(2))
    arguments = x, weight, bias, added, grad, training, activation
    for ours, theirs in zip(results(normalise.normalise, *arguments), results(composed, *arguments), strict=True):
        assert_close(ours, theirs)


@kernels
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_torch_forwards_and_backwards(shape, channels_last):
    torch.manual_seed(0)
    for rest in itertools.product(ACTIVATIONS, [False, True], [True, False], [True, False]):
        compare(shape, channels_last, *rest)


@kernels
@given(
    shape=st.tuples(st.integers(2, 9), st.integers(1, 140), st.integers(1, 19), st.integers(1, 19)),
    flags=st.tuples(st.booleans(), st.sampled_from(list(ACTIVATIONS)), st.booleans(), st.booleans(), st.booleans()),
    seed=st.integers(0, 99),
)
def test_equals_torch_on_any_shape(shape, flags, seed):
    torch.manual_seed(seed)
    compare(shape, *flags)


@kernels
@pytest.mark.parametrize("channels_last", [False, True])
def test_float32(channels_last):
    torch.manual_seed(0)
    for activation, residual in itertools.product(ACTIVATIONS, [False, True]):
        x = laid_out((16, 40, 9, 9), channels_last, torch.float32).requires_grad_()
        r = laid_out((16, 40, 9, 9), channels_last, torch.float32).requires_grad_() if residual else None
        grad, weight, bias = (
            torch.randn(x.shape),
            torch.ones(40, requires_grad=True),
            torch.zeros(40, requires_grad=True),
        )
        found = results(normalise.normalise, x, weight, bias, r, grad, True, activation)
        x, r, grad, weight, bias = (
            None if t is None else t.detach().double().requires_grad_() for t in (x, r, grad, weight, bias)
        )
        for ours, exact in zip(found, results(composed, x, weight, bias, r, grad, True, activation), strict=True):
            assert_close(ours, exact)


@kernels
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shape", [(64, 20, 4, 4), (16, 8, 32, 32)])
def test_a_mean_far_from_zero_costs_no_digits(shape, channels_last):
    """x is 1e4 + N(0, 1). Sums of x^2 in float32 would lose the variance; the inputs are exact in both types."""
    torch.manual_seed(0)
    x = laid_out(shape, channels_last, torch.float32, 1.0, 1e4).requires_grad_()
    exact, grad = x.detach().double().requires_grad_(), torch.randn(shape)
    found = results(normalise.normalise, x, None, None, None, grad, True, "none")
    wanted = results(composed, exact, None, None, None, grad.double(), True, "none")
    for ours, theirs in zip(found, wanted, strict=True):
        assert_close(ours, theirs)


@kernels
def test_results_do_not_depend_on_the_number_of_threads():
    x, grad = laid_out((40, 96, 12, 12), True, torch.float32).requires_grad_(), torch.randn(40, 96, 12, 12)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(results(normalise.normalise, x, None, None, None, grad, True, "relu"))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@kernels
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_first_and_second_derivatives(activation, residual, training):
    torch.manual_seed(1)
    x, r = (torch.randn(4, 3, 2, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    weight, bias = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    mean, var = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)

    def run(x, weight, bias, r):
        running = (mean.clone(), var.clone())
        return normalise.normalise(x, weight, bias, *running, training, 0.1, 1e-2, activation, r if residual else None)

    assert torch.autograd.gradcheck(run, (x, weight, bias, r))
    assert torch.autograd.gradgradcheck(run, (x, weight, bias, r))


@kernels
def test_a_large_output_is_written_past_the_caches():
    torch.manual_seed(0)
    for channels_last in (False, True):
        compare((32, 64, 36, 36), channels_last, "relu", True, True, True)


@kernels
def test_infinities_and_nan_pass_as_in_torch():
    x = torch.randn(4, 3, 5, 5)
    x[1, 2, 3, 4] = float("nan")
    y = normalise.normalise(x, None, None, torch.zeros(3), torch.ones(3), False, 0.1, 1e-5, "relu")
    assert torch.equal(y.isnan(), x.isnan())


@kernels
def test_strides_of_any_kind():
    x = torch.randn(6, 5, 8, 9, dtype=torch.float64)[:, :, ::2].requires_grad_()
    grad = torch.randn(5, 1, 1, dtype=torch.float64).expand(6, 5, 4, 9)
    r = torch.randn(6, 5, 4, 9, dtype=torch.float64).contiguous(memory_format=torch.channels_last).requires_grad_()
    arguments = x, None, None, r, grad, True, "relu"
    for ours, theirs in zip(results(normalise.normalise, *arguments), results(composed, *arguments), strict=True):
        assert_close(ours, theirs)


@kernels
def test_the_arguments_of_the_kernels_are_checked():
    x, saved = torch.randn(4, 3, 5, 5), torch.empty(15)
    rest = None, None, None, None, None, True, 0.1, 1e-5, 0
    with pytest.raises(ValueError, match="another shape"):
        native.kernels.normalise_forward(x, *rest, torch.empty(4, 3, 5, 6), saved, 1)
    with pytest.raises(ValueError, match="contiguous vector of 15"):
        native.kernels.normalise_forward(x, *rest, torch.empty_like(x), torch.empty(3), 1)
    with pytest.raises(ValueError, match="dense"):
        native.kernels.normalise_forward(x[:, :, ::2], *rest, torch.empty(4, 3, 3, 5), saved, 1)


def test_where_the_kernels_do_not_serve_torch_does():
    x = torch.randn(4, 3, 5, 5)
    plain = F.relu(F.batch_norm(x.bfloat16(), None, None, None, None, True))
    assert_close(normalise.normalise(x.bfloat16(), None, None, None, None, True, 0.1, 1e-5, "relu"), plain)
    assert normalise.why_composed(x.bfloat16(), [], True) is not None
    assert normalise.why_composed(x.to("meta"), [], True) is not None
    with torch.autocast("cpu"):
        assert normalise.why_composed(x, [], True) is not None


def test_an_unknown_activation():
    with pytest.raises(ValueError, match="relu6"):
        normalise.normalise(torch.randn(4, 3), None, None, None, None, True, 0.1, 1e-5, "gelu")
