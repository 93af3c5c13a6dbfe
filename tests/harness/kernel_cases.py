"""The kernels that are tested, and the random matrices that their tests share."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from scipy import sparse

from daskxml.core.arrays import Csr
from daskxml.kernels.cpu.kernels import CpuKernels
from harness.cuda_on_host import HostCalls, emulated, gpu_kernels, needs_compiler, needs_gpu
from harness.naive_kernels import NaiveKernels

seeds = st.integers(0, 2**32 - 1)
modest = settings(max_examples=25, deadline=None)

ONE, TWO, NAIVE = CpuKernels(1), CpuKernels(2), NaiveKernels("float64")
ON_HOST = pytest.param(HostCalls(emulated), id="cuda on the host", marks=needs_compiler)
ON_GPU = pytest.param(HostCalls(gpu_kernels), id="cuda", marks=needs_gpu)
EVERY = pytest.mark.parametrize("ops", [pytest.param(ONE, id="cpu"), ON_HOST, ON_GPU])
EVERY_THREADS = pytest.mark.parametrize(
    "fast",
    [pytest.param(ONE, id="1 thread"), pytest.param(TWO, id="2 threads"), ON_HOST, ON_GPU],
)


def random_csr(rng, rows, columns, density=0.3, ones=False):
    matrix = sparse.random_array((rows, columns), density=density, rng=rng, format="csr")
    matrix.sort_indices()
    data = None if ones else rng.standard_normal(matrix.nnz).astype(np.float32)
    return Csr(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), data, columns)


def group_entries(kernels, *operands):
    """Return the number of features, from the host or from the device."""
    most, count_there = kernels.group_entries(*operands)
    count = most if count_there is None else int(kernels.to_host(count_there)[0])
    assert count <= most
    return count


def normal(rng, *shape, spread=1.0):
    return (spread * rng.standard_normal(shape)).astype(np.float32)


def wide(x):
    return x.astype(np.float64)


def close(fast, naive, tolerance=1e-5):
    np.testing.assert_allclose(fast, naive, rtol=tolerance, atol=tolerance)


@st.composite
def blocks(draw):
    """Logits (possibly extreme, with ties), a bias and a generator."""
    rng = np.random.default_rng(draw(seeds))
    shape = draw(st.integers(1, 40)), draw(st.integers(1, 20))
    logits = normal(rng, *shape, spread=draw(st.sampled_from([0.1, 3.0, 1e4])))
    if draw(st.booleans()):
        logits = np.round(logits)
    bias = np.round(normal(rng, shape[0])) if draw(st.booleans()) else np.zeros(shape[0], "f")
    return logits, bias, rng


def target_rows(ops, block, columns, density, first_row, first_label):
    """Labels of rows, which rows are in the batch, and the first one's place there.

    Their logits have been added up, and are those of the twin.
    """
    logits, bias, rng = block
    rows = logits.shape[1]
    y, first_row = random_csr(rng, 6, columns, density, ones=True), min(first_row, rows)
    chosen = rng.integers(0, 6, rows - first_row)
    out, slow = np.zeros(rows), np.zeros(rows)
    ops.target_logits(out, logits, bias, y, chosen, first_row, first_label)
    NAIVE.target_logits(slow, wide(logits), bias, y, chosen, first_row, first_label)
    np.testing.assert_allclose(out, slow, rtol=1e-5, atol=1e-2)
    return y, chosen, first_row
