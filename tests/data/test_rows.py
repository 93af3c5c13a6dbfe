"""Row operations equal what scipy and plain loops make of the same matrices."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from daskxml.core.arrays import Csr, Partition
from daskxml.core.errors import InputError
from daskxml.data.rows import (
    BLOCK_ROWS,
    concatenate,
    feature_blocks,
    from_scipy,
    label_counts,
    label_csr,
    slice_rows,
    split_rows,
    take_rows,
    tidy_rows,
    to_scipy,
    unit_rows,
)


@st.composite
def partitions(draw: st.DrawFn, *, most_rows: int = 12) -> Partition:
    """Random rows, empty ones among them, of up to 9 features and 6 labels."""
    rows = draw(st.integers(0, most_rows))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    features = sp.random_array((rows, 9), density=0.3, rng=rng, format="csr", dtype=np.float32)
    labels = sp.random_array((rows, 6), density=0.3, rng=rng, format="csr")
    return Partition(from_scipy(features), from_scipy(labels, ones=True))


def dense(partition: Partition) -> tuple[np.ndarray, np.ndarray]:
    return to_scipy(partition.features).toarray(), to_scipy(partition.labels).toarray()


def assert_rows(partition: Partition, features: np.ndarray, labels: np.ndarray) -> None:
    found = dense(partition)
    np.testing.assert_array_equal(found[0], features)
    np.testing.assert_array_equal(found[1], labels)
    for csr in (partition.features, partition.labels):
        assert (csr.indptr.dtype, csr.indices.dtype) == (np.int64, np.int32)


@settings(max_examples=80, deadline=None)
@given(partitions(), st.data())
def test_take_rows_is_fancy_indexing(partition: Partition, data: st.DataObject) -> None:
    numbers = st.integers(0, max(0, partition.rows - 1))
    chosen = data.draw(st.lists(numbers, max_size=20 if partition.rows else 0))
    rows = np.array(chosen, np.int64)
    features, labels = dense(partition)
    assert_rows(take_rows(partition, rows), features[rows], labels[rows])


@settings(max_examples=80, deadline=None)
@given(partitions(), st.data())
def test_slice_rows_is_slicing(partition: Partition, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, partition.rows))
    stop = data.draw(st.integers(start, partition.rows))
    features, labels = dense(partition)
    found = slice_rows(partition, start, stop)
    assert_rows(found, features[start:stop], labels[start:stop])
    assert found.features.indices.base is not None


@settings(max_examples=60, deadline=None)
@given(st.lists(partitions(), min_size=1, max_size=4))
def test_concatenate_is_vstack(parts: list[Partition]) -> None:
    features, labels = zip(*map(dense, parts), strict=True)
    assert_rows(concatenate(parts), np.vstack(features), np.vstack(labels))


def test_concatenate_takes_the_larger_number_of_columns() -> None:
    narrow = from_scipy(np.array([[1.0]]))
    wide = from_scipy(np.array([[0.0, 2.0]]))
    joined = concatenate([Partition(narrow, narrow), Partition(wide, wide)])
    assert to_scipy(joined.features).toarray().tolist() == [[1, 0], [0, 2]]
    with pytest.raises(ValueError, match="at least one"):
        concatenate([])


@settings(max_examples=60, deadline=None)
@given(partitions(), st.integers(1, 5), st.data())
def test_split_rows_deals_every_row_out_in_order(partition, parts: int, data) -> None:
    size = partition.rows
    sizes = st.lists(st.integers(0, parts - 1), min_size=size, max_size=size)
    destination = np.array(data.draw(sizes), np.int64)
    features, labels = dense(partition)
    found = split_rows(partition, destination, parts)
    assert len(found) == parts
    for part, piece in enumerate(found):
        assert_rows(piece, features[destination == part], labels[destination == part])


def tidy_naive(rows: list[list[tuple[int, float]]]) -> list[dict[int, np.float32]]:
    """Sum the values of equal ids with a dictionary."""
    tidied = []
    for row in rows:
        found: dict[int, np.float32] = {}
        for column, value in row:
            found[column] = np.float32(found.get(column, np.float32(0)) + np.float32(value))
        tidied.append(dict(sorted(found.items())))
    return tidied


ENTRIES = st.tuples(st.integers(0, 8), st.floats(-10, 10, width=32))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(ENTRIES, max_size=12), max_size=5), st.booleans())
def test_tidy_rows_equals_its_naive_twin(rows: list[list[tuple[int, float]]], ones: bool) -> None:
    indptr = np.array([0, *np.cumsum([len(row) for row in rows])], np.int64)
    ids = np.array([column for row in rows for column, _ in row], np.int32)
    values = np.array([value for row in rows for _, value in row], np.float32)
    given = [[column for column, _ in row] for row in rows]
    found = tidy_rows(indptr, ids, np.empty(0, np.float32) if ones else values)
    expected = tidy_naive(rows)
    unsorted = sum(row != sorted(set(row)) for row in given)
    merged = sum(map(len, rows)) - sum(map(len, expected))
    assert found == (unsorted, merged, max((max(row) for row in given if row), default=-1))
    assert np.diff(indptr).tolist() == [len(row) for row in expected]
    assert ids[: indptr[-1]].tolist() == [column for row in expected for column in row]
    if not ones:
        summed = values[: indptr[-1]].tolist()
        assert summed == [float(value) for row in expected for value in row.values()]


@settings(max_examples=60, deadline=None)
@given(partitions())
def test_unit_rows_have_length_one_or_zero(partition: Partition) -> None:
    before = to_scipy(partition.features).toarray().astype(np.float64)
    norms = np.linalg.norm(before, axis=1, keepdims=True)
    scaled = unit_rows(partition.features)
    assert scaled is partition.features
    expected = before / np.where(norms == 0, 1, norms)
    np.testing.assert_allclose(to_scipy(scaled).toarray(), expected, rtol=1e-6)


def test_unit_rows_leave_zeros_and_survive_extreme_values() -> None:
    csr = Csr(np.array([0, 1, 3]), np.array([0, 0, 1], np.int32), np.float32([0, 3e38, 3e38]), 2)
    assert unit_rows(csr).data == pytest.approx([0, 0.5**0.5, 0.5**0.5])


@settings(max_examples=60, deadline=None)
@given(partitions())
def test_label_counts_are_column_sums(partition: Partition) -> None:
    sums = to_scipy(partition.labels).toarray().sum(axis=0)
    assert label_counts(partition.labels).tolist() == sums.tolist()
    assert label_counts(partition.labels, 8).tolist() == [*sums.tolist(), 0, 0]


def test_from_scipy_sorts_sums_and_leaves_its_argument() -> None:
    matrix = sp.csr_matrix((np.array([1.0, 2, 3]), np.array([2, 0, 2]), np.array([0, 3])), (1, 4))
    csr = from_scipy(matrix)
    assert (csr.indices.tolist(), csr.data.tolist(), csr.columns) == ([0, 2], [2, 4], 4)
    assert matrix.indices.tolist() == [2, 0, 2]
    labels = from_scipy(sp.csr_matrix([[0.0, 5, 0]]), ones=True)
    assert (labels.indices.tolist(), labels.data) == ([1], None)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_from_scipy_refuses_what_float32_cannot_hold(value: float) -> None:
    with pytest.raises(InputError, match="NaN, infinite"):
        from_scipy(sp.csr_matrix([[value]]))


def test_rows_out_of_range_are_refused() -> None:
    csr = from_scipy(np.eye(3))
    partition = Partition(csr, csr)
    for rows in ([3], [-1]):
        with pytest.raises(IndexError):
            take_rows(partition, np.array(rows))
    with pytest.raises(IndexError):
        slice_rows(partition, 2, 4)


# ---------------------------------------------------------- matrices of users


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


@pytest.mark.parametrize("rows", [3, BLOCK_ROWS + 1])
@pytest.mark.parametrize(
    ("indices", "indptr", "message"),
    [
        ([0, 5_000_000], [0, 2, 2], "indices must be < 20"),
        ([0, 20], [0, 2, 2], "indices must be < 20"),
        ([-5, 1], [0, 2, 2], "indices must be >= 0"),
        ([0, 1], [0, 2, 1], "indptr must be a non-decreasing sequence"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_matrices_that_scipy_makes_of_wrong_numbers_are_refused(
    indices: list[int], indptr: list[int], message: str, dtype: str, rows: int
) -> None:
    """Not read beyond their ends, which ended the process."""
    starts = np.int32(indptr + [2] * (rows - 2))
    wrong = sp.csr_matrix((np.ones(2, dtype), np.int32(indices), starts), (rows, 20))
    with pytest.raises(InputError, match=f"not a valid sparse matrix: {message}"):
        list(feature_blocks(wrong, 20))
    with pytest.raises(InputError, match=f"Y: not a valid sparse matrix: {message}"):
        label_csr(wrong, rows, 20)
    by_columns = sp.csc_matrix((np.ones(2, dtype), np.int32(indices), starts), (20, rows))
    with pytest.raises(InputError, match=f"not a valid sparse matrix: {message}"):
        list(feature_blocks(by_columns, rows))


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
    for value in (-1, 0.5, -0.25):
        for Y in (np.array([[0, value]]), sp.csr_matrix([[0, value]])):
            with pytest.raises(InputError, match=f"Y: a label has the value {value}, not 0 or 1;"):
                label_csr(Y, 1, 2)
