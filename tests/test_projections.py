"""Random subspaces: columns of length one, the two directions are adjoint, fast equals slow, seeds mean the same."""

import copy
import hashlib
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dctps.core.random import Stream
from dctps.methods.subspace import projections
from dctps.methods.subspace.projections import PROJECTIONS
from helpers.marks import every_projection
from helpers.oracles import power_of_two, transform_matrix
from helpers.tolerances import assert_close

LENET = [450, 2400, 48000, 9840, 820]
EXACT = [kind for kind in PROJECTIONS if kind != "fastfood"]
sizes = st.lists(st.integers(1, 12), min_size=1, max_size=4)


def matrix(projection) -> torch.Tensor:  # (D, d)
    unit = torch.eye(projection.shape[1], dtype=projection.dtype)
    return torch.stack([projection.apply(v) for v in unit], dim=1)


@pytest.fixture(scope="module", params=PROJECTIONS)
def lenet(request):
    """One per cent of the paper's LeNet."""
    return request.param, PROJECTIONS[request.param](LENET, 615, 0, torch.float32)


# --- the definitions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EXACT)
@given(sizes, st.integers(0, 99), st.data())
def test_columns_have_length_one(kind, sizes, seed, data):
    dimensions = data.draw(st.integers(1, sum(sizes)))
    U = matrix(PROJECTIONS[kind](sizes, dimensions, seed, torch.float64))
    assert U.shape == (sum(sizes), dimensions)
    assert_close(U.norm(dim=0), torch.ones(dimensions, dtype=torch.float64))


@every_projection
@given(sizes, st.integers(0, 99), st.data())
def test_the_two_directions_are_adjoint(kind, sizes, seed, data):
    projection = PROJECTIONS[kind](sizes, data.draw(st.integers(1, sum(sizes))), seed, torch.float64)
    U, g = matrix(projection), torch.randn(sum(sizes), dtype=torch.float64)
    v = torch.randn(projection.shape[1], dtype=torch.float64)
    assert_close(projection.apply(v), U @ v)
    assert_close(projection.adjoint(g), U.T @ g)


def test_dense_is_normal_numbers_column_by_column():
    stream = Stream(5, "projection/dense")
    U = np.stack([stream.normals(7) for _ in range(3)], axis=1)
    expected = U / np.sqrt((U * U).sum(axis=0))
    assert_close(matrix(PROJECTIONS["dense"]([3, 4], 3, 5, torch.float64)), torch.from_numpy(expected))


@given(sizes, st.integers(0, 99), st.data())
def test_fastfood_is_its_five_matrices(sizes, seed, data):
    D, d = sum(sizes), data.draw(st.integers(1, sum(sizes)))
    L = power_of_two(D)
    stream = Stream(seed, "projection/fastfood")
    order, normals, signs = stream.permutation(L), stream.normals(L), stream.signs(d)
    H = transform_matrix("hadamard", L) * math.sqrt(L)  # unnormalised: +-1
    B = torch.zeros(L, d, dtype=torch.float64)
    P = torch.zeros(L, L, dtype=torch.float64)
    for j in range(d):
        B[j, j] = signs[j]
    for i in range(L):
        P[i, order[i]] = 1
    G = torch.diag(torch.from_numpy(normals))
    y = H @ G @ P @ H @ B
    expected = y[:D] / (math.sqrt(L * (normals**2).sum()) * math.sqrt(D / L))
    assert_close(matrix(PROJECTIONS["fastfood"](sizes, d, seed, torch.float64)), expected)


@given(st.sampled_from([1, 2, 4, 8, 64]), st.integers(0, 99))
def test_fastfood_of_a_power_of_two_has_columns_of_length_one(size, seed):
    U = matrix(PROJECTIONS["fastfood"]([size], size, seed, torch.float64))
    assert_close(U.norm(dim=0), torch.ones(size, dtype=torch.float64))


