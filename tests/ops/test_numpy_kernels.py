"""Every fast kernel against its naive twin."""

import inspect
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import (
    EVERY,
    EVERY_LANES,
    ONE,
    TWO,
    close,
    modest,
    normal,
    random_csr,
    seeds,
    wide,
)

from daskxml.ops import Drop, Kernels, numpy_kernels
from daskxml.ops.naive import NaiveKernels
from daskxml.ops.numpy_kernels import NumpyKernels
from daskxml.types import Csr, Partition, Segment

NAIVE = NaiveKernels("float64")


@pytest.fixture(scope="module", autouse=True)
def _threads_for_the_smallest_work():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numpy_kernels, "_SPARSE_GRAIN", 1)
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


def test_both_implement_the_protocol_with_the_same_signatures():
    wanted = {n: f for n, f in vars(Kernels).items() if callable(f) and not n.startswith("_")}
    for kernels in (NumpyKernels, NaiveKernels):
        for name, function in wanted.items():
            have = inspect.signature(getattr(kernels, name)).parameters
            assert list(have) == list(inspect.signature(function).parameters), name


@EVERY_LANES
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


@EVERY
@modest
@given(seeds, st.integers(1, 9), st.integers(0, 9), st.integers(1, 9), st.booleans(), st.booleans())
def test_gemm(ops, seed, m, k, n, flip_a, flip_b):
    rng = np.random.default_rng(seed)
    a = normal(rng, k, m).T if flip_a else normal(rng, m, k)
    b = normal(rng, n, k).T if flip_b else normal(rng, k, n)
    out, alpha, beta = normal(rng, m, n), 0.5, float(seed % 2)
    slow = wide(out)
    NAIVE.gemm(slow, wide(a), wide(b), alpha, beta)
    ops.gemm(out, a, b, alpha, beta)
    close(out, slow)


@EVERY
def test_gemm_writes_into_rows_of_a_larger_matrix_and_nowhere_else(ops):
    rng = np.random.default_rng(0)
    whole = np.zeros((6, 4), np.float32)
    ops.gemm(whole[2:4], normal(rng, 2, 3), normal(rng, 3, 4), beta=1.0)
    assert whole[2:4].all()
    assert not whole[:2].any()
    assert not whole[4:].any()


@EVERY
def test_gemm_refuses_what_blas_cannot_read(ops):
    x = np.zeros((4, 4), np.float32)
    with pytest.raises(ValueError, match="C or F order"):
        ops.gemm(x, x[::2, ::2].repeat(2, axis=1)[:, ::2], x[:2])
    with pytest.raises(ValueError, match="contiguous"):
        ops.gemm(x.T[:, :2], x, x[:, :2])


@EVERY
@modest
@given(seeds, st.sampled_from(["relu", "sigmoid"]), st.sampled_from([0.0, 0.5]))
def test_activation_dropout_and_their_gradient(ops, seed, activation, rate):
    rng = np.random.default_rng(seed)
    x, delta = normal(rng, 5, 7, spread=50.0), normal(rng, 5, 7)
    slow_x, slow_delta = wide(x), wide(delta)
    drop = Drop(rate=rate, key=seed, first_row=2)
    for kernels, values, change in ((ops, x, delta), (NAIVE, slow_x, slow_delta)):
        kernels.activate(values, activation)
        kernels.dropout(values, drop)
        kernels.dropout(change, drop)
        kernels.activation_gradient(change, values, activation, 1.0 - rate)
    close(x, slow_x)
    close(delta, slow_delta)


@EVERY
def test_dropout_keeps_the_right_share_and_differs_by_key(ops):
    ones = np.ones((200, 100), np.float32)
    first, second = ones.copy(), ones.copy()
    ops.dropout(first, Drop(rate=0.3, key=1))
    ops.dropout(second, Drop(rate=0.3, key=2))
    assert abs((first == 0).mean() - 0.3) < 0.02
    assert abs(first.mean() - 1.0) < 0.03
    assert (first != second).any()


@EVERY
@modest
@given(seeds, st.integers(0, 40))
def test_row_and_column_operations(ops, seed, rows):
    rng = np.random.default_rng(seed)
    x, row = normal(rng, rows, 5), normal(rng, 5)
    sums = ops.empty(5)
    ops.column_sums(sums, x)
    close(sums, wide(x).sum(axis=0))
    ops.fill_rows(x, row)
    assert (x == row).all()


@EVERY_LANES
@modest
@given(seeds, st.sampled_from([0, 1, 7, 1000]), st.floats(-2, 2, width=32))
def test_flat_vectors(fast, seed, size, factor):
    rng = np.random.default_rng(seed)
    a, b, c = normal(rng, size), normal(rng, size), normal(rng, size)
    for name, operands in (("scale", (b, factor)), ("add_scaled", (b, factor)),
                           ("momentum", (b, c, factor)), ("copy", (b,))):  # fmt: skip
        out, slow = a.copy(), wide(a)
        getattr(fast, name)(out, *operands)
        getattr(NAIVE, name)(slow, *operands)
        close(out, slow)
    assert fast.squared_norm(a) == pytest.approx(NAIVE.squared_norm(a), rel=1e-12)
    assert fast.sum64(wide(a)) == pytest.approx(NAIVE.sum64(wide(a)), abs=1e-9)


def test_long_vectors_have_the_same_bits_on_any_number_of_lanes():
    rng = np.random.default_rng(0)
    a, b, c = (normal(rng, 1_000_003) for _ in range(3))
    results = []
    for kernels in (ONE, TWO):
        out = a.copy()
        kernels.add_scaled(out, b, 0.3)
        kernels.momentum(out, b, c, 0.9)
        results.append((out.tobytes(), kernels.squared_norm(out)))
    assert results[0] == results[1]


@EVERY
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 70_000, 99_999])
def test_all_finite(ops, bad, place):
    x = np.full(100_000, np.finfo(np.float32).max, np.float32)
    assert ops.all_finite(x)
    x[place] = bad
    assert not ops.all_finite(x)
    assert ops.all_finite(x[:0])


def test_arrays_are_aligned_and_moving_them_is_free():
    assert ONE.empty((3, 5)).ctypes.data % 64 == 0
    assert ONE.zeros(7, "int32").dtype == np.int32
    x = random_csr(np.random.default_rng(0), 3, 4)
    segment = Segment(Partition(x, x), np.arange(3))
    assert ONE.to_device(segment) is segment
    assert ONE.to_host(segment) is segment
    strided = Segment(segment.partition, np.arange(6)[::2])
    moved = ONE.to_device(strided)
    assert moved.partition is segment.partition
    assert moved.rows.flags.c_contiguous


def test_an_error_in_any_lane_arrives():
    def fail(lane, start, stop):
        if lane == 1:
            raise RuntimeError("lane 1")

    with pytest.raises(RuntimeError, match="lane 1"):
        TWO.for_label_blocks(1000, 100, fail)


def test_blocks_cover_the_labels_once_in_order():
    seen = []
    used = TWO.for_label_blocks(1000, 64, lambda *where: seen.append(where))
    assert used == 2
    ranges = [(start, stop) for _, start, stop in sorted(seen)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 1000
    assert all(a[1] == b[0] for a, b in pairwise(ranges))


def test_close_ends_the_threads():
    kernels = NumpyKernels(3)
    kernels.close()
    with pytest.raises(RuntimeError):
        kernels.for_label_blocks(1000, 10, lambda *where: None)
