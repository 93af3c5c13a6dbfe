"""The seeded order is a permutation whose parts agree with the whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.data.order import (
    MASK,
    ROUNDS,
    derive_key,
    mix_bits_exactly,
    shuffled_positions,
    shuffled_sources,
)

KEYS = st.integers(-(2**70), 2**70)


def positions_naive(n: int, key: int) -> list[int]:
    """The network in Python integers."""
    half = max(1, (max(n - 1, 1).bit_length() + 1) // 2)
    keys = [derive_key(key, i) for i in range(ROUNDS)]
    found = []
    for item in range(n):
        value = n
        start = item
        while value >= n:
            left, right = start >> half, start % 2**half
            for word in keys:
                left, right = right, left ^ (mix_bits_exactly((right ^ word) & MASK) % 2**half)
            start = value = left << half | right
        found.append(value)
    return found


@pytest.mark.parametrize("key", [0, 1, 2**64 - 1])
def test_every_small_n_gives_a_permutation(key: int) -> None:
    for n in range(1, 301):
        np.testing.assert_array_equal(np.sort(shuffled_positions(n, key)), np.arange(n))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), KEYS)
def test_the_kernel_equals_its_naive_twin(n: int, key: int) -> None:
    assert shuffled_positions(n, key).tolist() == positions_naive(n, key)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 2**61), KEYS, st.data())
def test_the_inverse_undoes_and_parts_agree(n: int, key: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, n - 1))
    stop = min(n, start + data.draw(st.integers(0, 50)))
    whole = shuffled_positions(n, key, start, stop)
    assert whole.dtype == np.int64
    assert ((whole >= 0) & (whole < n)).all()
    for item, position in zip(range(start, stop), whole.tolist(), strict=True):
        assert shuffled_positions(n, key, item, item + 1).tolist() == [position]
        assert shuffled_sources(n, key, position, position + 1).tolist() == [item]


@pytest.mark.parametrize("n", [2**16, 2**16 + 1, 1_000_003])
def test_a_large_n_gives_a_permutation_and_its_inverse(n: int) -> None:
    positions = shuffled_positions(n, 3)
    assert (np.bincount(positions, minlength=n) == 1).all()
    np.testing.assert_array_equal(positions[shuffled_sources(n, 3)], np.arange(n))


@pytest.mark.parametrize("n", [1000, 20_000])
def test_positions_are_spread_evenly(n: int) -> None:
    """Over many keys, items of one stretch fall evenly into ten parts of the order."""
    parts = np.concatenate([shuffled_positions(n, key, 0, 20) * 10 // n for key in range(500)])
    counts = np.bincount(parts, minlength=10)
    expected = parts.size / 10
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 30  # nine degrees of freedom: exceeded by chance in 4 of 10,000


def test_small_orders_are_all_reached_about_equally() -> None:
    seen = [tuple(shuffled_positions(4, key).tolist()) for key in range(4800)]
    _, counts = np.unique(seen, axis=0, return_counts=True)
    assert counts.size == 24
    assert counts.min() > 0.5 * 200
    assert counts.max() < 2 * 200


def test_keys_and_their_parts_matter() -> None:
    keys = [derive_key(), *(derive_key(a, b) for a in range(-3, 4) for b in range(-3, 4))]
    assert len(set(keys)) == 50
    assert len({shuffled_positions(100, key).tobytes() for key in keys}) == 50
    assert all(0 <= key <= MASK for key in keys)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 6)])
def test_a_range_outside_is_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="is not in 0 to 5"):
        shuffled_positions(5, 0, start, stop)
