"""Kernels on dense arrays, and the 16-bit floats, against their naive twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskxml.kernels.cpu import numba_math
from daskxml.kernels.cpu.gemm import vector_product
from daskxml.kernels.operands import Drop
from harness.kernel_cases import (
    EVERY,
    EVERY_THREADS,
    NAIVE,
    ON_GPU,
    ONE,
    TWO,
    close,
    modest,
    normal,
    seeds,
    wide,
)

sizes = st.one_of(st.integers(0, 70), st.sampled_from([1000, 4099]))
factors = st.floats(-4, 4, width=32)
sides = st.integers(1, 40)
betas = st.sampled_from([0.0, 1.0, 0.25])


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
def test_fill(ops):
    for dtype, value in (("f2", 1.5), ("f4", np.nan), ("f8", -1.5), ("i4", -1), ("i4", 0)):
        out = np.full((3, 700), 7, dtype)
        ops.fill(out, value)
        np.testing.assert_array_equal(out, np.full((3, 700), value, dtype))


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


@modest
@given(seeds, st.permutations([0, 1, 2]), sides, sides, st.booleans(), st.booleans(), betas)
def test_a_product_with_a_vector(seed, order, long, wider, flip_a, flip_b, beta):
    m, k, n = (np.array([1, long, wider])[order]).tolist()
    rng = np.random.default_rng(seed)
    a = normal(rng, k, m).T if flip_a else normal(rng, m, k)
    b = normal(rng, n, k).T if flip_b else normal(rng, k, n)
    out = normal(rng, m, n)
    slow = wide(out)
    NAIVE.gemm(slow, wide(a), wide(b), -0.5, beta)
    if beta == 0.0:
        out[...] = np.nan  # must not be read
    assert vector_product(out, a, b, -0.5, beta)
    close(out, slow)


def test_what_is_no_product_with_a_vector_is_left_to_blas():
    square, row = np.ones((3, 3), np.float32), np.ones((1, 3), np.float32)
    gaps = np.ones((3, 6), np.float32)[:, ::2]
    for out, a, b in ((square, square, square), (row, row, gaps), (row, gaps[:1], square)):
        before = out.copy()
        assert not vector_product(out, a, b, 1.0, 0.0)
        np.testing.assert_array_equal(out, before)


@pytest.mark.parametrize("alpha", [0.5, 0.0])
def test_an_outer_product_leaves_rows_alone_that_do_not_change(alpha):
    """So that threads with different rows lose nothing to each other."""
    out = np.full((3, 2), np.nan, np.float32)
    left = np.float32([[0.0], [0.0], [0.0]])
    assert vector_product(out, left, np.full((1, 2), np.inf, np.float32), alpha, 1.0)
    assert np.isnan(out).all()


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


@EVERY_THREADS
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
    terms = (wide(a), 1.0), (wide(b), factor)
    wanted = pytest.approx(NAIVE.deferred_sum(*terms), abs=1e-9)
    assert float(fast.deferred_sum(*terms)) == wanted


def test_long_vectors_have_the_same_bits_on_any_number_of_threads():
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
@modest
@given(seeds, sizes, factors, factors)
def test_add_two_and_axpby(ops, seed, size, a, b):
    rng = np.random.default_rng(seed)
    out, x, y = (normal(rng, size) for _ in range(3))
    slow = wide(out)
    ops.add_two(out, x, a, y, b)
    NAIVE.add_two(slow, wide(x), a, wide(y), b)
    close(out, slow)
    ops.axpby(out, x, a, y, b)
    NAIVE.axpby(slow, wide(x), a, wide(y), b)
    close(out, slow)


@EVERY
@modest
@given(seeds, sizes, factors, factors)
def test_axpby_may_write_into_what_it_reads(ops, seed, size, a, b):
    rng = np.random.default_rng(seed)
    x, y, out = normal(rng, size), normal(rng, size), np.empty(size, np.float32)
    ops.axpby(out, x, a, y, b)
    first, second, same = x.copy(), y.copy(), x.copy()
    ops.axpby(first, first, a, y, b)
    ops.axpby(second, x, a, second, b)
    ops.axpby(same, same[:], a, y, b)  # the same memory, another object
    assert first.tobytes() == second.tobytes() == same.tobytes() == out.tobytes()
    ops.scale(out, x, a)
    ops.scale(x, x, a)
    assert x.tobytes() == out.tobytes()


@EVERY
@modest
@given(seeds, sizes, st.sampled_from([1e-18, 1.0, 1e18]))
def test_dots_are_as_exact_as_float64(ops, seed, size, spread):
    rng = np.random.default_rng(seed)
    x, y = normal(rng, size, spread=spread), normal(rng, size)
    fast, slow = ops.dots(x, y), NAIVE.dots(x, y)
    bound = 1e-14 * (np.abs(wide(x) * y).sum() + 1e-300)
    assert abs(fast[0] - slow[0]) <= bound
    assert fast[1:] == pytest.approx(slow[1:], rel=1e-13)


@EVERY
@modest
@given(seeds, sizes, st.integers(-100, 100))
def test_largest(ops, seed, size, exponent):
    x = np.ldexp(normal(np.random.default_rng(seed), size), exponent)
    assert ops.largest(x) == NAIVE.largest(x)


@EVERY
def test_largest_tells_of_what_is_not_finite(ops):
    x = np.array([1.0, -np.inf, 2.0], np.float32)
    assert ops.largest(x) == NAIVE.largest(x) == np.inf
    x[0] = np.nan
    assert np.isnan(ops.largest(x))
    assert np.isnan(NAIVE.largest(x))


@EVERY
@pytest.mark.parametrize("is_native", [True, False])
@modest
@given(seeds, sizes, st.integers(-30, 20), st.integers(-20, 20))
def test_convert_rounds_to_the_nearest(ops, is_native, seed, size, exponent, scale):
    if is_native and not numba_math.HAS_FLOAT16:
        pytest.skip("this processor has no conversions of its own")
    x = np.ldexp(normal(np.random.default_rng(seed), size), exponent)
    fast, slow = ops.empty(size + 1, "float16")[1:], NAIVE.empty(size, "float16")
    back, slow_back = np.empty(size, np.float32), np.empty(size, np.float32)
    with pytest.MonkeyPatch.context() as patch, np.errstate(over="ignore"):
        patch.setattr(numba_math, "HAS_FLOAT16", is_native)
        ops.convert(fast, x, 2.0**scale)
        ops.convert(back, fast, 2.0**-scale)
        NAIVE.convert(slow, x, 2.0**scale)
        NAIVE.convert(slow_back, slow, 2.0**-scale)
    assert fast.tobytes() == slow.tobytes()
    assert back.tobytes() == slow_back.tobytes()


@EVERY
def test_convert_keeps_nan_and_infinity(ops):
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 65519.0, 1e-7], np.float32)
    half = np.empty(6, np.float16)
    ops.convert(half, x, 1.0)
    np.testing.assert_array_equal(half, x.astype(np.float16))
    assert np.signbit(half[3])


@EVERY
@modest
@given(seeds, sizes, st.integers(-140, 100), st.integers(-10, 10))
def test_convert_rounds_to_the_nearest_bfloat16(ops, seed, size, exponent, scale):
    rng = np.random.default_rng(seed)
    if ops is ON_GPU:
        exponent = max(exponent, -90)  # it takes subnormal numbers as 0
    x = np.ldexp(normal(rng, size), exponent)
    x.view(np.uint32)[: size // 3] &= 0xFFFF8000  # ties
    fast, slow = ops.empty(size + 1, "uint16")[1:], NAIVE.empty(size, "uint16")
    back, slow_back = np.empty(size, np.float32), np.empty(size, np.float32)
    again = np.empty(size, np.uint16)
    with np.errstate(over="ignore", under="ignore"):
        ops.convert(fast, x, 2.0**scale)
        ops.convert(back, fast, 2.0**-scale)
        NAIVE.convert(slow, x, 2.0**scale)
        NAIVE.convert(slow_back, slow, 2.0**-scale)
    assert fast.tobytes() == slow.tobytes()
    assert back.tobytes() == slow_back.tobytes()
    ops.convert(back, fast, 1.0)
    ops.convert(again, back, 1.0)
    assert again.tobytes() == fast.tobytes()  # rounding what is rounded changes nothing


@EVERY
def test_bfloat16_keeps_nan_and_infinity(ops):
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 3.4e38, 1e-45], np.float32)
    x[:1].view(np.uint32)[0] = 0x7FFFFFFF  # a NaN that rounding would carry over
    bits, back = np.empty(6, np.uint16), np.empty(6, np.float32)
    ops.convert(bits, x, 1.0)
    ops.convert(back, bits, 1.0)
    np.testing.assert_array_equal(
        back, np.array([np.nan, np.inf, -np.inf, -0.0, np.inf, 0.0], "f4")
    )
    assert np.signbit(back[3])


def test_merged_vectors_have_the_same_bits_with_any_number_of_threads():
    rng = np.random.default_rng(5)
    x, y = normal(rng, 1 << 20), normal(rng, 1 << 20)
    results = []
    for kernels in (ONE, TWO):
        out, half = x.copy(), np.empty(1 << 20, np.float16)
        kernels.add_two(out, x, 0.3, y, 0.7)
        kernels.axpby(out, out, 0.3, y, 0.7)
        kernels.convert(half, out, 2.0)
        results.append((out.tobytes(), half.tobytes(), kernels.dots(out, y), kernels.largest(out)))
    assert results[0] == results[1]
