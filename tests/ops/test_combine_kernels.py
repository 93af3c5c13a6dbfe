"""The kernels that combining uses, against their naive twins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import EVERY, ONE, TWO, close, modest, normal, seeds, wide

from daskxml.ops import numba_half
from daskxml.ops.naive import NaiveKernels

NAIVE = NaiveKernels("float64")
sizes = st.one_of(st.integers(0, 70), st.sampled_from([1000, 4099]))
factors = st.floats(-4, 4, width=32)


@EVERY
@modest
@given(seeds, sizes, factors, factors)
def test_add_two_and_weigh_two(ops, seed, size, a, b):
    rng = np.random.default_rng(seed)
    out, x, y = (normal(rng, size) for _ in range(3))
    slow = wide(out)
    ops.add_two(out, x, a, y, b)
    NAIVE.add_two(slow, wide(x), a, wide(y), b)
    close(out, slow)
    ops.weigh_two(out, x, a, y, b)
    NAIVE.weigh_two(slow, wide(x), a, wide(y), b)
    close(out, slow)


@EVERY
@modest
@given(seeds, sizes, factors, factors)
def test_weigh_two_may_write_into_what_it_reads(ops, seed, size, a, b):
    rng = np.random.default_rng(seed)
    x, y, out = normal(rng, size), normal(rng, size), np.empty(size, np.float32)
    ops.weigh_two(out, x, a, y, b)
    first, second, same = x.copy(), y.copy(), x.copy()
    ops.weigh_two(first, first, a, y, b)
    ops.weigh_two(second, x, a, second, b)
    ops.weigh_two(same, same[:], a, y, b)  # the same memory, another object
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
    if is_native and not numba_half.IS_NATIVE:
        pytest.skip("this processor has no conversions of its own")
    x = np.ldexp(normal(np.random.default_rng(seed), size), exponent)
    fast, slow = ops.empty(size + 1, "float16")[1:], NAIVE.empty(size, "float16")
    back, slow_back = np.empty(size, np.float32), np.empty(size, np.float32)
    with pytest.MonkeyPatch.context() as patch, np.errstate(over="ignore"):
        patch.setattr(numba_half, "IS_NATIVE", is_native)
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


def test_long_vectors_have_the_same_bits_on_any_number_of_lanes():
    rng = np.random.default_rng(5)
    x, y = normal(rng, 1 << 20), normal(rng, 1 << 20)
    results = []
    for kernels in (ONE, TWO):
        out, half = x.copy(), np.empty(1 << 20, np.float16)
        kernels.add_two(out, x, 0.3, y, 0.7)
        kernels.weigh_two(out, out, 0.3, y, 0.7)
        kernels.convert(half, out, 2.0)
        results.append((out.tobytes(), half.tobytes(), kernels.dots(out, y), kernels.largest(out)))
    assert results[0] == results[1]
