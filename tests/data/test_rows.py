"""Row operations equal what scipy and plain loops make of the same matrices."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.core.arrays import Csr, Partition
from daskxml.core.errors import InputError
from daskxml.data.rows import (
    concatenate,
    from_scipy,
    label_counts,
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
    _, merged, _ = tidy_rows(indptr, ids, np.empty(0, np.float32) if ones else values)
    expected = tidy_naive(rows)
    assert merged == sum(map(len, rows)) - sum(map(len, expected))
    assert np.diff(indptr).tolist() == [len(row) for row in expected]
    assert ids[: indptr[-1]].tolist() == [column for row in expected for column in row]
    if not ones:
        found = values[: indptr[-1]].tolist()
        assert found == [float(value) for row in expected for value in row.values()]


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
