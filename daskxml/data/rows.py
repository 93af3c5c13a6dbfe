"""Rows of sparse matrices in host memory: select, concatenate, scale, count, and check.

Matrices that users pass (SciPy, NumPy, the package `sparse`) are checked and converted to CSR.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from daskxml.core.arrays import Array, Csr, Partition, starts_of
from daskxml.core.errors import InputError, TrainingError
from daskxml.core.jit import njit

BLOCK_ROWS = 8192  # converted at a time
Made = TypeVar("Made")
LARGEST = float(np.finfo(np.float32).max)


def find_bad_row(
    rows: Any, make: Callable[[Any], Made], refuse: Callable[[int, str], InputError]
) -> Made:
    """Return ``make(rows)``; where that fails, find the first row at which it does.

    Parameters
    ----------
    rows
        Anything that has a length and can be sliced: lines, an Arrow batch, a data frame.
    make
        Raises `InputError` for rows of which one is wrong; succeeds for none at all.
    refuse
        Makes the error of a row's number, counted from 0, and what is wrong with it.

    Raises
    ------
    InputError
        Of the first row that is wrong.

    Examples
    --------
    >>> def make(rows):
    ...     if "x" in rows:
    ...         raise InputError("is x")
    >>> find_bad_row(["a", "b", "x", "x"], make, lambda row, text: InputError(f"row {row} {text}"))
    Traceback (most recent call last):
    daskxml.core.errors.InputError: row 2 is x
    """
    try:
        return make(rows)
    except InputError as error:
        good, bad, problem = 0, len(rows), error.problem
    while bad - good > 1:  # the first ``good`` rows are right, among the first ``bad`` one is wrong
        middle = (good + bad) // 2
        try:
            make(rows[:middle])
            good = middle
        except InputError as error:
            bad, problem = middle, error.problem
    raise refuse(good, problem) from None


@njit(nogil=True)
def count_descents(indptr, ids):  # type: ignore[no-untyped-def]
    """How many ids do not exceed the one before in their row, and the largest last id of a row."""
    first, largest, descents = indptr[0], -1, 0
    later, earlier = ids[first + 1 : indptr[-1]], ids[first : indptr[-1]]
    for k in range(later.size):  # over all rows at once, which is vectorized
        descents += later[k] <= earlier[k]
    for row in range(indptr.size - 1):
        start, stop = indptr[row], indptr[row + 1]
        if start < stop:
            largest = max(largest, ids[stop - 1])
            descents -= start > first and ids[start] <= ids[start - 1]
    return descents, largest


@njit(nogil=True)
def tidy_rows(indptr, ids, values):  # type: ignore[no-untyped-def]
    """Sort the ids of every row in place and merge equal ones.

    Values of equal ids are summed in their order; `values` may be empty, for labels. `indptr` is
    updated; entries behind its last one are garbage.

    Returns how many rows did not ascend strictly, how many entries were merged, and the largest id.
    """
    descents, largest = count_descents(indptr, ids)
    if descents == 0:
        return 0, 0, largest
    fill, start, unsorted = indptr[0], indptr[0], 0
    for row in range(indptr.size - 1):
        stop = indptr[row + 1]
        order = start + np.argsort(ids[start:stop], kind="mergesort")
        sorted_ids = ids[order]
        sorted_values = values[order] if values.size else values
        ascending = True
        for i in range(stop - start):
            repeated = i > 0 and sorted_ids[i] == sorted_ids[i - 1]
            ascending &= (order[i] == start + i) & (not repeated)
            if repeated:
                if values.size:
                    values[fill - 1] += sorted_values[i]
                continue
            ids[fill] = sorted_ids[i]
            if values.size:
                values[fill] = sorted_values[i]
            fill += 1
            largest = max(largest, sorted_ids[i])
        unsorted += not ascending
        indptr[row + 1] = fill
        start = stop
    return unsorted, start - fill, largest


@njit(nogil=True, error_model="numpy")
def copy_rows(indptr, source, rows, starts, target):  # type: ignore[no-untyped-def]
    """Copy the entries of chosen rows from `source` to `target`; row i begins at starts[i]."""
    for i in range(rows.size):
        begin, fill = indptr[rows[i]], starts[i]
        for k in range(starts[i + 1] - fill):
            target[fill + k] = source[begin + k]


@njit(nogil=True, error_model="numpy")
def scale_rows(indptr, data):  # type: ignore[no-untyped-def]
    """Divide every row by its L2 norm, in place, unless the norm is 0."""
    for row in range(indptr.size - 1):
        squares = 0.0
        for k in range(indptr[row], indptr[row + 1]):
            squares += np.float64(data[k]) * np.float64(data[k])
        if squares > 0.0:
            scale = 1.0 / np.sqrt(squares)
            for k in range(indptr[row], indptr[row + 1]):
                data[k] = np.float32(data[k] * scale)


def take_csr(csr: Csr, rows: Array) -> Csr:
    """Copy chosen rows of a matrix, in the order given, in a file where it is in one."""
    indptr = starts_of(csr.indptr[rows + 1] - csr.indptr[rows])
    count, in_file = int(indptr[-1]), is_on_disk(csr)
    indices = empty_array(count, np.int32, in_file=in_file)
    copy_rows(csr.indptr, csr.indices, rows, indptr, indices)
    if csr.data is None:
        return Csr(indptr, indices, None, csr.columns)
    data = empty_array(count, np.float32, in_file=in_file)
    copy_rows(csr.indptr, csr.data, rows, indptr, data)
    return Csr(indptr, indices, data, csr.columns)


def take_rows(partition: Partition, rows: Array) -> Partition:
    """Copy chosen rows of a partition.

    Parameters
    ----------
    partition
        Features ``(rows, F)`` and labels ``(rows, L)``.
    rows
        ``(count,)`` int64 row numbers, in any order, possibly repeated.

    Raises
    ------
    IndexError
        A row number is negative or too large.

    Examples
    --------
    >>> from daskxml.data.parse import parse_bytes
    >>> partition = parse_bytes(b"0 1:1\\n1 2:2\\n2 3:3\\n").partition
    >>> take_rows(partition, np.array([2, 0])).labels.indices
    array([2, 0], dtype=int32)
    """
    rows = np.ascontiguousarray(rows, np.int64)
    if rows.size and not (rows.min() >= 0 and rows.max() < partition.rows):
        raise IndexError(f"row numbers must be in 0 to {partition.rows - 1}")
    weights = None if partition.weights is None else partition.weights[rows]
    return Partition(take_csr(partition.features, rows), take_csr(partition.labels, rows), weights)


def slice_csr(csr: Csr, start: int, stop: int) -> Csr:
    """Rows `start` to `stop` of a matrix; indices and data are views."""
    first, last = int(csr.indptr[start]), int(csr.indptr[stop])
    indptr = csr.indptr[start : stop + 1] - first
    data = None if csr.data is None else csr.data[first:last]
    return Csr(indptr, csr.indices[first:last], data, csr.columns)


def slice_rows(partition: Partition, start: int, stop: int) -> Partition:
    """Rows `start` to `stop` of a partition, without copying indices and values.

    Raises
    ------
    IndexError
        Unless ``0 <= start <= stop <= partition.rows``.

    Examples
    --------
    >>> from daskxml.data.parse import parse_bytes
    >>> slice_rows(parse_bytes(b"0 1:1\\n1 2:2\\n2 3:3\\n").partition, 1, 3).labels.indices
    array([1, 2], dtype=int32)
    """
    if not 0 <= start <= stop <= partition.rows:
        raise IndexError(f"rows {start} to {stop} of a partition of {partition.rows}")
    return Partition(
        slice_csr(partition.features, start, stop),
        slice_csr(partition.labels, start, stop),
        None if partition.weights is None else partition.weights[start:stop],
    )


def concatenate_csr(parts: Sequence[Csr], *, in_file: bool = False) -> Csr:
    """Stack matrices vertically, in a file if asked or where one is in one; see `concatenate`."""
    indptr = starts_of(np.concatenate([np.diff(part.indptr) for part in parts]))
    count, in_file = int(indptr[-1]), in_file or any(map(is_on_disk, parts))
    indices = empty_array(count, np.int32, in_file=in_file)
    np.concatenate([part.indices for part in parts], out=indices)
    values, data = [part.data for part in parts if part.data is not None], None
    if len(values) == len(parts):
        data = np.concatenate(values, out=empty_array(count, np.float32, in_file=in_file))
    return Csr(indptr, indices, data, max(part.columns for part in parts))


def concatenate(partitions: Sequence[Partition]) -> Partition:
    """Stack partitions (at least one); the result has the largest of their numbers of columns.

    Examples
    --------
    >>> from daskxml.data.parse import parse_bytes
    >>> partition = parse_bytes(b"0 1:1\\n1 2:2\\n").partition
    >>> concatenate([partition, partition]).labels.indices
    array([0, 1, 0, 1], dtype=int32)
    """
    weights = [part.weights for part in partitions if part.weights is not None]
    are_weighted = weights and sum(map(len, weights)) == sum(part.rows for part in partitions)
    return Partition(
        concatenate_csr([part.features for part in partitions]),
        concatenate_csr([part.labels for part in partitions]),
        np.concatenate(weights) if are_weighted else None,
    )


def split_rows(partition: Partition, destination: Array, parts: int) -> list[Partition]:
    """Distribute rows over parts, each of which keeps their order.

    Parameters
    ----------
    partition
        The rows.
    destination
        ``(rows,)`` integers: the part of each row, 0 to ``parts - 1``.
    parts
        Number of partitions returned; some may be empty.

    Examples
    --------
    >>> from daskxml.data.parse import parse_bytes
    >>> partition = parse_bytes(b"0 1:1\\n1 2:2\\n2 3:3\\n").partition
    >>> [part.labels.indices.tolist() for part in split_rows(partition, np.array([1, 0, 1]), 2)]
    [[1], [0, 2]]
    """
    order = np.argsort(destination, kind="stable")
    edges = np.cumsum(np.bincount(destination, minlength=parts))[:-1]
    return [take_rows(partition, rows) for rows in np.split(order, edges)]


def empty_array(count: int, dtype: Any, *, in_file: bool) -> Array:
    """Return an array ``(count,)``, in memory or in a file that nobody else sees.

    Of what is in a file, memory holds what is used. The file is in `tempfile.gettempdir()`.

    Raises
    ------
    TrainingError
        If there is no room for the file.
    """
    if not in_file or not count:
        return np.empty(count, dtype)
    with tempfile.TemporaryFile(prefix="daskxml-rows-") as file:
        try:  # now: a page that finds no room later ends the process
            os.posix_fallocate(file.fileno(), 0, count * np.dtype(dtype).itemsize)
        except OSError as error:
            raise TrainingError(
                f"no room in {tempfile.gettempdir()} for rows that memory does not hold "
                f"({error.strerror}): free some there, or set TMPDIR to another folder"
            ) from error
        return np.asarray(np.memmap(file, dtype, "w+", shape=count))


def on_disk(partition: Partition) -> Partition:
    """Return the same rows, in files."""
    matrices = (partition.features, partition.labels)
    features, labels = (concatenate_csr([each], in_file=True) for each in matrices)
    return replace(partition, features=features, labels=labels)


def is_on_disk(csr: Csr) -> bool:
    """Whether rows are in files.

    Examples
    --------
    >>> rows = from_scipy(np.eye(2))
    >>> is_on_disk(rows), is_on_disk(on_disk(Partition(rows, rows)).features)
    (False, True)
    """
    return isinstance(csr.indices.base, np.memmap)


def unit_rows(csr: Csr) -> Csr:
    """Scale the rows to unit L2 length in place, leaving rows of zeros; return the same matrix.

    Examples
    --------
    >>> from daskxml.data.parse import parse_bytes
    >>> unit_rows(parse_bytes(b"0 1:3 2:4\\n").partition.features).data
    array([0.6, 0.8], dtype=float32)
    """
    scale_rows(csr.indptr, csr.data)
    return csr


def label_counts(csr: Csr, labels: int | None = None) -> Array:
    """Number of rows with each label, ``(labels,)`` int64, by default for all columns.

    Examples
    --------
    >>> from daskxml.data.parse import parse_bytes
    >>> label_counts(parse_bytes(b"0,2 1:1\\n2 1:1\\n").partition.labels)
    array([1, 0, 2])
    """
    return np.bincount(csr.indices, minlength=csr.columns if labels is None else labels)


def to_scipy(csr: Csr) -> Any:
    """The matrix as ``scipy.sparse.csr_matrix`` of float32, sharing its arrays.

    Examples
    --------
    >>> from daskxml.data.parse import parse_bytes
    >>> to_scipy(parse_bytes(b"0,2 1:1\\n2 1:1\\n").partition.labels).toarray()
    array([[1., 0., 1.],
           [0., 0., 1.]], dtype=float32)
    """
    from scipy.sparse import csr_matrix

    data = np.ones(csr.nonzeros, np.float32) if csr.data is None else csr.data
    return csr_matrix((data, csr.indices, csr.indptr), shape=(csr.rows, csr.columns))


def from_scipy(matrix: Any, *, ones: bool = False) -> Csr:
    """Check and convert a sparse or dense matrix; the argument is not changed.

    Parameters
    ----------
    matrix
        ``(rows, columns)``: anything that ``scipy.sparse.csr_array`` accepts.
    ones
        Whether it holds labels: explicit zeros are dropped, and no values are kept.

    Raises
    ------
    InputError
        Not two-dimensional, column numbers are out of range, or a value is NaN or infinite or does
        not fit float32.

    Examples
    --------
    >>> from_scipy(np.array([[0.0, 2.0], [1.0, 0.0]])).indices
    array([1, 0], dtype=int32)
    """
    from scipy.sparse import csr_array

    if getattr(matrix, "ndim", 2) != 2:
        raise InputError(f"a matrix has two dimensions, not {matrix.ndim}")
    copy = csr_array(matrix, copy=True)
    _check_format(copy)
    copy.sum_duplicates()  # sorts as well
    if ones:
        copy.eliminate_zeros()
    with np.errstate(over="ignore"):
        data = copy.data.astype(np.float32)
    if not np.isfinite(data).all():
        raise InputError("the matrix holds NaN, infinite values or values that do not fit float32")
    indptr, indices = copy.indptr.astype(np.int64), copy.indices.astype(np.int32)
    return Csr(indptr, indices, None if ones else data, int(copy.shape[1]))


def _check_format(matrix: Any) -> None:
    """Refuse a compressed matrix that SciPy was given with wrong column numbers or row bounds."""
    try:
        matrix.check_format()
    except ValueError as error:
        raise InputError(f"not a valid sparse matrix: {error}") from None


@njit(nogil=True)
def are_valid(indptr, indices, data, columns):  # type: ignore[no-untyped-def]
    """Whether rows follow each other, column ids are in range, and values finite float32."""
    found = True
    for row in range(indptr.size - 1):
        found &= indptr[row] <= indptr[row + 1]
    for k in range(indices.size):
        found &= (0 <= indices[k] < columns) & (abs(data[k]) <= LARGEST)
    return found


def feature_blocks(X: Any, columns: int, first_row: int = 0) -> Iterator[Csr]:
    """Check features, and yield blocks of rows that own their memory.

    Parameters
    ----------
    X
        ``(rows, columns)``: a SciPy sparse matrix or array of any format, anything that NumPy
        converts to a 2-d array of numbers, or a ``Partition`` on the host.
    columns
        Features of the model.
    first_row
        Number of the first row, for messages.

    Raises
    ------
    InputError
        If the shape differs, a value is not a number or not finite in float32.

    Examples
    --------
    >>> [block.nonzeros for block in feature_blocks([[0.0, 2.0], [1.0, 3.0]], columns=2)]
    [3]
    """
    matrix = _rows_first(X.features if isinstance(X, Partition) else X, "features")
    rows, found = matrix.shape
    if found != columns:
        raise InputError(f"X has {found} features, but the model was trained on {columns}")
    if 0 < rows <= BLOCK_ROWS:  # a single row is ranked faster than SciPy slices it
        yield _owned_block(matrix, first_row)
        return
    if getattr(matrix, "format", "") == "csr":
        _check_format(matrix)
    for start in range(0, rows, BLOCK_ROWS):
        yield _owned_block(matrix[start : start + BLOCK_ROWS], first_row + start)


def matrix_partition(
    X: Any, Y: Any, *, first_row: int = 0, shape: tuple[int, int] | None = None
) -> Partition:
    """Check a block of rows and of their labels, and make a partition of them.

    Parameters
    ----------
    X, Y
        As `feature_blocks` and `label_csr` take them.
    first_row
        Number of the first row, for messages.
    shape
        Columns of X and of Y; None: as many as they have.

    Raises
    ------
    InputError
        If they differ in the number of rows, or hold values that are not finite numbers.

    Examples
    --------
    >>> matrix_partition(np.eye(2), np.ones((2, 1))).rows
    2
    """
    rows, shape = X.shape[0], shape or (X.shape[1], Y.shape[1])
    if Y.shape[:1] != (rows,):
        raise InputError(f"X has {rows} rows but Y has {Y.shape[0]}")
    blocks = list(feature_blocks(X, shape[0], first_row))
    if not blocks:
        blocks = [from_scipy(np.zeros((0, shape[0])))]
    features = blocks[0] if len(blocks) == 1 else concatenate_csr(blocks)
    return Partition(features, label_csr(Y, rows, shape[1]))


def label_csr(Y: Any, rows: int, columns: int | None) -> Csr:
    """Check labels, which are the entries that are not zero; see `check_targets`.

    Parameters
    ----------
    Y
        ``(rows, columns)``, of a type that ``feature_blocks`` accepts, or a ``Csr``.
    rows, columns
        The required shape; None: any number of columns.

    Raises
    ------
    InputError
        If the shape differs or the entries are not numbers.

    Examples
    --------
    >>> label_csr([[0, 1], [1, 1]], rows=2, columns=2).indices
    array([1, 0, 1], dtype=int32)
    """
    matrix = _rows_first(Y, "labels")
    wanted = (rows, matrix.shape[1] if columns is None else columns)
    if matrix.shape != wanted:
        raise InputError(f"Y is {matrix.shape}, but X and the model ask for {wanted}")
    try:
        labels = from_scipy(matrix, ones=True)
        if matrix.dtype.kind != "b":
            check_targets(matrix.data if hasattr(matrix, "indptr") else matrix[matrix != 0])
    except InputError as error:
        raise InputError(f"Y: {error}; give 1 where a label is true") from error
    return labels


def check_targets(values: Array) -> None:
    """Refuse values of labels that are neither true nor false: negative ones and fractions.

    Raises
    ------
    InputError
        Naming one.
    """
    wrong = values[(values < 0) | (values != np.rint(values))]
    if wrong.size:
        raise InputError(f"a label has the value {wrong[0]:g}, not 0 or 1")


def _rows_first(given: Any, what: str) -> Any:
    """Return a matrix of numbers that can be sliced by rows."""
    from scipy.sparse import issparse

    if isinstance(given, Csr):
        return to_scipy(given)
    if hasattr(given, "to_scipy_sparse"):  # a matrix of the package `sparse`
        given = given.to_scipy_sparse()
    if type(given).__module__.partition(".")[0] in ("cupy", "cupyx"):
        given = given.get()
    if getattr(given, "format", "") in ("csc", "bsr"):
        _check_format(given)
    matrix = given.tocsr() if issparse(given) else np.asarray(given)
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise InputError(
            f"{what} of shape {matrix.shape} and dtype {matrix.dtype}: "
            "give a matrix of numbers, a row for each sample"
        )
    return matrix


def _owned_block(block: Any, first_row: int) -> Csr:
    """Convert rows from ``first_row`` on to arrays that own their memory."""
    if getattr(block, "format", "") == "csr":
        indptr, indices, data = block.indptr, block.indices, block.data
        if data.dtype.char in "fd" and are_valid(indptr, indices, data, block.shape[1]):
            owned = indptr.astype(np.int64), indices.astype(np.int32), data.astype(np.float32)
            if tidy_rows(*owned)[1] == 0:  # sums of equal ids may be too large
                return Csr(*owned, int(block.shape[1]))
        _check_format(block)

    def first(rows: range) -> Csr:
        return from_scipy(block[: len(rows)])

    def refuse(row: int, problem: str) -> InputError:
        return InputError(f"X, row {first_row + row}: {problem}; fix or remove it")

    return find_bad_row(range(block.shape[0]), first, refuse)
