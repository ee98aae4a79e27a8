"""Sampling positions: exact counts, uniformity, stability for ever, and what a bad support says."""

import collections
import itertools
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dctps import Support
from dctps.core.support import derive_seed, sample


def test_the_same_seed_gives_the_same_support_for_ever():
    # pinned: files that hold a seed instead of positions depend on these numbers
    assert Support.sample((4, 6), 5, seed=0).positions.tolist() == [1, 5, 12, 13, 14]
    assert sample(1 << 40, 4, seed=123).tolist() == [201472993942, 657196313037, 761304812549, 943144529187]
    assert sample(10, 8, seed=7).tolist() == [0, 1, 3, 4, 6, 7, 8, 9]
    assert derive_seed(0, "layer1.0.conv1") == 3918995512


@given(st.integers(1, 300), st.data())
def test_samples_are_sorted_distinct_and_in_range(size, data):
    count = data.draw(st.integers(0, size))
    drawn = sample(size, count, data.draw(st.integers(0, 2**63)))
    assert len(drawn) == count
    assert (np.diff(drawn) > 0).all()
    assert not count or (drawn[0] >= 0 and drawn[-1] < size)


def test_samples_are_the_first_distinct_words():
    words = [int(w) & 7 for w in np.random.PCG64(5).random_raw(100)]  # 6 needs three bits
    expected: list[int] = []
    for word in words:
        if word < 6 and word not in expected:
            expected.append(word)
    assert sample(6, 3, seed=5).tolist() == sorted(expected[:3])


def test_every_subset_is_equally_likely():
    draws = 6000
    counts = collections.Counter(tuple(sample(6, 3, seed).tolist()) for seed in range(draws))
    expected = draws / 20  # C(6, 3)
    chi2 = sum((counts[s] - expected) ** 2 / expected for s in itertools.combinations(range(6), 3))
    assert chi2 < 43.8  # 99.9 % quantile with 19 degrees of freedom; seeds are fixed, so this cannot flicker


def test_sampling_needs_memory_for_the_sample_only():
    tracemalloc.start()
    sample(1 << 32, 10_000, seed=0)
    assert tracemalloc.get_traced_memory()[1] < 3e6
    tracemalloc.stop()


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_mask_and_positions_are_inverse(shape, data):
    size = int(np.prod(shape))
    support = Support.sample(shape, data.draw(st.integers(0, size)), data.draw(st.integers(0, 99)))
    assert Support.from_mask(support.mask()) == support
    assert int(support.mask().sum()) == support.nnz


def test_index_type_is_the_narrowest():
    assert Support.sample((65536, 32768), 3).positions.dtype == torch.int32
    assert Support.sample((65536, 65536), 3).positions.dtype == torch.int64


@pytest.mark.parametrize(
    ("shape", "positions", "message"),
    [
        ((2, 3), [0, 6], "position 6 is out of range.*0 to 5"),
        ((2, 3), [-1, 2], "position -1 is out of range"),
        ((2, 3), [1, 1], "position 1 is repeated"),
        ((2, 3), [3, 1], "must be sorted"),
        ((2, 3), [0.5], "1-D integer tensor"),
        ((2, 3), [[0], [1]], "1-D integer tensor"),
        ((2, 0), [], "at least one weight"),
    ],
)
def test_bad_supports(shape, positions, message):
    with pytest.raises(ValueError, match=message):
        Support(shape, torch.tensor(positions))


def test_more_errors():
    with pytest.raises(ValueError, match="cannot place 7 weights"):
        Support.sample((2, 3), 7)
    with pytest.raises(ValueError, match="boolean tensor"):
        Support.from_mask(torch.ones(2, 3))
    with pytest.raises(ValueError, match="non-negative"):
        Support.sample((2, 3), 2, seed=-1)
