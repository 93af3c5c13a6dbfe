"""Products with a vector against their naive twin."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import close, modest, normal, seeds, wide

from daskxml.ops.naive import NaiveKernels
from daskxml.ops.numba_vector import vector_product

NAIVE = NaiveKernels("float64")
sizes = st.integers(1, 40)
betas = st.sampled_from([0.0, 1.0, 0.25])


@modest
@given(seeds, st.permutations([0, 1, 2]), sizes, sizes, st.booleans(), st.booleans(), betas)
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
