"""Kernels on weighted rows and labels against their naive twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskxml.core.errors import ConfigError
from daskxml.kernels.cuda.kernels import CudaKernels
from harness.kernel_cases import ONE, blocks, close, modest, normal, random_csr, seeds, wide
from harness.naive_kernels import NaiveKernels

NAIVE = NaiveKernels("float64")


@modest
@given(seeds, st.booleans(), st.sampled_from([0.0, 0.3, 1.0]))
def test_weights_of_a_batch(seed, has_weights, density):
    rng = np.random.default_rng(seed)
    y, rows = random_csr(rng, 6, 9, density, ones=True), rng.integers(0, 6, 7)
    weights = np.abs(normal(rng, 6)) if has_weights else None
    fast, slow = np.empty((2, 7), "f"), np.empty((2, 7))
    for kernels, out in ((ONE, fast), (NAIVE, slow)):
        kernels.batch_weights(*out, weights, np.abs(normal(np.random.default_rng(1), 9)), y, rows)
    close(fast, slow)
    ONE.multiply(fast[0], fast[1])
    close(fast[0], slow[0] * slow[1])


@modest
@given(blocks(), st.sampled_from([0.0, 0.3]), st.integers(0, 5), st.integers(0, 4), st.booleans())
def test_weighted_targets(block, density, first_label, first_row, each_row):
    logits, bias, rng = block
    labels, rows = logits.shape
    y = random_csr(rng, 6, first_label + labels + 3, density, ones=True)
    first_row = min(first_row, rows)
    chosen = rng.integers(0, 6, rows - first_row)
    label_weights, weights = np.abs(normal(rng, labels)), np.abs(normal(rng, rows))
    place = y, chosen, first_row, first_label, each_row
    found, expected = np.zeros(rows), np.zeros(rows)
    ONE.weighted_target_logits(found, logits, bias, label_weights, *place)
    NAIVE.weighted_target_logits(expected, wide(logits), bias, wide(label_weights), *place)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-2)
    sums = normal(rng, labels)
    slow, slow_sums = wide(logits), wide(sums)
    ONE.subtract_weighted_targets(logits, sums, weights, label_weights, *place)
    NAIVE.subtract_weighted_targets(slow, slow_sums, wide(weights), wide(label_weights), *place)
    close(logits, slow)
    np.testing.assert_allclose(sums, slow_sums, rtol=1e-4, atol=1e-5 * (1 + np.abs(slow).max()))


@modest
@given(seeds)
def test_weighted_losses(seed):
    rng = np.random.default_rng(seed)
    lengths, peak = rng.integers(0, 4, 7).astype("f"), normal(rng, 7)
    total, targets = np.abs(wide(normal(rng, 7))) + 1, wide(normal(rng, 2, 7))
    means, weights = np.abs(normal(rng, 2, 7))
    found, expected = np.empty(7), np.empty(7)
    ONE.weighted_softmax_losses(found, peak, total, targets, lengths, means, weights)
    NAIVE.weighted_softmax_losses(expected, wide(peak), total, targets, lengths, means, weights)
    close(found, expected)
    assert (found[lengths == 0] == 0).all()


def test_a_gpu_refuses_weights():
    with pytest.raises(ConfigError, match="need a CPU"):
        CudaKernels.batch_weights(None, None, None, None, None, None, None)
