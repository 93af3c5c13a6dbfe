import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from daskxml.core.arrays import Csr, Partition
from daskxml.core.errors import InputError
from daskxml.data.rows import BLOCK_ROWS, feature_blocks, label_csr, to_scipy

FORMATS = ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"]


def dense_of(csr: Csr) -> np.ndarray:
    return to_scipy(csr).toarray()


@settings(max_examples=50, deadline=None)
@given(
    arrays(np.float64, (4, 5), elements=st.sampled_from([0, 0, 1.5, -2])), st.sampled_from(FORMATS)
)
def test_every_format_says_the_same(dense: np.ndarray, form: str) -> None:
    for kind in (sp.csr_matrix, sp.csr_array):
        (block,) = feature_blocks(kind(dense).asformat(form), 5)
        np.testing.assert_array_equal(dense_of(block), dense)
        assert (block.indptr.dtype, block.indices.dtype) == (np.int64, np.int32)
        assert block.data.dtype == np.float32


def test_the_users_matrix_is_neither_changed_nor_kept() -> None:
    unsorted = sp.csr_matrix(([1.0, 2.0, 3.0], [2, 0, 2], [0, 3]), shape=(1, 3))
    (block,) = feature_blocks(unsorted, 3)
    np.testing.assert_array_equal(block.indices, [0, 2])  # sorted, and what is double added up
    np.testing.assert_array_equal(block.data, [2, 4])
    np.testing.assert_array_equal(unsorted.indices, [2, 0, 2])
    single = sp.csr_matrix(np.ones((1, 3), np.float32))
    (block,) = feature_blocks(single, 3)
    block.data[:] = 7
    np.testing.assert_array_equal(single.data, [1, 1, 1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@settings(max_examples=50, deadline=None)
@given(rows=st.lists(st.lists(st.integers(0, 6), max_size=8), min_size=1, max_size=4))
def test_rows_in_any_order_are_those_of_scipy(dtype: type, rows: list[list[int]]) -> None:
    ids = np.array([label for row in rows for label in row], np.int32)
    lengths = np.cumsum([0, *map(len, rows)])
    values = (np.arange(ids.size) + 0.5).astype(dtype)
    given_rows = sp.csr_matrix((values, ids, lengths), shape=(len(rows), 7))
    (block,) = feature_blocks(given_rows, 7)
    np.testing.assert_array_equal(dense_of(block), given_rows.toarray())
    for first, last in zip(block.indptr, block.indptr[1:], strict=False):
        assert (np.diff(block.indices[first:last]) > 0).all()
    np.testing.assert_array_equal(given_rows.indices, ids)


def test_a_sum_of_equal_ids_that_is_too_large_is_refused() -> None:
    rows = sp.csr_matrix((np.full(2, 3e38, np.float32), [1, 1], [0, 2]), shape=(1, 3))
    with pytest.raises(InputError, match="row 0"):
        list(feature_blocks(rows, 3))


def test_rows_come_in_blocks() -> None:
    rows = BLOCK_ROWS + 3
    X = sp.csr_matrix(np.arange(rows, dtype=float)[:, None])
    blocks = list(feature_blocks(X, 1))
    assert [block.rows for block in blocks] == [BLOCK_ROWS, 3]
    assert blocks[1].data.tolist() == [rows - 3, rows - 2, rows - 1]
    assert list(feature_blocks(np.zeros((0, 4)), 4)) == []


def test_a_partition_is_its_features() -> None:
    (features,) = feature_blocks(np.eye(2), 2)
    (block,) = feature_blocks(Partition(features, features), 2)
    np.testing.assert_array_equal(dense_of(block), np.eye(2))
    assert block.data is not features.data


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.ones((2, 4)), "X has 4 features, but the model was trained on 3"),
        (np.ones(3), r"shape \(3,\)"),
        (np.array([["a", "b", "c"]]), "dtype <U1"),
        (np.array([[1, 2j, 3]]), "dtype complex128"),
        ([[1.0, 0, 0], [0, np.nan, 0]], "X, row 1: .*NaN"),
        ([[1.0, 0, 0], [0, 0, 0], [0, 1, 1e39]], "X, row 2: .*float32"),
        (sp.csr_matrix([[0, np.inf, 0]]), "X, row 0: .*infinite"),
    ],
)
def test_features_that_do_not_fit_are_refused(X, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(feature_blocks(X, 3))


def test_labels_are_what_is_not_zero() -> None:
    stored_zero = sp.csr_matrix(([1.0, 0.0, 2.0], [2, 1, 0], [0, 2, 3]), shape=(2, 3))
    for Y in (stored_zero, stored_zero.toarray(), stored_zero.toarray() > 0, stored_zero.tocsc()):
        labels = label_csr(Y, 2, 3)
        assert labels.indices.tolist() == [2, 0]
        assert labels.indptr.tolist() == [0, 1, 2]
        assert labels.data is None
    assert label_csr(labels, 2, 3).indices.tolist() == [2, 0]
    assert stored_zero.nnz == 3


def test_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"Y is \(2, 3\), .*\(2, 4\)"):
        label_csr(np.ones((2, 3)), 2, 4)
    with pytest.raises(InputError, match=r"Y: .*NaN"):
        label_csr([[0, np.nan]], 1, 2)
