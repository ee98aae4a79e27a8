"""Elias-Fano codes: exact inverses, exact lengths, few bits, and no trust in what is read."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dctps.core.elias_fano import coded_length, decode, encode
from dctps.core.support import sample


@given(st.integers(1, 2**40), st.data())
def test_decode_inverts_encode(size, data):
    count = data.draw(st.integers(0, min(size, 200)))
    positions = sample(size, count, data.draw(st.integers(0, 99)))
    code = encode(positions, size)
    assert len(code) == coded_length(size, count)
    assert decode(code, size, count).tolist() == positions.tolist()


def test_a_code_by_hand():
    # 3 positions below 16: low = floor(log2(16 / 3)) = 2 bits; 1 = 00|01, 6 = 01|10, 15 = 11|11
    # plane 0: 1 0 1, plane 1: 0 1 1; unary: ones at 0 + 0, 1 + 1, 3 + 2 of 3 + 3 bits
    assert encode(np.array([1, 6, 15]), 16).tolist() == [0b10100000, 0b01100000, 0b10100100]


@pytest.mark.parametrize("density", [0.5, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5])
def test_bits_a_position(density):
    count = 10_000
    size = int(count / density)
    assert 8 * len(encode(sample(size, count, 0), size)) / count < 2 + math.log2(1 / density) + 0.01


@given(st.integers(1, 10**6), st.data())
def test_any_bytes_decode_to_sorted_positions_or_raise(size, data):
    count = data.draw(st.integers(0, min(size, 50)))
    code = np.array(data.draw(st.binary(min_size=0, max_size=200)), dtype="S")
    code = np.frombuffer(code.tobytes(), dtype=np.uint8)[: coded_length(size, count)]
    try:
        positions = decode(code, size, count)
    except ValueError:
        return
    assert len(positions) == count
    assert (np.diff(positions >> max(0, (size // max(1, count)).bit_length() - 1)) >= 0).all()
