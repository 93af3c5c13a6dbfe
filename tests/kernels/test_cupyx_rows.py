"""Rows as matrices of cupyx, on a GPU."""

import numpy as np
import pytest
from scipy import sparse

from daskxml.core.errors import InputError
from daskxml.data.matrices import matrix_partition
from daskxml.data.rows import from_scipy, to_scipy
from daskxml.kernels.cuda.cupyx_rows import from_cupyx, to_cupyx
from harness.cuda_on_host import gpu_kernels, needs_gpu

pytestmark = needs_gpu
MATRIX = sparse.random_array((30, 20), density=0.2, rng=1, format="csr", dtype=np.float32)


def test_rows_are_seen_as_a_matrix_without_a_copy_of_their_entries():
    kernels = gpu_kernels()
    there = kernels.to_device(from_scipy(MATRIX))
    seen = to_cupyx(there)
    assert (seen.data.data.ptr, seen.indices.data.ptr) == (
        there.data.data.ptr, there.indices.data.ptr,
    )  # fmt: skip
    np.testing.assert_array_equal(seen.get().toarray(), MATRIX.toarray())
    back = from_cupyx(seen)
    assert back.data.data.ptr == there.data.data.ptr
    np.testing.assert_array_equal(to_scipy(kernels.to_host(back)).toarray(), MATRIX.toarray())


def test_labels_are_ones():
    kernels = gpu_kernels()
    labels = kernels.to_device(from_scipy(MATRIX, ones=True))
    seen = to_cupyx(labels)
    np.testing.assert_array_equal(seen.get().toarray(), MATRIX.toarray() != 0)
    assert from_cupyx(seen, ones=True).data is None


def test_a_matrix_of_another_kind_is_refused():
    seen = to_cupyx(gpu_kernels().to_device(from_scipy(MATRIX)))
    with pytest.raises(InputError, match=r"give csr, float32, int32$"):
        from_cupyx(seen.astype("float64"))
    with pytest.raises(InputError, match=r"^a matrix in the format 'csc'"):
        from_cupyx(seen.tocsc())


def test_data_of_a_user_may_be_cupys():
    seen = to_cupyx(gpu_kernels().to_device(from_scipy(MATRIX)))
    made = matrix_partition(seen, seen > 0, first_row=0, shape=(20, 20))
    np.testing.assert_array_equal(to_scipy(made.features).toarray(), MATRIX.toarray())
    assert made.labels.nonzeros == (MATRIX.toarray() > 0).sum()
