"""The kernels of sets of labels, one for each row, against their naive twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import close, modest, normal, random_csr, seeds

from daskxml.ops import Lookup, RowSets
from daskxml.ops.naive import NaiveKernels
from daskxml.ops.numpy_kernels import NumpyKernels

FAST, NAIVE, LANES = NumpyKernels(1), NaiveKernels("float64"), NumpyKernels(3)
LABELS, FIRST = 40, 2  # and rows of the batch that belong to another segment


def lookup(rng, kernels, tables, buckets, rows):
    keys = rng.integers(0, buckets, (tables, LABELS)).astype(np.int32)
    starts = np.empty((tables, buckets + 1), np.int32)
    members = np.empty((tables, LABELS), np.int32)
    kernels.fill_buckets(starts, members, keys)
    return Lookup(rng.integers(0, buckets, (tables, rows)).astype(np.int32), starts, members)


def empty_sets(kernels, y, rows, active):
    starts = np.full(FIRST + len(rows) + 1, 0, np.int64)
    kernels.size_sets(starts[FIRST:], y, rows, active)
    pairs, total = starts[-1], len(starts) - 1
    ids, owners = np.full((2, pairs), -7, np.int32)
    own, certain = np.full((2, total), 0, np.int32)
    return RowSets(starts, ids, owners, own, certain)


@modest
@given(
    seeds, st.integers(0, 12), st.integers(1, LABELS), st.integers(0, 6), st.integers(1, 9),
    st.floats(0, 1),
)  # fmt: skip
def test_choices(seed, count, active, tables, buckets, random):
    rng = np.random.default_rng(seed)
    y, rows = random_csr(rng, 8, LABELS, 0.1, ones=True), rng.integers(0, 8, count)
    found = lookup(rng, FAST, tables, buckets, FIRST + count)
    made = []
    for kernels in (FAST, LANES, NAIVE):
        sets = empty_sets(kernels, y, rows, active)
        marks = np.zeros((kernels.lanes, 2, LABELS), np.int32)
        kernels.choose_sets(sets, y, rows, FIRST, found, random, seed, marks)
        assert not marks[:, 0].any()
        made.append(sets)
    for name in RowSets.__slots__:
        fast, lanes, naive = (getattr(sets, name) for sets in made)
        np.testing.assert_array_equal(fast, naive)
        np.testing.assert_array_equal(fast, lanes)
    for row, ids in enumerate(np.split(made[0].ids, made[0].starts[FIRST + 1 : -1])[:count]):
        assert len(np.unique(ids)) == len(ids) >= active
        assert (made[0].rows[made[0].starts[FIRST + row] :][: len(ids)] == FIRST + row).all()


@pytest.mark.parametrize("active", [4, 9])  # drawn, and left out
def test_every_label_is_drawn_equally_often(active):
    y, hits = random_csr(np.random.default_rng(0), 1, 12, 0.0, ones=True), np.zeros(12)
    none = Lookup(*(np.empty(shape, np.int32) for shape in ((0, FIRST + 500), (0, 1), (0, 1))))
    rows = np.zeros(500, np.int64)
    for key in range(6):
        sets, marks = empty_sets(FAST, y, rows, active), np.zeros((1, 2, 12), np.int32)
        FAST.choose_sets(sets, y, rows, FIRST, none, 0.5, key, marks)
        hits += np.bincount(sets.ids, minlength=12)
    expected = 3000 * active / 12
    assert np.abs(hits - expected).max() < 5 * np.sqrt(expected * (1 - active / 12))


def test_the_most_named_come_first_and_chance_breaks_ties():
    y = random_csr(np.random.default_rng(0), 1, 10, 0.0, ones=True)
    members = np.array([[3, 5, 6, 7, 0, 1, 2, 4, 8, 9], [3, 0, 1, 2, 4, 5, 6, 7, 8, 9]], np.int32)
    starts = np.array([[0, 4, 10], [0, 1, 10]], np.int32)
    found, rows = Lookup(np.zeros((2, FIRST + 900), np.int32), starts, members), np.zeros(900, int)
    sets, marks = empty_sets(FAST, y, rows, 2), np.zeros((1, 2, 10), np.int32)
    FAST.choose_sets(sets, y, rows, FIRST, found, 0.0, 1, marks)
    hits = np.bincount(sets.ids, minlength=10)
    assert hits[3] == 900  # in both buckets
    assert np.abs(hits[5:8] - 300).max() < 5 * np.sqrt(200)
    assert hits.sum() == 1800


def random_sets(rng, rows, own_least):
    own = rng.integers(own_least, 4, rows).astype(np.int32)
    certain = own + rng.integers(0, 4, rows).astype(np.int32)
    sizes = certain + rng.integers(0, 9, rows)
    starts = np.append(0, np.cumsum(sizes)).astype(np.int64)
    ids = [rng.permutation(LABELS)[:size] for size in sizes]
    ids = np.concatenate([*ids, []]).astype(np.int32)
    return RowSets(starts, ids, np.repeat(np.arange(rows, dtype=np.int32), sizes), own, certain)


def walked(kernels, name, sets, hidden, weight, bias, weighted):
    slopes, gradient = kernels.zeros(len(sets.ids)), kernels.zeros(hidden.shape)
    loss = kernels.zeros(len(hidden), "float64")
    operands = sets, hidden, weight, bias, weighted
    getattr(kernels, name)(slopes, gradient, loss, *operands)
    return slopes, gradient, loss


@modest
@given(
    seeds, st.integers(0, 9), st.integers(1, 20), st.booleans(), st.sampled_from([0.3, 3.0, 30.0]),
    st.sampled_from(["softmax_sets", "sigmoid_sets"]),
)  # fmt: skip
def test_losses_and_gradients(seed, rows, units, weighted, spread, name):
    rng = np.random.default_rng(seed)
    sets, hidden = random_sets(rng, rows, 0), normal(rng, rows, units)
    weight, bias = normal(rng, LABELS, units, spread=spread), normal(rng, LABELS)
    fast = walked(FAST, name, sets, hidden, weight, bias, weighted)
    slow = walked(NAIVE, name, sets, hidden, weight, bias, weighted)
    scale = 1e-5 * max(1.0, spread) * units
    for mine, theirs in zip(fast, slow, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=scale)
    lanes = walked(LANES, name, sets, hidden, weight, bias, weighted)
    for mine, theirs in zip(fast, lanes, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", ["softmax_sets", "sigmoid_sets"])
def test_what_is_not_a_number_does_not_hide(name):
    rng = np.random.default_rng(0)
    sets, hidden = random_sets(rng, 3, 1), normal(rng, 3, 5)
    weight, bias = normal(rng, LABELS, 5), normal(rng, LABELS)
    bias[sets.ids[sets.starts[1]]] = np.nan
    _, gradient, loss = walked(FAST, name, sets, hidden, weight, bias, False)
    assert np.isnan(loss[1])
    assert np.isnan(gradient[1]).all()


@modest
@given(seeds, st.integers(1, 6), st.integers(1, 9))
def test_slopes_are_the_losses_derivatives(seed, rows, units):
    """By central differences of the mean loss along one direction of the hidden layer."""
    rng = np.random.default_rng(seed)
    sets, hidden = random_sets(rng, rows, 1), rng.standard_normal((rows, units))
    weight, bias = rng.standard_normal((LABELS, units)), rng.standard_normal(LABELS)
    step = 1e-5 * rng.standard_normal(hidden.shape)
    for name in ("softmax_sets", "sigmoid_sets"):
        gradient = walked(NAIVE, name, sets, hidden, weight, bias, False)[1]
        up, down = (
            walked(NAIVE, name, sets, hidden + move, weight, bias, False)[2].mean()
            for move in (step, -step)
        )
        close(up - down, 2 * (gradient * step).sum(), 1e-9)
