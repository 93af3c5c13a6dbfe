"""Kernels on blocks of labels, and their weights, against their naive twins; a GPU's of float16."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskxml.kernels.cpu.labels import BatchWeights
from daskxml.kernels.cpu.numba_math import exp32, hash64
from daskxml.kernels.cpu.ranking import rank_row
from harness import naive_hash, naive_labels
from harness.kernel_cases import (
    EVERY,
    NAIVE,
    ON_GPU,
    ON_HOST,
    ONE,
    TWO,
    blocks,
    close,
    modest,
    normal,
    random_csr,
    seeds,
    target_rows,
    wide,
)  # fmt: skip
from harness.naive_weights import NaiveBatchWeights


@modest
@given(st.lists(st.floats(-200, 88, width=32), min_size=1, max_size=9))
def test_exp_is_within_two_units_in_the_last_place(values):
    for value in np.array(values, np.float32):
        wanted = np.exp(np.float64(value))
        assert abs(exp32(value) - wanted) <= max(2 * np.spacing(np.float32(wanted)), 1.3e-38)


def test_exp_of_special_values():
    assert exp32(np.float32(-np.inf)) == 0.0
    assert np.isnan(exp32(np.float32(np.nan)))
    assert exp32(np.float32(0.0)) == 1.0
    assert 2e38 < exp32(np.float32(1e9)) < np.inf


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 2))
def test_hash_equals_its_twin(key, index):
    assert int(hash64(np.uint64(key), np.uint64(index))) == naive_hash.hash64(key, index)


@modest
@given(blocks(), st.integers(1, 40))
def test_online_softmax_equals_softmax_at_once(block, cut):
    ops, (logits, bias, rng) = ONE, block
    rows = logits.shape[1]
    whole = wide(logits) + bias[:, None]
    peak, total, part = np.full(rows, -np.inf, "f"), np.zeros(rows), np.empty(rows, "f")
    weight, factors = np.abs(normal(rng, rows)), np.empty(rows, "f")
    references = []
    pieces = [slice(0, cut), slice(cut, None)]
    for piece in [piece for piece in pieces if logits[piece].size]:
        ops.softmax_block(logits[piece], bias[piece], peak, total, part)
        references.append((piece, peak.copy()))
    close(peak, whole.max(axis=0), 1e-6)
    shifted = np.exp(whole - whole.max(axis=0))
    spread = np.abs(whole).max()  # a logit's own rounding is the exponential's relative error
    close(total, shifted.sum(axis=0), 1e-6 + 2e-7 * spread)
    for piece, reference in references:
        sums = np.empty(logits[piece].shape[0], "f")
        ops.softmax_factors(factors, reference, peak, total, weight)
        ops.scale_columns(logits[piece], factors, sums)
        close(sums, logits[piece].sum(axis=1), 1e-4)
    close(logits, weight * shifted / shifted.sum(axis=0), 1e-5 + 2e-7 * spread)


@pytest.mark.parametrize("ops", [ON_HOST, ON_GPU])
@modest
@given(blocks(), st.integers(1, 40))
def test_fused_softmax_equals_softmax_at_once(ops, block, cut):
    """The logits are read twice and stay what they are in between; a weight of 0 is allowed."""
    logits, bias, rng = block
    rows, held = logits.shape[1], logits.copy()
    peak, total, shift = np.full(rows, -np.inf, "f"), np.zeros(rows), np.empty(rows, "f")
    weight = np.abs(normal(rng, rows))
    weight[0] = 0.0
    pieces = [piece for piece in (slice(0, cut), slice(cut, None)) if logits[piece].size]
    for piece in pieces:
        ops.softmax_sums(logits[piece], bias[piece], peak, total)
    np.testing.assert_array_equal(logits, held)
    ops.softmax_shift(shift, peak, total, weight)
    slow, slow_sums = wide(logits), np.empty(len(bias))
    sums, slow_peak = np.full(len(bias), np.nan, "f"), np.full(rows, -np.inf)
    slow_total, slow_shift = np.zeros(rows), np.empty(rows)
    NAIVE.softmax_sums(slow, wide(bias), slow_peak, slow_total)
    NAIVE.softmax_shift(slow_shift, slow_peak, slow_total, wide(weight))
    NAIVE.softmax_gradient(slow, wide(bias), slow_shift, slow_sums)
    for piece in pieces:
        ops.softmax_gradient(logits[piece], bias[piece], shift, sums[piece])
    spread = np.abs(slow_shift[1:]).max(initial=1.0)
    close(logits, slow, 1e-5 + 3e-7 * spread)
    close(sums, slow_sums, 1e-4 + 3e-7 * spread)
    assert (logits[:, 0] == 0.0).all()


@EVERY
@modest
@given(seeds, st.integers(1, 4), st.integers(1, 9))
def test_merging_parts_of_softmax(ops, seed, parts, rows):
    rng = np.random.default_rng(seed)
    peaks, totals = normal(rng, parts, rows, spread=20), np.abs(wide(normal(rng, parts, rows))) + 1
    fast = np.empty(rows, "f"), np.empty(rows)
    slow = np.empty(rows), np.empty(rows)
    ops.merge_softmax(peaks, totals, *fast)
    NAIVE.merge_softmax(wide(peaks), totals, *slow)
    close(fast[0], slow[0])
    close(fast[1], slow[1], 1e-5)


@EVERY
@modest
@given(blocks(), st.sampled_from([1.0, 0.01]))
def test_sigmoid_and_softplus(ops, block, weight):
    logits, bias, _ = block
    labels, rows = logits.shape
    loss, slow_loss = np.zeros(rows), np.zeros(rows)
    slow, sums, slow_sums = wide(logits), np.empty(labels, "f"), np.empty(labels)
    ops.sigmoid_block(logits, bias, weight, sums, loss, np.empty((2, rows), "f"))
    NAIVE.sigmoid_block(slow, bias, weight, slow_sums, slow_loss, np.empty((2, rows)))
    np.testing.assert_allclose(loss, slow_loss, rtol=1e-5, atol=1e-5)
    close(logits, slow)
    close(sums, slow_sums, 1e-4)


@EVERY
@modest
@given(blocks(), st.floats(0, 1), st.integers(0, 30), st.integers(0, 3))
def test_targets(ops, block, density, first_label, first_row):
    logits, _, rng = block
    labels, rows = logits.shape
    targets = target_rows(ops, block, first_label + labels + 3, density, first_row, first_label)
    weights, sums = normal(rng, rows), normal(rng, labels)
    slow, slow_sums = wide(logits), wide(sums)
    if ops.has_fused_softmax:
        whole = np.zeros(targets[0].columns, np.float32)
        ops.subtract_targets_deferred(logits, weights, *targets, first_label)
        ops.apply_deferred_sums(whole)
        sums += whole[first_label : first_label + labels]
    else:
        ops.subtract_targets(logits, sums, weights, *targets, first_label)
    NAIVE.subtract_targets(slow, slow_sums, wide(weights), *targets, first_label)
    close(logits, slow)
    close(sums, slow_sums)


@EVERY
@modest
@given(seeds, st.booleans())
def test_weights_and_losses(ops, seed, each_row):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 4, 7).astype(np.float32)
    fast, slow = np.empty((2, 7), "f"), np.empty((2, 7))
    ops.target_weights(*fast, lengths, 0.25, each_row)
    NAIVE.target_weights(*slow, lengths, 0.25, each_row)
    close(fast, slow)
    peak, total, targets = normal(rng, 7), np.abs(wide(normal(rng, 7))) + 1, wide(normal(rng, 2, 7))
    loss, slow_loss = np.empty(7), np.empty(7)
    ops.softmax_losses(loss, peak, total, targets, lengths)
    NAIVE.softmax_losses(slow_loss, wide(peak), total, targets, lengths)
    close(loss, slow_loss)
    assert (loss[lengths == 0] == 0).all()


@EVERY
@modest
@given(blocks(), st.integers(1, 45), st.integers(1, 40))
def test_top_k_is_exact_on_ties_in_blocks_and_over_threads(ops, block, k, cut):
    logits, bias, _ = block
    labels, rows = logits.shape
    parts = np.full((2, rows, k), -np.inf, "f"), np.full((2, rows, k), -1, np.int32)
    for part, piece in enumerate((slice(0, cut), slice(cut, None))):
        if logits[piece].size:
            ops.top_k_block(logits[piece], bias[piece], part * cut, parts[0][part], parts[1][part])
    scores, ids = np.empty((rows, k), "f"), np.empty((rows, k), np.int32)
    ops.merge_top_k(*parts, scores, ids)
    values = logits + bias[:, None]
    order = np.lexsort((np.arange(labels)[:, None].repeat(rows, 1), -values), axis=0)[:k].T
    assert (ids[:, : order.shape[1]] == order).all()
    assert (ids[:, order.shape[1] :] == -1).all()
    assert np.isneginf(scores[:, order.shape[1] :]).all()
    slow = np.empty((rows, k), "f"), np.empty((rows, k), np.int32)
    NAIVE.merge_top_k(*parts, *slow)
    assert (slow[1] == ids).all()


@pytest.mark.parametrize("ops", [ONE, TWO], ids=["1 thread", "2 threads"])
@pytest.mark.parametrize("labels", [1, 511, 513, 9000])
@pytest.mark.parametrize("units", [1, 13, 128])
@pytest.mark.parametrize("softmax", [True, False])
def test_one_row_is_ranked(ops, labels, units, softmax):
    rng = np.random.default_rng(labels)
    hidden, weight, bias = normal(rng, units), normal(rng, labels, units), normal(rng, labels)
    weight[labels // 2 :], bias[labels // 2 :] = weight[0], bias[0]  # ties
    fast, slow = ((np.empty((1, 7), "f"), np.empty((1, 7), np.int32)) for _ in range(2))
    totals = (np.empty(2), np.empty(2)) if softmax else (None, None)
    rank_row(ops.team, hidden, weight, bias, *fast, totals[0])
    naive_labels.rank_row(None, hidden, weight, bias, *slow, totals[1])
    close(fast[0], slow[0], 1e-4)
    if softmax:
        close(totals[0], totals[1], 1e-4)
    real = fast[1][0] >= 0
    assert real.sum() == min(7, labels)
    close(np.float64(weight[fast[1][0][real]]) @ hidden + bias[fast[1][0][real]],
          slow[0][0][real], 1e-4)  # fmt: skip
    again = np.lexsort((fast[1][0][real], -fast[0][0][real]))
    assert again.tolist() == list(range(real.sum()))


@EVERY
@modest
@given(seeds, st.sampled_from([1.0, 30.0, 1e4]), st.booleans())
def test_scores_rank_as_the_logits_do(ops, seed, spread, softmax):
    rng = np.random.default_rng(seed)
    logits = -np.sort(-normal(rng, 3, 8, spread=spread), axis=1)
    ids = np.stack([rng.permutation(20)[:8] for _ in range(3)]).astype(np.int32)
    ids[0, 5:], logits[0, 5:] = -1, -np.inf
    peak, total = logits[:, 0].copy(), np.exp(wide(logits) - logits[:, :1]).sum(axis=1)
    scores, slow = logits.copy(), wide(logits)
    if softmax:
        ops.softmax_scores(scores, ids, peak, total)
        NAIVE.softmax_scores(slow, ids, wide(peak), total)
    else:
        ops.sigmoid_scores(scores, ids)
        NAIVE.sigmoid_scores(slow, ids)
    close(scores, slow, 1e-5)
    for r in range(3):
        real = ids[r] >= 0
        again = np.lexsort((ids[r][real], -scores[r][real]))
        assert again.tolist() == list(range(real.sum()))
        assert np.isneginf(scores[r][~real]).all()


@EVERY
@pytest.mark.parametrize("softmax", [True, False])
def test_saturated_scores_stay_between_zero_and_one(ops, softmax):
    scores = np.array([[1e4, 9e3, 8e3, -1e4]], np.float32)
    ids = np.array([[9, 5, 2, 0]], np.int32)
    if softmax:
        ops.softmax_scores(scores, ids, np.array([1e4], "f"), np.ones(1))
    else:
        ops.sigmoid_scores(scores, ids)
    assert (scores >= 0).all()
    assert (scores <= 1).all()
    assert (np.diff(scores[0]) < 0).all()


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
    padded = np.pad(logits, ((0, 0), (0, rows % 2)))  # a label's begin at a multiple of 4 bytes
    peak, total, shift = np.full(rows, -np.inf, "f"), np.zeros(rows), np.empty(rows, "f")
    slow_peak, slow_total, slow_shift = np.full(rows, -np.inf), np.zeros(rows), np.empty(rows)
    weight, sums, slow_sums = (
        np.full(rows, 4096, "f"),
        np.empty(len(bias), "f"),
        np.empty(len(bias)),
    )
    pieces = [piece for piece in (slice(0, cut), slice(cut, None)) if logits[piece].size]
    for piece in pieces:
        ops.softmax_sums(padded[piece], bias[piece], peak, total)
    NAIVE.softmax_sums(slow, wide(bias), slow_peak, slow_total)
    ops.softmax_shift(shift, peak, total, weight)
    NAIVE.softmax_shift(slow_shift, slow_peak, slow_total, wide(weight))
    close(shift, slow_shift, 1e-5)
    for piece in pieces:
        ops.softmax_gradient(padded[piece], bias[piece], shift, sums[piece])
    logits = padded[:, :rows]
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
        kernels.subtract_targets_deferred(delta, weights, *targets, first_label, 2048.0)
        kernels.apply_deferred_sums(lost)
    np.testing.assert_allclose(wide(logits), slow, rtol=6e-4, atol=1e-6)
    close(sums, slow_sums)


@pytest.mark.parametrize("ops", [ON_HOST, ON_GPU])
@pytest.mark.parametrize(
    ("units", "rows", "labels", "spread"),
    [(64, 1, 1, 1.0), (128, 13, 150, 0.1), (128, 13, 150, 3.0), (64, 70, 600, 3.0)],
)
def test_products_with_the_softmax_in_them_equal_their_twin(ops, units, rows, labels, spread):
    """Float16 in, float32 out; where logits spread, sums are scaled again on the way."""
    rng = np.random.default_rng([units, rows])
    hidden, weight = normal(rng, rows, units, spread=spread), normal(rng, labels, units)
    bias, weights = np.sort(normal(rng, labels)), 100 * np.abs(normal(rng, rows))
    y, chosen = random_csr(rng, 9, labels, 0.1, ones=True), rng.integers(0, 9, rows)
    tiles = [np.empty((ops.tiled_rows(height), units), np.float16) for height in (rows, labels)]
    ops.to_tiles(tiles[0], hidden, True)
    ops.to_tiles(tiles[1], weight)
    expected = [np.empty(each.shape) for each in tiles]
    NAIVE.to_tiles(expected[0], hidden, True)
    NAIVE.to_tiles(expected[1], weight)
    for tile, slow in zip(tiles, expected, strict=True):
        close_halves(tile, slow)
    found = []
    for kernels, kind in ((ops, np.float32), (NAIVE, np.float64)):
        chunks = kernels.product_chunks(rows, labels)
        parts = *np.empty((2, chunks, rows), kind), np.empty((chunks, rows, units), kind)
        peak, total, shift = np.full(rows, -np.inf, kind), np.zeros(rows), np.empty(rows, kind)
        kernels.softmax_products(parts, *tiles, bias, peak, total)
        kernels.softmax_shift(shift, peak, total, weights)
        gradient, targets = np.empty((rows, units), kind), np.zeros(rows)
        kernels.target_products(targets, gradient, *tiles, bias, y, chosen, 0)
        kernels.join_products(gradient, parts, shift, weights, 0.5)
        new, sums = weight.astype(kind), np.empty(labels, kind)
        kernels.softmax_update(new, sums, *tiles, bias, shift, -0.5, 0.0)
        found.append((shift, targets, gradient, new, sums))
    for fast, slow in zip(*found, strict=True):
        assert np.linalg.norm(fast - slow) <= 1e-3 * np.linalg.norm(slow)
    kept = weight.copy()
    ops.softmax_update(kept, np.empty(labels, "f"), *tiles, bias, found[0][0], -0.5, 0.9)
    close(kept, 0.9 * weight + found[0][3], 1e-4)


KINDS = pytest.mark.parametrize("kind", ["float32", "float16"])


@KINDS
@pytest.mark.parametrize("ops", [ON_HOST, ON_GPU])
@modest
@given(blocks(), st.integers(1, 9))
def test_what_lies_beyond_the_rows_of_a_batch_is_ignored(ops, kind, block, more):
    """And all else has the same bits as without it."""
    logits, bias, rng = halves(block)
    labels, rows = logits.shape
    y, chosen = random_csr(rng, 6, labels, 0.3, ones=True), rng.integers(0, 6, rows)
    weights, found = np.abs(normal(rng, rows)), []
    even = rows % 2  # a label's float16 logits begin at a multiple of 4 bytes
    for behind in (even, even + 2 * more):
        padded = np.full((labels, rows + behind), 7, kind)
        padded[:, :rows] = logits
        peak, total, shift = np.full(rows, -np.inf, "f"), np.zeros(rows), np.empty(rows, "f")
        sums, loss, out = np.empty(labels, "f"), np.zeros(rows), np.zeros(rows)
        ops.target_logits(out, padded, bias, y, chosen, 0, 0)
        ops.softmax_sums(padded, bias, peak, total)
        ops.softmax_shift(shift, peak, total, weights)
        ops.softmax_gradient(padded, bias, shift, sums)
        ops.subtract_targets_deferred(padded, weights, y, chosen, 0, 0)
        ops.apply_deferred_sums(sums)
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


# -- weights of rows and labels, on a CPU --------------------------------------------------


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