def sparse_matrix(blocks: list[int], dimensions: int, seed: int, attempt: int = 0) -> torch.Tensor:
    """Entry by entry, columns one after the other in each block; columns that stay empty are drawn again."""
    parts = []
    for index, size in enumerate(blocks):
        name = f"projection/sparse/{attempt}/{index}"
        places = Stream(seed, name).successes(size * dimensions, 1 / math.sqrt(size)).tolist()
        signs = Stream(seed, f"{name}/signs").signs(len(places)).tolist()
        part = torch.zeros(size, dimensions, dtype=torch.float64)
        for place, sign in zip(places, signs, strict=True):
            part[place % size, place // size] = sign * size**0.25
        parts.append(part)
    U = torch.cat(parts)
    empty = (U == 0).all(dim=0)
    if empty.any():
        U[:, empty] = sparse_matrix(blocks, int(empty.sum()), seed, attempt + 1)
    return U / U.norm(dim=0)


@given(sizes, st.integers(0, 99), st.data())
def test_sparse_is_its_entries(sizes, seed, data):
    d = data.draw(st.integers(1, sum(sizes)))
    assert_close(matrix(PROJECTIONS["sparse"](sizes, d, seed, torch.float64)), sparse_matrix([sum(sizes)], d, seed))
    assert_close(matrix(PROJECTIONS["sparse_per_tensor"](sizes, d, seed, torch.float64)), sparse_matrix(sizes, d, seed))


@given(sizes, st.integers(0, 99), st.data())
def test_entries_of_a_sparse_column_are_equal_in_magnitude(sizes, seed, data):
    for column in matrix(PROJECTIONS["sparse"](sizes, data.draw(st.integers(1, sum(sizes))), seed, torch.float64)).T:
        entries = column[column != 0].abs()
        assert_close(entries, torch.full_like(entries, 1 / math.sqrt(len(entries))))


@given(st.integers(0, 99))
def test_entries_per_tensor_have_magnitudes_in_the_ratio_of_the_fourth_roots(seed):
    U = matrix(PROJECTIONS["sparse_per_tensor"]([16, 81], 5, seed, torch.float64)).abs()
    for column in U.T:
        first, second = column[:16].unique().tolist()[-1], column[16:].unique().tolist()[-1]
        if first and second:  # 16^(1/4) = 2, 81^(1/4) = 3
            assert first / second == pytest.approx(2 / 3)


# --- at the size of a network ----------------------------------------------------------------------------------------


def test_lengths_and_angles_of_lenets_columns(lenet):
    kind, projection = lenet
    unit = torch.eye(615)[::5]  # every fifth column
    U = torch.stack([projection.apply(v) for v in unit], dim=1).double()
    gram = U.T @ U
    lengths, cosines = gram.diagonal().sqrt(), gram[~torch.eye(len(gram), dtype=torch.bool)]
    # fastfood truncates 65,536 rows to 61,510: the lengths have a standard deviation of 0.0008
    assert (lengths - 1).abs().max() < (3e-3 if kind == "fastfood" else 1e-6)
    # in the mean square 1 / sqrt(D) for independent columns; those of fastfood share G, whose squares have variance 2.
    # 7,503 pairs tell it to a hundredth
    expected = math.sqrt(2 * 65536) / 61510 if kind == "fastfood" else 1 / math.sqrt(61510)
    assert cosines.square().mean().sqrt().item() == pytest.approx(expected, rel=0.05)


def test_memory_of_lenets_projections(lenet):
    kind, projection = lenet
    entries = projection.matrix.values().numel() if kind.startswith("sparse") else 0
    assert (
        projection.memory
        == {
            "dense": 61510 * 615 * 4,  # 151 MB
            "sparse": 16 * entries + 4 * (61510 + 615 + 2),
            "sparse_per_tensor": 16 * entries + 4 * (61510 + 615 + 2),
            "fastfood": 65536 * 8 + 615 * 4,
        }[kind]
    )


def test_density_of_lenets_sparse_projections(lenet):
    kind, projection = lenet
    if kind.startswith("sparse"):
        per_column = projection.matrix.values().numel() / 615
        expected = math.sqrt(61510) if kind == "sparse" else sum(map(math.sqrt, LENET))  # 248.0 and 416.6
        assert abs(per_column - expected) < 3 * math.sqrt(expected / 615)


# --- the same for ever -----------------------------------------------------------------------------------------------

GOLDEN = {
    "dense": "15e7b32878e7422c",
    "sparse": "9a90ad65d0de1c98",
    "sparse_per_tensor": "32f9784a9420eec7",
    "fastfood": "440fe4d103671e17",
}


@every_projection
def test_the_same_seed_gives_the_same_matrix_for_ever(kind):
    # pinned to the last bit: a state holds theta and the seed, so other numbers here would make it another network
    projection = PROJECTIONS[kind]([20, 30], 7, 3, torch.float32)
    tensors = {"dense": ["columns"], "fastfood": ["order", "gains", "signs"]}.get(kind, ["matrix"])
    held = [getattr(projection, name) for name in tensors]
    numbers = b"".join((t.to_dense() if t.layout == torch.sparse_csr else t).numpy().tobytes() for t in held)
    assert hashlib.sha256(numbers).hexdigest()[:16] == GOLDEN[kind]


@every_projection
@given(sizes, st.integers(0, 99), st.data())
def test_the_first_columns_do_not_depend_on_how_many_there_are(kind, sizes, seed, data):
    few = data.draw(st.integers(1, sum(sizes)))
    many = data.draw(st.integers(few, sum(sizes)))
    narrow, wide = (matrix(PROJECTIONS[kind](sizes, d, seed, torch.float64)) for d in (few, many))
    assert torch.equal(narrow, wide[:, :few])


@every_projection
def test_other_seeds_give_other_matrices(kind):
    first, second = (matrix(PROJECTIONS[kind]([40], 5, seed, torch.float32)) for seed in (0, 1))
    assert not torch.equal(first, second)


@every_projection
def test_nothing_touches_the_global_generators(kind):
    before, numpys = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    PROJECTIONS[kind]([40], 5, 0, torch.float32)
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == numpys).all()  # noqa: NPY002


# --- moving and copying ----------------------------------------------------------------------------------------------


@every_projection
def test_copies_share_and_moves_convert(kind):
    projection = PROJECTIONS[kind]([40], 5, 0, torch.float32)
    assert copy.deepcopy(projection) is projection
    assert projection.to(torch.device("cpu"), torch.float32) is projection
    double = projection.to(torch.device("cpu"), torch.float64)
    assert double.dtype == torch.float64
    assert projection.dtype == torch.float32
    assert_close(matrix(projection), matrix(double))


@pytest.mark.parametrize("kind", ["sparse", "sparse_per_tensor"])
def test_sparse_products_without_a_csr_kernel(kind, monkeypatch):
    projection = PROJECTIONS[kind]([30, 20], 7, 0, torch.float64)
    U, g = matrix(projection), torch.randn(50, dtype=torch.float64)
    monkeypatch.setattr(projections, "csr_works", lambda device, dtype: False)
    assert_close(matrix(projection), U)
    assert_close(projection.adjoint(g), U.T @ g)


def test_a_dense_projection_that_does_not_fit_says_what_does():
    with pytest.raises(
        ValueError, match=r"takes 4,000,000,000,000,000,000 bytes, more than there are; use kind='sparse'"
    ):
        PROJECTIONS["dense"]([10**9], 10**9, 0, torch.float32)
