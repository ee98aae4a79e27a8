"""Fast transforms against the cosine sums, for every entry of the registry."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dctps.core.transforms import TRANSFORMS, Separable, matrix
from dctps.core.transforms import cosine as transforms
from helpers import oracles
from helpers.tolerances import assert_close

names = st.sampled_from(list(TRANSFORMS))
lengths = st.one_of(st.integers(1, 48), st.sampled_from([53, 61, 64, 97, 101]))
every = pytest.mark.parametrize("name", TRANSFORMS)


@given(names, lengths)
def test_entries_are_the_definition_and_orthonormal(name, length):
    q = TRANSFORMS[name].padded(length)
    fast = matrix(TRANSFORMS[name], q)
    assert_close(fast, oracles.transform_matrix(name, q))
    assert_close(fast @ fast.T, torch.eye(q, dtype=torch.float64))


@given(names, lengths, st.sampled_from([torch.float32, torch.float64]), st.integers(0, 2), st.integers(0, 2**32))
def test_apply_and_adjoint_are_products_along_any_axis(name, length, dtype, axis, seed):
    transform = TRANSFORMS[name]
    q = transform.padded(length)
    full = matrix(transform, q).to(dtype)
    x = torch.randn(2, 3, q, dtype=dtype, generator=torch.Generator().manual_seed(seed)).movedim(-1, axis)
    expected = torch.tensordot(x, full, dims=([axis], [1])).movedim(-1, axis)
    assert_close(transform.apply(x, axis), expected)
    assert_close(transform.adjoint(x, axis), torch.tensordot(x, full, dims=([axis], [0])).movedim(-1, axis))


@given(lengths, st.booleans())
def test_the_cosine_transform_without_scipy(length, inverse):
    x = torch.randn(3, length, dtype=torch.float64)
    full = oracles.transform_matrix("dct", length)
    assert_close(transforms._dct_fft(x, inverse), x @ (full if inverse else full.T))


@pytest.mark.parametrize("name", [name for name, transform in TRANSFORMS.items() if isinstance(transform, Separable)])
def test_split_is_the_addition_theorem(name):
    k, a, b, q = torch.arange(64), torch.arange(8), 8 * torch.arange(8), 64  # disjoint bits, as Hadamard needs
    left, right = TRANSFORMS[name].split(k, a, b, q)
    whole = TRANSFORMS[name].entries(k, (a[:, None] + b).flatten(), q)
    assert_close(torch.einsum("rka,rkb->kab", left, right).flatten(1), whole)


@every
@pytest.mark.parametrize("length", [1, 2, 7, 16])
def test_gradients(name, length):
    transform = TRANSFORMS[name]
    x = torch.randn(2, transform.padded(length), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(transform.apply, x)
    assert torch.autograd.gradcheck(transform.adjoint, x)
    assert torch.autograd.gradgradcheck(transform.apply, x)


@every
@pytest.mark.parametrize("length", [4096, 4099, 65536])
def test_long_lines_keep_their_norm_and_come_back(name, length):
    transform = TRANSFORMS[name]
    x = torch.randn(2, transform.padded(length), dtype=torch.float64)
    y = transform.apply(x)
    torch.testing.assert_close(y.norm(), x.norm(), rtol=1e-12, atol=0)
    assert_close(transform.adjoint(y), x)


@every
def test_half_types_are_computed_in_float32(name):
    x = torch.randn(5, 16).bfloat16()
    y = TRANSFORMS[name].apply(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, TRANSFORMS[name].apply(x.float()).bfloat16())


@every
def test_empty_batches_and_integers(name):
    assert TRANSFORMS[name].apply(torch.zeros(0, 8)).shape == (0, 8)
    with pytest.raises(ValueError, match="floating point"):
        TRANSFORMS[name].apply(torch.ones(8, dtype=torch.int64))


def test_hadamard_says_which_lengths_it_has():
    with pytest.raises(ValueError, match="power of two, not 6"):
        TRANSFORMS["hadamard"].apply(torch.zeros(6))


def test_the_operator_is_well_formed():
    x = torch.randn(3, 6, requires_grad=True)
    torch.library.opcheck(transforms._dct, (x, False))
    torch.library.opcheck(transforms._dct, (x, True))
