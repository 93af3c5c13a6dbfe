"""The ranking of rows by an index of labels, against its naive twin."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskxml.kernels.cpu.probing import choose_best
from daskxml.kernels.label_index import LabelIndex
from daskxml.kernels.quantised import quantise
from harness.kernel_cases import ONE, TWO, close, modest, normal, seeds
from harness.naive_kernels import NaiveKernels

NAIVE = NaiveKernels("float64")
THREADS = pytest.mark.parametrize("ops", [ONE, TWO], ids=["1 thread", "2 threads"])
GROUPS, FAN = 6, 4


@modest
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60), st.integers(1, 70))
def test_the_best_are_chosen_and_those_nearly_as_good(values, count):
    scores, chosen = np.array(values, np.float32), np.empty(len(values), np.int64)
    found = chosen[: choose_best(chosen, scores, count)]
    assert (np.diff(found) > 0).all()
    last = np.sort(scores)[::-1][min(count, scores.size) - 1]
    assert set(np.flatnonzero(scores >= last)) <= set(found)
    assert count < scores.size or found.size == scores.size
    slack = (np.float64(scores.max()) - scores.min()) / 1000
    assert np.ptp(scores) == 0 or count >= scores.size or (scores[found] >= last - slack).all()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_all_are_chosen_where_scores_are_not_finite(value):
    scores, chosen = np.array([1, value, 3, 2], np.float32), np.empty(4, np.int64)
    assert choose_best(chosen, scores, 2) in (2, 3, 4)
    assert set(chosen[: choose_best(chosen, scores, 4)]) == {0, 1, 2, 3}


def case(seed, bits, labels, units, is_negative):
    """Return an index of labels at random, rows whose numbers need no rounding, and the layer."""
    rng = np.random.default_rng(seed)
    hidden = np.float32(rng.integers(0, 256, (5, units)))
    hidden[:, 0] = -255 if is_negative else 255
    weight, bias = normal(rng, labels, units) / 64, normal(rng, labels)
    nodes = [quantise(normal(rng, count, units) / 64, 8) for count in (GROUPS, GROUPS * FAN)]
    index = LabelIndex(
        order=rng.permutation(labels).astype(np.int32),
        starts=np.linspace(0, labels, GROUPS * FAN + 1).astype(np.int64),
        groups=nodes[0], group_bias=normal(rng, GROUPS), group_labels=np.abs(normal(rng, GROUPS)),
        clusters=nodes[1], cluster_bias=normal(rng, GROUPS * FAN),
        cluster_labels=np.abs(normal(rng, GROUPS * FAN)),
        probed_groups=GROUPS, probed_clusters=GROUPS * FAN, k=7,
    )  # fmt: skip
    return index, hidden, quantise(weight, bits) if bits else weight, bias


def ranked(ops, k, *operands):
    rows = operands[1].shape[0]
    found = np.empty((rows, k), "f"), np.empty((rows, k), np.int32), np.empty((rows, 2))
    ops.rank_by_index(*operands, *found)
    without = np.empty((rows, k), "f"), np.empty((rows, k), np.int32)
    ops.rank_by_index(*operands, *without, None)
    np.testing.assert_array_equal(without[1], found[1])
    return found


@THREADS
@pytest.mark.parametrize("bits", [0, 8, 16])
@pytest.mark.parametrize("is_negative", [False, True])
@pytest.mark.parametrize(("labels", "units"), [(24, 1), (90, 33), (700, 128)])
def test_rows_are_ranked_by_an_index(ops, bits, labels, units, is_negative):
    operands = case(labels, bits, labels, units, is_negative)
    index, hidden, weight, bias = operands
    logits = np.float64(hidden) @ np.float64(weight).T + bias
    for groups, clusters in ((GROUPS, GROUPS * FAN), (2, 3), (1, FAN)):
        tried = replace(index, probed_groups=groups, probed_clusters=clusters), *operands[1:]
        fast, slow = ranked(ops, 7, *tried), ranked(NAIVE, 7, *tried)
        logs = [peak + np.log(total) for peak, total in (both[2].T for both in (fast, slow))]
        np.testing.assert_allclose(logs[0], logs[1], atol=0.2)  # some more may be looked into
        for row in range(hidden.shape[0]):
            real = fast[1][row][fast[1][row] >= 0]
            close(fast[0][row, : real.size], logits[row, real], 1e-4)
            assert np.unique(real).size == real.size
            assert (fast[0][row] >= slow[0][row] - 1e-3).all()
        if groups == GROUPS:
            np.testing.assert_array_equal(fast[1], slow[1])
            np.testing.assert_allclose(logs[0], np.logaddexp.reduce(logits, axis=1), rtol=1e-5)


@modest
@given(seeds, st.sampled_from([0.1, 1.0, 30.0]))
def test_no_probability_exceeds_one(seed, spread):
    index, hidden, weight, bias = case(seed, 0, 90, 16, False)
    index = replace(index, probed_groups=2, probed_clusters=3)
    scores, ids, totals = ranked(ONE, 5, index, hidden * np.float32(spread), weight, bias)
    ONE.softmax_scores(scores, ids, totals[:, 0].astype("f"), totals[:, 1])
    assert (scores[ids >= 0] <= 1.0).all()
    assert (np.where(ids >= 0, scores, 0).sum(axis=1) <= 1.0 + 1e-6).all()


@pytest.mark.parametrize("value", [0.0, np.inf, np.nan])
def test_rows_that_cannot_be_rounded(value):
    index, hidden, weight, bias = case(1, 0, 90, 16, False)
    _, ids, _ = ranked(ONE, 3, index, np.full_like(hidden, value), weight, bias)
    assert ((ids >= -1) & (ids < 90)).all()
    assert value or (ids == np.argsort(-bias, kind="stable")[:3]).all()


def test_equal_labels_are_ranked_by_their_numbers():
    index, hidden, weight, bias = case(1, 0, 90, 16, False)
    _, ids, _ = ranked(TWO, 9, index, hidden, np.ones_like(weight), np.zeros_like(bias))
    np.testing.assert_array_equal(ids, np.tile(np.arange(9), (5, 1)))
