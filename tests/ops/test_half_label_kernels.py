"""A GPU's kernels over blocks of labels that are float16, or wider than the batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import (
    ON_GPU,
    ON_HOST,
    blocks,
    close,
    modest,
    normal,
    random_csr,
    target_rows,
    wide,
)

from daskxml.ops.naive import NaiveKernels

NAIVE = NaiveKernels("float64")


def halves(block):
    """The same with logits of float16, at most 1000 of size, in a place of their own."""
    logits, bias, rng = block
    return np.clip(logits, -1000, 1000).astype(np.float16), bias, rng


def close_halves(half, slow):
    """As near as float16 can be: 11 bits, or a 2**25th."""
    np.testing.assert_allclose(wide(half), slow, rtol=6e-4, atol=4e-8)


@pytest.mark.parametrize("ops", [ON_HOST, ON_GPU])
@modest
@given(blocks(), st.integers(1, 40))
def test_fused_softmax_of_float16_equals_its_twin(ops, block, cut):
    logits, bias, _ = halves(block)
    rows, slow = logits.shape[1], wide(logits)
    peak, total, shift = np.full(rows, -np.inf, "f"), np.zeros(rows), np.empty(rows, "f")
    slow_peak, slow_total, slow_shift = np.full(rows, -np.inf), np.zeros(rows), np.empty(rows)
    weight, sums, slow_sums = (
        np.full(rows, 4096, "f"),
        np.empty(len(bias), "f"),
        np.empty(len(bias)),
    )
    pieces = [piece for piece in (slice(0, cut), slice(cut, None)) if logits[piece].size]
    for piece in pieces:
        ops.softmax_sums(logits[piece], bias[piece], peak, total)
    NAIVE.softmax_sums(slow, wide(bias), slow_peak, slow_total)
    ops.softmax_shift(shift, peak, total, weight)
    NAIVE.softmax_shift(slow_shift, slow_peak, slow_total, wide(weight))
    close(shift, slow_shift, 1e-5)
    for piece in pieces:
        ops.softmax_gradient(logits[piece], bias[piece], shift, sums[piece])
    NAIVE.softmax_gradient(slow, wide(bias), slow_shift, slow_sums)
    spread = np.abs(slow_shift).max()  # a logit's own rounding is the exponential's relative error
    np.testing.assert_allclose(wide(logits), slow, rtol=6e-4 + 3e-7 * spread, atol=4e-8)
    np.testing.assert_allclose(sums, slow_sums, rtol=1e-4 + 3e-7 * spread, atol=1e-30)


@pytest.mark.parametrize("ops", [ON_HOST, ON_GPU])
@modest
@given(blocks())
def test_sigmoid_of_float16_equals_its_twin(ops, block):
    logits, bias, _ = halves(block)
    labels, rows = logits.shape
    loss, slow_loss = np.zeros(rows), np.zeros(rows)
    slow, sums, slow_sums = wide(logits), np.empty(labels, "f"), np.empty(labels)
    ops.sigmoid_block(logits, bias, 512.0, sums, loss, np.empty((2, rows), "f"))
    NAIVE.sigmoid_block(slow, bias, 512.0, slow_sums, slow_loss, np.empty((2, rows)))
    np.testing.assert_allclose(loss, slow_loss, rtol=1e-5, atol=1e-5)
    close_halves(logits, slow)
    close(sums, slow_sums, 1e-4)


@pytest.mark.parametrize("ops", [ON_HOST, ON_GPU])
@modest
@given(blocks(), st.floats(0, 1), st.integers(0, 30), st.integers(0, 3))
def test_targets_of_float16(ops, block, density, first_label, first_row):
    """What labels lose is told without the scale, and added up before it is rounded."""
    logits, _, rng = block = halves(block)
    labels, rows = logits.shape
    columns = first_label + labels
    targets = target_rows(ops, block, columns, density, first_row, first_label)
    weights, sums = 1024 * np.abs(normal(rng, rows)), normal(rng, columns)
    slow, slow_sums = wide(logits), wide(sums)
    for kernels, delta, lost in ((ops, logits, sums), (NAIVE, slow, slow_sums)):
        kernels.note_targets(delta, weights, *targets, first_label, 2048.0)
        kernels.settle_sums(lost)
    np.testing.assert_allclose(wide(logits), slow, rtol=6e-4, atol=1e-6)
    close(sums, slow_sums)


KINDS = pytest.mark.parametrize("kind", ["float32", "float16"])


@KINDS
@pytest.mark.parametrize("ops", [ON_HOST, ON_GPU])
@modest
@given(blocks(), st.integers(1, 9))
def test_what_lies_behind_the_rows_of_a_batch_is_left_alone(ops, kind, block, more):
    """And all else has the same bits as without it."""
    logits, bias, rng = halves(block)
    labels, rows = logits.shape
    y, chosen = random_csr(rng, 6, labels, 0.3, ones=True), rng.integers(0, 6, rows)
    weights, found = np.abs(normal(rng, rows)), []
    for behind in (0, more):
        padded = np.full((labels, rows + behind), 7, kind)
        padded[:, :rows] = logits
        peak, total, shift = np.full(rows, -np.inf, "f"), np.zeros(rows), np.empty(rows, "f")
        sums, loss, out = np.empty(labels, "f"), np.zeros(rows), np.zeros(rows)
        ops.target_logits(out, padded, bias, y, chosen, 0, 0)
        ops.softmax_sums(padded, bias, peak, total)
        ops.softmax_shift(shift, peak, total, weights)
        ops.softmax_gradient(padded, bias, shift, sums)
        ops.note_targets(padded, weights, y, chosen, 0, 0)
        ops.settle_sums(sums)
        held = padded.copy()
        more_sums = np.empty(labels, "f")
        ops.sigmoid_block(padded, bias, 0.5, more_sums, loss, np.empty((2, rows), "f"))
        scores, ids = np.full((rows, 3), -np.inf, "f"), np.full((rows, 3), -1, np.int32)
        if kind == "float32":
            ops.top_k_block(held, bias, 0, scores, ids)
        assert (padded[:, rows:] == 7).all()
        assert (held[:, rows:] == 7).all()
        arrays = held[:, :rows], padded[:, :rows], peak, total, shift, sums, more_sums
        found.append([array.tobytes() for array in (*arrays, loss, out, scores, ids)])
    assert found[0] == found[1]
