"""Kernels on sparse rows against their naive twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskxml.core.arrays import Csr
from daskxml.kernels.cpu import sparse as cpu_sparse
from daskxml.kernels.cpu import thread_team
from daskxml.kernels.operands import Drop
from harness.kernel_cases import (
    EVERY,
    EVERY_THREADS,
    NAIVE,
    close,
    group_entries,
    modest,
    normal,
    random_csr,
    seeds,
    wide,
)
from harness.naive_sparse import dense_rows


@pytest.fixture(scope="module", autouse=True)
def _threads_for_the_smallest_work():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_sparse, "_GRAIN", 1)
        patch.setattr(thread_team, "ROW_GRAIN", 1)
        yield


@st.composite
def sparse_batches(draw):
    """A matrix with empty rows, a batch with duplicates (or none), and a generator."""
    rng = np.random.default_rng(draw(seeds))
    x = random_csr(rng, draw(st.integers(1, 9)), draw(st.integers(1, 12)), draw(st.floats(0, 1)))
    rows = draw(st.lists(st.integers(0, x.rows - 1), max_size=8))
    rate = draw(st.sampled_from([0.0, 0.3, 0.9]))
    drop = Drop(rate=rate, key=draw(st.integers(0, 2**64 - 1)), first_row=draw(st.integers(0, 5)))
    return x, np.array(rows, np.int64), drop, rng


@EVERY_THREADS
@modest
@given(sparse_batches(), st.sampled_from([1, 3, 16, 40]))
def test_sparse_forward_and_update(fast, batch, units):
    x, rows, drop, rng = batch
    weight, bias = normal(rng, x.columns, units), normal(rng, units)
    out, slow = fast.empty((len(rows), units)), NAIVE.empty((len(rows), units))
    fast.sparse_forward(out, x, rows, weight, bias, drop)
    NAIVE.sparse_forward(slow, x, rows, wide(weight), wide(bias), drop)
    close(out, slow, 1e-4)
    delta, updated = normal(rng, len(rows), units), wide(weight)
    fast.sparse_update(weight, x, rows, delta, -0.5, drop)
    NAIVE.sparse_update(updated, x, rows, wide(delta), -0.5, drop)
    close(weight, updated, 1e-4)


@EVERY
@modest
@given(sparse_batches())
def test_densify_counts_and_lengths(ops, batch):
    x, rows, drop, _ = batch
    out, slow = ops.empty((len(rows), x.columns)), NAIVE.empty((len(rows), x.columns))
    ops.densify(out, x, rows, drop)
    NAIVE.densify(slow, x, rows, drop)
    close(out, slow)
    lengths = ops.empty(len(rows))
    ops.row_lengths(lengths, x, rows)
    assert lengths.tolist() == [x.indptr[r + 1] - x.indptr[r] for r in rows]
    assert ops.nonzeros(x, rows) == NAIVE.nonzeros(x, rows) == lengths.sum()


@EVERY
def test_untouched_features_keep_their_bits(ops):
    x = Csr(np.array([0, 2]), np.array([1, 3], np.int32), np.ones(2, np.float32), 5)
    weight = np.full((5, 4), np.nan, np.float32)
    weight[[1, 3]] = 0.0
    ops.sparse_update(weight, x, np.array([0]), np.ones((1, 4), np.float32), 1.0)
    assert np.isnan(weight[[0, 2, 4]]).all()
    assert (weight[[1, 3]] == 1.0).all()


@EVERY
def test_a_matrix_of_ones_needs_no_values(ops):
    x = Csr(np.array([0, 2]), np.array([1, 3], np.int32), None, 5)
    out = ops.empty((1, 5))
    ops.densify(out, x, np.array([0]))
    assert out.tolist() == [[0, 1, 0, 1, 0]]


@st.composite
def segments(draw):
    """A few segments of rows of one matrix, with dropout or without."""
    rng = np.random.default_rng(draw(seeds))
    x = random_csr(rng, draw(st.integers(1, 7)), draw(st.integers(1, 12)), draw(st.floats(0, 1)))
    x.data[rng.random(len(x.data)) < 0.1] = 0.0
    sizes = draw(st.lists(st.integers(0, 6), max_size=3))
    key, rate = draw(st.integers(0, 2**64 - 1)), draw(st.sampled_from([0.0, 0.4]))
    return x, [rng.integers(0, x.rows, size) for size in sizes], key, rate, rng


@EVERY_THREADS
@modest
@given(segments(), st.sampled_from([1, 3, 16, 40]))
def test_entries_are_grouped_and_gathered(fast, case, units):
    x, parts, key, rate, rng = case
    delta = normal(rng, sum(map(len, parts)), units)
    held, expected = collect(fast, x, parts, key, rate), np.zeros((x.columns, units))
    place = 0
    for rows in parts:
        drop = Drop(rate=rate, key=key, first_row=place)
        expected += dense_rows(x, rows, drop).T @ delta[place : place + len(rows)]
        place += len(rows)
    for kernels, given_delta in ((fast, delta), (NAIVE, wide(delta))):
        features, starts, rows, values, count = group(kernels, held, x.columns)
        out = kernels.empty((count, units))
        kernels.gather_rows(out, starts[: count + 1], rows, values, given_delta)
        dense = np.zeros_like(expected)
        dense[features[:count]] = out
        close(dense, expected, 1e-4)


def collect(kernels, x, parts, key, rate):
    """The entries by the fast kernels, which must be the naive ones'."""
    columns, places, values, place = [], [], [], 0
    for rows in parts:
        drop, room = Drop(rate=rate, key=key, first_row=place), kernels.nonzeros(x, rows)
        found = []
        for each in (kernels, NAIVE):
            out = (np.empty(room, "i4"), np.empty(room, "i4"), np.empty(room, "f4"))
            count = each.feature_entries(out, x, rows, place, drop)
            nonzero = out[2][:count] != 0  # with dropout an entry of zero may be left out or not
            found.append([array[:count][nonzero] for array in out])
        for mine, naive in zip(*found, strict=True):
            np.testing.assert_allclose(mine, naive, rtol=1e-6)
        for joined, part in zip((columns, places, values), found[0], strict=True):
            joined.append(part)
        place += len(rows)
    kinds = ("i4", "i4", "f4")
    lists = zip((columns, places, values), kinds, strict=True)
    return tuple(np.concatenate([np.empty(0, kind), *arrays]) for arrays, kind in lists)


def group(kernels, entries, columns):
    size = len(entries[0]) + 1
    outs = (np.empty(size, "i4"), np.empty(size, "i8"), np.empty(size, "i4"), np.empty(size, "f4"))
    counts = np.zeros(columns, "i4")
    count = group_entries(kernels, *outs, entries, counts)
    assert not counts.any()
    assert len(set(outs[0][:count].tolist())) == count
    return *outs, count
