"""Quantised matrices, and the kernels that read them, against their naive twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskxml.kernels.cpu import ranking, sparse
from daskxml.kernels.cpu.ranking import rank_row
from daskxml.kernels.operands import BITS, Quantised, quantise
from harness import naive_labels
from harness.kernel_cases import NAIVE, ONE, TWO, close, modest, normal, random_csr, seeds, wide

THREADS = pytest.mark.parametrize("ops", [ONE, TWO], ids=["1 thread", "2 threads"])
PRODUCTS = [ranking.multiply_loop] + [ranking.multiply_vnni] * ranking.HAS_VNNI


@modest
@given(seeds, st.sampled_from(BITS), st.sampled_from([1e-40, 1.0, 1e30]), st.integers(0, 9))
def test_numbers_are_rounded_to_half_a_unit(seed, bits, spread, columns):
    matrix = normal(np.random.default_rng(seed), 7, columns) * np.float32(spread)
    matrix[3] = 0.0
    found = quantise(matrix, bits)
    unit = wide(found.scale)[:, None] / (1 if bits == 8 else 254)
    error = np.abs(wide(np.asarray(found)) - matrix)
    assert (error <= 0.5 * unit + 1e-6 * np.abs(matrix) + 1e-38).all()
    assert found.shape == matrix.shape
    assert (found[3] == 0.0).all()
    np.testing.assert_array_equal(found[2:5], np.asarray(found)[2:5])
    np.testing.assert_array_equal(found[np.array([6, 0])], np.asarray(found)[[6, 0]])
    np.testing.assert_array_equal(found[6], np.asarray(found)[6])


@pytest.mark.parametrize(
    "change",
    [
        {"first": np.zeros((3, 2), np.uint8)},
        {"second": np.zeros((3, 1), np.int8)},
        {"second": np.zeros((1, 2), np.int8)},
        {"scale": np.zeros(2, np.float32)},
        {"scale": np.zeros(3)},
        {"first": np.zeros(3, np.int8)},
    ],
)
def test_parts_that_do_not_belong_together_are_refused(change):
    whole = quantise(np.ones((3, 2), np.float32), 16)
    parts = {name: getattr(whole, name) for name in ("first", "second", "scale")}
    with pytest.raises(ValueError, match="not the parts of a quantised matrix"):
        Quantised(**(parts | change))


@pytest.mark.parametrize("multiply", PRODUCTS)
@pytest.mark.parametrize("units", [1, 31, 32, 33, 200])
def test_products_of_bytes_are_exact(multiply, units):
    rng = np.random.default_rng(units)
    codes = rng.integers(0, 256, units).astype(np.uint8)
    weights = rng.integers(-127, 128, (9, units)).astype(np.int8)
    weights[0], out = -127, np.empty(9, np.int32)
    multiply(out, codes, weights)
    np.testing.assert_array_equal(out, weights.astype(np.int64) @ codes.astype(np.int64))


@THREADS
@modest
@given(seeds, st.sampled_from(BITS), st.integers(1, 40))
def test_the_first_layer(ops, seed, bits, units):
    rng = np.random.default_rng(seed)
    x, weight, bias = random_csr(rng, 8, 12), quantise(normal(rng, 12, units), bits), None
    bias, rows = normal(rng, units), rng.integers(0, 8, 5)
    fast, slow = np.empty((5, units), np.float32), np.empty((5, units))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse, "_GRAIN", 1)
        ops.sparse_forward(fast, x, rows, weight, bias)
    NAIVE.sparse_forward(slow, x, rows, weight, bias)
    close(fast, slow)


@THREADS
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("labels", [1, 511, 513, 9000])
@pytest.mark.parametrize("units", [1, 33, 128])
@pytest.mark.parametrize("is_negative", [False, True])
def test_one_row_is_ranked(ops, bits, labels, units, is_negative):
    rng = np.random.default_rng(labels)
    hidden, bias = normal(rng, units), normal(rng, labels)
    hidden = hidden if is_negative else np.abs(hidden)
    weight = quantise(normal(rng, labels, units), bits)
    fast, slow = ((np.empty((1, 7), "f"), np.empty((1, 7), np.int32)) for _ in range(2))
    totals = np.empty(2), np.empty(2)
    rank_row(ops.team, hidden, weight, bias, *fast, totals[0])
    naive_labels.rank_row(None, hidden, weight, bias, *slow, totals[1])
    close(fast[0], slow[0], 1e-4)
    np.testing.assert_array_equal(fast[1] >= 0, slow[1] >= 0)
    real = fast[1][0][fast[1][0] >= 0]
    close(weight[real] @ hidden + bias[real], fast[0][0][: real.size], 1e-4)
    logs = [peak + np.log(total) for peak, total in totals]
    assert logs[0] == pytest.approx(logs[1], abs=0.05)
    assert logs[0] >= fast[0][0, 0] - 1e-6  # no probability is above 1
    without = np.empty((1, 7), "f"), np.empty((1, 7), np.int32)
    rank_row(ops.team, hidden, weight, bias, *without, None)
    np.testing.assert_array_equal(without[1], fast[1])


@pytest.mark.parametrize("value", [0.0, np.inf, np.nan])
def test_rows_that_cannot_be_rounded(value):
    hidden = np.full(40, value, "f")
    weight, bias = quantise(np.ones((50, 40), np.float32), 16), np.arange(50, dtype=np.float32)
    scores, ids = np.empty((1, 3), "f"), np.empty((1, 3), np.int32)
    rank_row(ONE.team, hidden, weight, bias, scores, ids, np.empty(2))
    assert value or ids[0].tolist() == [49, 48, 47]
    assert ((ids >= -1) & (ids < 50)).all()


@pytest.mark.parametrize(("units", "is_encoded"), [(60_000, True), (70_000, False)])
def test_sums_of_products_of_bytes_fit_32_bits(units, is_encoded):
    hidden = np.ones(units, "f")
    assert (ranking.encode(np.empty(units, np.uint8), hidden) > 0) == is_encoded
    weight = quantise(np.array([[-1.0], [1.0], [0.5]], "f") * hidden, 8)
    scores, ids = np.empty((1, 3), "f"), np.empty((1, 3), np.int32)
    rank_row(ONE.team, hidden, weight, np.zeros(3, "f"), scores, ids, None)
    assert ids[0].tolist() == [1, 2, 0]


def test_a_row_of_tiny_numbers():
    hidden, bias = np.full(40, 1e-44, "f"), np.arange(3, dtype="f")
    scores, ids = np.empty((1, 3), "f"), np.empty((1, 3), np.int32)
    rank_row(ONE.team, hidden, quantise(np.ones((3, 40), "f"), 16), bias, scores, ids, np.empty(2))
    assert ids[0].tolist() == [2, 1, 0]


@pytest.mark.parametrize("spread", [0.1, 1.0, 30.0])
def test_no_probability_exceeds_one(spread):
    rng = np.random.default_rng(0)
    weight, bias = quantise(normal(rng, 600, 64, spread=spread), 8), normal(rng, 600)
    for _ in range(50):
        scores, ids, total = np.empty((1, 5), "f"), np.empty((1, 5), np.int32), np.empty(2)
        rank_row(ONE.team, np.abs(normal(rng, 64)), weight, bias, scores, ids, total)
        ONE.softmax_scores(scores, ids, total[:1].astype("f"), total[1:])
        assert (scores <= 1.0).all()
        assert scores.sum() <= 1.0 + 1e-6


def test_equal_labels_are_ranked_by_their_numbers():
    weight, bias = quantise(np.ones((90, 40), np.float32), 8), np.zeros(90, np.float32)
    scores, ids = np.empty((1, 30), "f"), np.empty((1, 30), np.int32)
    rank_row(TWO.team, np.ones(40, "f"), weight, bias, scores, ids, None)
    assert ids[0].tolist() == list(range(30))
