"""Random numbers that are pinned for ever, follow their definitions word by word, and have the right distributions."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dctps.core.random import Stream, log, total
from dctps.core.support import derive_seed


def test_the_same_seed_gives_the_same_numbers_for_ever():
    # pinned: states of projected networks name a seed and depend on these numbers, to the last bit
    assert Stream(0, "a").words(2).tolist() == GOLDEN_WORDS
    assert [x.hex() for x in Stream(0, "a").normals(3).tolist()] == GOLDEN_NORMALS
    assert Stream(0, "a").signs(8).tolist() == GOLDEN_SIGNS
    assert Stream(0, "a").permutation(6).tolist() == GOLDEN_ORDER
    assert Stream(0, "a").successes(60, 0.1).tolist() == GOLDEN_SUCCESSES
    assert Stream(1, "a").words(1) != Stream(0, "a").words(1) != Stream(0, "b").words(1)


GOLDEN_WORDS = [12205335245153788608, 9931031523683058948]
GOLDEN_NORMALS = ["0x1.0572f51111b90p+1", "0x1.f05cd7d709d1bp-2", "-0x1.97eec52bc09f4p-7"]
GOLDEN_SIGNS = [1.0, 1.0, 1.0, -1.0, -1.0, 1.0, 1.0, 1.0]
GOLDEN_ORDER = [4, 5, 2, 1, 0, 3]
GOLDEN_SUCCESSES = [3, 9, 16, 17, 31, 39, 46, 58]


def words(seed: int, name: str):
    generator = np.random.PCG64(derive_seed(seed, name))
    while True:
        yield int(generator.random_raw())


def uniform(word: int) -> float:
    return ((word >> 11) + 1) / 2**53


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_normals_are_the_polar_method(seed, count):
    stream, expected = words(seed, "n"), []
    while len(expected) < count:
        u, v = (2 * uniform(next(stream)) - 1 for _ in range(2))
        if 0 < u * u + v * v < 1:
            factor = math.sqrt(-2 * math.log(u * u + v * v) / (u * u + v * v))
            expected += [u * factor, v * factor]
    np.testing.assert_allclose(Stream(seed, "n").normals(count), expected[:count], rtol=1e-14)


@given(st.integers(0, 2**32), st.integers(1, 400), st.floats(0.01, 1))
def test_successes_are_the_places_between_the_gaps(seed, trials, density):
    stream, expected, place = words(seed, "s"), [], -1
    while density < 1 and place < trials:
        place += 1 + math.floor(math.log(uniform(next(stream))) / math.log(1 - density))
        expected += [place] * (place < trials)
    drawn = Stream(seed, "s").successes(trials, density)
    assert drawn.tolist() == (expected if density < 1 else list(range(trials)))


@given(st.integers(0, 2**32), st.lists(st.integers(1, 9), max_size=5))
def test_draws_go_on_where_the_last_ended(seed, counts):
    stream = Stream(seed, "w")
    parts = [stream.words(count) for count in counts]
    assert (
        np.concatenate([np.empty(0, dtype=np.uint64), *parts]).tolist() == Stream(seed, "w").words(sum(counts)).tolist()
    )


def test_normals_are_normal():
    x, bell = np.sort(Stream(3, "n").normals(100_000)), statistics.NormalDist()
    expected = np.array([bell.cdf(v) for v in x.tolist()])
    # Kolmogorov and Smirnov: 1.95 / sqrt(n) is exceeded once in a thousand; seeds are fixed, so this cannot flicker
    assert np.abs(expected - np.arange(len(x)) / len(x)).max() < 1.95 / math.sqrt(len(x))


def test_signs_and_successes_are_as_many_as_they_should():
    assert abs(Stream(4, "s").signs(100_000).sum()) < 3 * math.sqrt(100_000)
    count = len(Stream(4, "s").successes(10_000_000, 0.01))
    assert abs(count - 100_000) < 3 * math.sqrt(100_000)


def test_permutations_are_permutations():
    assert sorted(Stream(5, "p").permutation(1000).tolist()) == list(range(1000))


@given(st.lists(st.floats(1e-300, 1e300), min_size=1))
def test_the_logarithm(values):
    x = np.array(values)
    np.testing.assert_allclose(log(x), np.log(x), rtol=1e-15, atol=1e-16)


def test_the_sum_is_taken_in_order():
    # each 1e-16 is lost in the 1 before it; added among themselves first, as np.sum does, they are not
    terms = np.array([1.0] + [1e-16] * 1000)
    assert total(terms) == 1.0 < np.sum(terms)


def test_a_negative_seed_is_refused():
    with pytest.raises(ValueError, match="a seed is a non-negative integer, not -1"):
        Stream(-1, "a")
