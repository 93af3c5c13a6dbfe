"""Weighted rows and labels against their naive twins."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from daskxml.kernels.cpu.weights import BatchWeights
from harness.kernel_cases import blocks, close, modest, normal, random_csr, seeds, wide
from harness.naive_weights import NaiveBatchWeights


def both(rows, means, labels, is_softmax):
    """Return the fast and the naive weights of a batch."""
    slow = NaiveBatchWeights(wide(rows), wide(means), wide(labels), is_softmax)
    return BatchWeights(rows, means, labels, is_softmax), slow


@modest
@given(seeds, st.booleans(), st.sampled_from([0.0, 0.3, 1.0]))
def test_weights_of_a_batch(seed, has_weights, density):
    rng = np.random.default_rng(seed)
    y, rows = random_csr(rng, 6, 9, density, ones=True), rng.integers(0, 6, 7)
    weights = np.abs(normal(rng, 6)) if has_weights else None
    fast, slow = both(*np.empty((2, 9), "f"), np.abs(normal(rng, 9)), True)
    for each in (fast, slow):
        each.gather(slice(2, 9), weights, y, rows)
    close(fast.rows[2:], slow.rows[2:])
    close(fast.means[2:], slow.means[2:])


@modest
@given(blocks(), st.sampled_from([0.0, 0.3]), st.integers(0, 5), st.integers(0, 4), st.booleans())
def test_weighted_targets(block, density, first_label, first_row, is_softmax):
    logits, bias, rng = block
    labels, rows = logits.shape
    y = random_csr(rng, 6, first_label + labels + 3, density, ones=True)
    first_row = min(first_row, rows)
    chosen = rng.integers(0, 6, rows - first_row)
    label_weights, weights = np.abs(normal(rng, y.columns)), np.abs(normal(rng, rows))
    place = y, chosen, first_row, first_label
    fast, slow = both(weights, weights, label_weights, is_softmax)
    found, expected = np.zeros(rows), np.zeros(rows)
    fast.add_target_logits(found, logits, bias, *place)
    slow.add_target_logits(expected, wide(logits), bias, *place)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-2)
    sums, delta = normal(rng, labels), wide(logits)
    slow_sums = wide(sums)
    fast.subtract_targets(logits, sums, weights, *place)
    slow.subtract_targets(delta, slow_sums, wide(weights), *place)
    close(logits, delta)
    np.testing.assert_allclose(sums, slow_sums, rtol=1e-4, atol=1e-5 * (1 + np.abs(delta).max()))


@modest
@given(seeds)
def test_weighted_losses(seed):
    rng = np.random.default_rng(seed)
    lengths, peak = rng.integers(0, 4, 7).astype("f"), normal(rng, 7)
    total, targets = np.abs(wide(normal(rng, 7))) + 1, wide(normal(rng, 2, 7))
    fast, slow = both(*np.abs(normal(rng, 2, 7)), np.ones(9, np.float32), True)
    found, expected = np.empty(7), np.empty(7)
    fast.softmax_losses(found, peak, total, targets, lengths)
    slow.softmax_losses(expected, wide(peak), total, targets, lengths)
    close(found, expected)
    assert (found[lengths == 0] == 0).all()
