"""Kernels on labels sampled for each row against their naive twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskxml.kernels.cpu import row_sampling
from daskxml.kernels.cpu.sampling import fill_buckets
from daskxml.kernels.cpu.thread_team import ThreadTeam
from daskxml.kernels.operands import Lookup, RowSamples
from harness import naive_sampling
from harness.kernel_cases import close, modest, normal, random_csr, seeds

FAST, NAIVE, THREE = ThreadTeam(1), None, ThreadTeam(3)
LABELS, FIRST = 40, 2  # and rows of the batch that belong to another segment


def ops_of(team):
    """Return the fast functions, or, without threads, their naive twins."""
    return row_sampling if team else naive_sampling


def lookup(rng, tables, buckets, rows):
    keys = rng.integers(0, buckets, (tables, LABELS)).astype(np.int32)
    starts = np.empty((tables, buckets + 1), np.int32)
    members = np.empty((tables, LABELS), np.int32)
    fill_buckets(FAST, starts, members, keys)
    return Lookup(rng.integers(0, buckets, (tables, rows)).astype(np.int32), starts, members)


def empty_samples(y, rows, active):
    starts = np.full(FIRST + len(rows) + 1, 0, np.int64)
    row_sampling.size_row_samples(starts[FIRST:], y, rows, active)
    pairs, total = starts[-1], len(starts) - 1
    ids, owners = np.full((2, pairs), -7, np.int32)
    return RowSamples(starts, ids, owners, np.zeros(total, np.int32))


@modest
@given(
    seeds, st.integers(0, 12), st.integers(1, LABELS), st.integers(0, 6), st.integers(1, 9),
    st.floats(0, 1),
)  # fmt: skip
def test_choices(seed, count, active, tables, buckets, random):
    rng = np.random.default_rng(seed)
    y, rows = random_csr(rng, 8, LABELS, 0.1, ones=True), rng.integers(0, 8, count)
    found = lookup(rng, tables, buckets, FIRST + count)
    made = []
    for team in (FAST, THREE, NAIVE):
        samples = empty_samples(y, rows, active)
        marks = np.zeros((3, 2, LABELS), np.int32)
        ops_of(team).draw_row_samples(team, samples, y, rows, FIRST, found, random, seed, marks)
        assert not marks[:, 0].any()
        made.append(samples)
    for name in RowSamples.__slots__:
        fast, threaded, naive = (getattr(samples, name) for samples in made)
        np.testing.assert_array_equal(fast, naive)
        np.testing.assert_array_equal(fast, threaded)
    for row, ids in enumerate(np.split(made[0].ids, made[0].starts[FIRST + 1 : -1])[:count]):
        assert len(np.unique(ids)) == len(ids) >= active
        assert (made[0].rows[made[0].starts[FIRST + row] :][: len(ids)] == FIRST + row).all()


@pytest.mark.parametrize("active", [4, 9])  # drawn, and left out
def test_every_label_is_drawn_equally_often(active):
    y, hits = random_csr(np.random.default_rng(0), 1, 12, 0.0, ones=True), np.zeros(12)
    none = Lookup(*(np.empty(shape, np.int32) for shape in ((0, FIRST + 500), (0, 1), (0, 1))))
    rows = np.zeros(500, np.int64)
    for key in range(6):
        samples, marks = empty_samples(y, rows, active), np.zeros((1, 2, 12), np.int32)
        row_sampling.draw_row_samples(FAST, samples, y, rows, FIRST, none, 0.5, key, marks)
        hits += np.bincount(samples.ids, minlength=12)
    expected = 3000 * active / 12
    assert np.abs(hits - expected).max() < 5 * np.sqrt(expected * (1 - active / 12))


def test_the_most_named_come_first_and_chance_breaks_ties():
    y = random_csr(np.random.default_rng(0), 1, 10, 0.0, ones=True)
    members = np.array([[3, 5, 6, 7, 0, 1, 2, 4, 8, 9], [3, 0, 1, 2, 4, 5, 6, 7, 8, 9]], np.int32)
    starts = np.array([[0, 4, 10], [0, 1, 10]], np.int32)
    found, rows = Lookup(np.zeros((2, FIRST + 900), np.int32), starts, members), np.zeros(900, int)
    samples, marks = empty_samples(y, rows, 2), np.zeros((1, 2, 10), np.int32)
    row_sampling.draw_row_samples(FAST, samples, y, rows, FIRST, found, 0.0, 1, marks)
    hits = np.bincount(samples.ids, minlength=10)
    assert hits[3] == 900  # in both buckets
    assert np.abs(hits[5:8] - 300).max() < 5 * np.sqrt(200)
    assert hits.sum() == 1800


def random_samples(rng, rows, own_least):
    own = rng.integers(own_least, 4, rows).astype(np.int32)
    sizes = own + rng.integers(0, 12, rows)
    starts = np.append(0, np.cumsum(sizes)).astype(np.int64)
    ids = [rng.permutation(LABELS)[:size] for size in sizes]
    ids = np.concatenate([*ids, []]).astype(np.int32)
    owners = np.repeat(np.arange(rows, dtype=np.int32), sizes)
    return RowSamples(starts, ids, owners, own)


def losses_of(team, is_softmax, samples, hidden, weight, bias):
    kind = np.float32 if team else np.float64
    slopes, gradient = np.zeros(len(samples.ids), kind), np.zeros(hidden.shape, kind)
    loss = np.zeros(len(hidden))
    place = samples, hidden, weight, bias, is_softmax
    ops_of(team).sampled_losses(team, slopes, gradient, loss, *place)
    return slopes, gradient, loss


@modest
@given(
    seeds, st.integers(0, 9), st.integers(1, 20), st.sampled_from([0.3, 3.0, 30.0]),
    st.booleans(),
)  # fmt: skip
def test_losses_and_gradients(seed, rows, units, spread, is_softmax):
    rng = np.random.default_rng(seed)
    samples, hidden = random_samples(rng, rows, 0), normal(rng, rows, units)
    weight, bias = normal(rng, LABELS, units, spread=spread), normal(rng, LABELS)
    fast = losses_of(FAST, is_softmax, samples, hidden, weight, bias)
    slow = losses_of(NAIVE, is_softmax, samples, hidden, weight, bias)
    scale = 1e-5 * max(1.0, spread) * units
    for mine, theirs in zip(fast, slow, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=scale)
    threaded = losses_of(THREE, is_softmax, samples, hidden, weight, bias)
    for mine, theirs in zip(fast, threaded, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("is_softmax", [True, False])
def test_what_is_not_a_number_does_not_hide(is_softmax):
    rng = np.random.default_rng(0)
    samples, hidden = random_samples(rng, 3, 1), normal(rng, 3, 5)
    weight, bias = normal(rng, LABELS, 5), normal(rng, LABELS)
    bias[samples.ids[samples.starts[1]]] = np.nan
    _, gradient, loss = losses_of(FAST, is_softmax, samples, hidden, weight, bias)
    assert np.isnan(loss[1])
    assert np.isnan(gradient[1]).all()


@modest
@given(seeds, st.integers(1, 6), st.integers(1, 9))
def test_slopes_are_the_losses_derivatives(seed, rows, units):
    """By central differences of the mean loss along one direction of the hidden layer."""
    rng = np.random.default_rng(seed)
    samples, hidden = random_samples(rng, rows, 1), rng.standard_normal((rows, units))
    weight, bias = rng.standard_normal((LABELS, units)), rng.standard_normal(LABELS)
    step = 1e-5 * rng.standard_normal(hidden.shape)
    for is_softmax in (True, False):
        gradient = losses_of(NAIVE, is_softmax, samples, hidden, weight, bias)[1]
        up, down = (
            losses_of(NAIVE, is_softmax, samples, hidden + move, weight, bias)[2].mean()
            for move in (step, -step)
        )
        close(up - down, 2 * (gradient * step).sum(), 1e-9)
