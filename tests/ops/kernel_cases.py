"""Random matrices that the tests of the kernels share."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from scipy import sparse

from daskxml.types import Csr

seeds = st.integers(0, 2**32 - 1)
modest = settings(max_examples=25, deadline=None)


def random_csr(rng, rows, columns, density=0.3, ones=False):
    matrix = sparse.random_array((rows, columns), density=density, rng=rng, format="csr")
    matrix.sort_indices()
    data = None if ones else rng.standard_normal(matrix.nnz).astype(np.float32)
    return Csr(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), data, columns)


def normal(rng, *shape, spread=1.0):
    return (spread * rng.standard_normal(shape)).astype(np.float32)


def wide(x):
    return x.astype(np.float64)


def close(fast, naive, tolerance=1e-5):
    np.testing.assert_allclose(fast, naive, rtol=tolerance, atol=tolerance)
