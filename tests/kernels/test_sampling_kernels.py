"""Hash tables and the choice of a batch's labels against their naive twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskxml.kernels.cpu import sampling
from daskxml.kernels.cpu.thread_team import ThreadTeam
from harness import naive_sampling
from harness.kernel_cases import modest, normal, random_csr, seeds

ONE, THREE = ThreadTeam(1), ThreadTeam(3)
WAYS = (sampling, ONE), (sampling, THREE), (naive_sampling, None)
counts = st.integers(0, 40)


def places(labels, ids):
    """``ids`` with room for all labels, and where each label stands."""
    held, place = np.zeros(labels, np.int32), np.full(labels, -1, np.int32)
    held[: len(ids)], place[ids] = ids, np.arange(len(ids))
    return held, place


def both(name, ids, place, *operands):
    """The same call of a function and its twin; what they leave must be equal."""
    fast, slow = (ids.copy(), place.copy()), (ids.copy(), place.copy())
    found = (
        getattr(sampling, name)(*fast, *operands),
        getattr(naive_sampling, name)(*slow, *operands),
    )
    assert found[0] == found[1]
    np.testing.assert_array_equal(fast[0][: found[0]], slow[0][: found[0]])
    np.testing.assert_array_equal(fast[1], slow[1])
    return fast[0][: found[0]], fast[1]


@modest
@given(seeds, st.integers(0, 30), st.integers(1, 5), st.integers(1, 9))
def test_signs_become_keys(seed, rows, tables, bits):
    rng = np.random.default_rng(seed)
    projected, extra = normal(rng, rows, tables * bits), np.round(normal(rng, rows))
    weights = normal(rng, tables * bits)
    fast, slow = np.empty((2, tables, rows), np.int32)
    sampling.sign_keys(ONE, fast, projected, extra, weights)
    naive_sampling.sign_keys(None, slow, projected, extra, weights)
    np.testing.assert_array_equal(fast, slow)


@modest
@given(seeds, st.integers(0, 9), st.floats(0, 1), st.booleans())
def test_winners_become_keys(seed, rows, density, skips_zeros):
    rng = np.random.default_rng(seed)
    x = np.round(normal(rng, rows, 16)) * (rng.random((rows, 16)) < density)
    bins = rng.permuted(np.tile(np.arange(16), (6, 1)), axis=1).reshape(4, 3, 8).astype(np.int32)
    fast, slow = np.empty((2, 4, rows), np.int32)
    sampling.winner_keys(ONE, fast, x.astype(np.float32), bins, skips_zeros)
    naive_sampling.winner_keys(None, slow, x, bins, skips_zeros)
    np.testing.assert_array_equal(fast, slow)
    assert ((fast >= 0) & (fast < 8**3)).all()


def test_empty_bins_borrow_winners():
    x = np.zeros((2, 16), np.float32)
    x[0, 11] = 2.0
    bins = np.arange(16, dtype=np.int32).reshape(2, 1, 8)
    keys = np.empty((2, 2), np.int32)
    sampling.winner_keys(ONE, keys, x, bins, True)
    assert keys.tolist() == [[3, 0], [3, 0]]  # the lone winner stands in everywhere; 0 for none


@modest
@given(seeds, st.integers(1, 200), st.integers(1, 5), st.integers(1, 40))
def test_buckets(seed, labels, tables, buckets):
    keys = np.random.default_rng(seed).integers(0, buckets, (tables, labels)).astype(np.int32)
    found = []
    for ops, team in WAYS:
        starts = np.empty((tables, buckets + 1), np.int32)
        members = np.empty((tables, labels), np.int32)
        ops.fill_buckets(team, starts, members, keys)
        found.append((starts, members))
    for starts, members in found[:2]:
        np.testing.assert_array_equal(starts, found[2][0])
        np.testing.assert_array_equal(members, found[2][1])


def test_threads_share_large_tables():
    keys = np.random.default_rng(0).integers(0, 4, (8, 40_000)).astype(np.int32)
    results = []
    for ops, team in WAYS[:2]:
        starts, members = np.empty((8, 5), np.int32), np.empty(keys.shape, np.int32)
        ops.fill_buckets(team, starts, members, keys)
        results.append(members)
    np.testing.assert_array_equal(*results)


@modest
@given(seeds, st.floats(0, 1), counts)
def test_targets_are_added_once_and_found_again(seed, density, rows):
    rng = np.random.default_rng(seed)
    y = random_csr(rng, 8, 30, density, ones=True)
    chosen = rng.integers(0, 8, rows)
    ids, place = both("add_targets", *places(30, [4, 17]), 2, y, chosen)
    assert sorted(ids) == sorted({4, 17, *np.concatenate([[4], *labels_of(y, chosen)])})
    fast, slow = (np.zeros(rows + 1, np.int64) + 3 for _ in range(2))
    room = 3 + sum(len(own) for own in labels_of(y, chosen))
    indices = np.full((2, room), -9, np.int32)
    sampling.write_target_positions(fast, indices[0], place, y, chosen)
    naive_sampling.write_target_positions(slow, indices[1], place, y, chosen)
    np.testing.assert_array_equal(fast, slow)
    np.testing.assert_array_equal(*indices)
    for i, own in enumerate(labels_of(y, chosen)):
        found = indices[0][fast[i] : fast[i + 1]]
        assert (np.diff(found) > 0).all()
        assert sorted(ids[found]) == own.tolist()
    sampling.clear_positions(place, ids)
    assert (place == -1).all()


def labels_of(y, rows):
    return [y.indices[y.indptr[row] : y.indptr[row + 1]] for row in rows]


@modest
@given(seeds, st.integers(1, 60), st.integers(0, 70))
def test_random_labels(seed, labels, most):
    start = np.random.default_rng(seed).permutation(labels)[: labels // 3]
    ids, place = both("add_random", *places(labels, start), len(start), most, seed)
    assert len(set(ids)) == len(ids) == max(len(start), min(most, labels))
    assert (np.flatnonzero(place >= 0) == np.sort(ids)).all()
    assert place.min(initial=0) >= -1


@pytest.mark.parametrize("most", [3, 8])  # drawn, and left out
def test_every_label_is_drawn_equally_often(most):
    hits = np.zeros(10)
    for key in range(3000):
        ids, place = places(10, [0])
        hits[ids[: sampling.add_random(ids, place, 1, most, key)]] += 1
    expected = (most - 1) / 9 * 3000
    assert np.abs(hits[1:] - expected).max() < 5 * np.sqrt(expected * (10 - most) / 9)


@modest
@given(seeds, st.integers(0, 50))
def test_rows_are_taken(seed, count):
    rng = np.random.default_rng(seed)
    matrix, vector = normal(rng, 9, 5), normal(rng, 9)
    ids = rng.integers(0, 9, count).astype(np.int32)
    for ops, team in WAYS[::2]:
        rows, numbers = np.empty((count, 5), "f"), np.empty(count, "f")
        ops.take_rows(team, rows, matrix, ids)
        ops.take_rows(team, numbers, vector, ids)
        np.testing.assert_array_equal(rows, matrix[ids])
        np.testing.assert_array_equal(numbers, vector[ids])
