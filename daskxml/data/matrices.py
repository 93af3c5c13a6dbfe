"""Matrices that users pass (SciPy, NumPy, the package `sparse`), checked and converted to CSR."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import njit

from daskxml.core.arrays import Csr, Partition
from daskxml.core.errors import InputError
from daskxml.data.rows import concatenate_csr, from_scipy, tidy_rows, to_scipy

BLOCK_ROWS = 8192  # converted at a time
LARGEST = float(np.finfo(np.float32).max)
ASCENDING, UNORDERED, INVALID = range(3)


@njit(nogil=True, cache=True)
def find_order(indptr, indices, data, columns):  # type: ignore[no-untyped-def]
    """Return `ASCENDING` if the column ids of every row ascend, else `UNORDERED`.

    `INVALID` where one is out of range, or a value is no finite float32.
    """
    found = ASCENDING
    for row in range(indptr.size - 1):
        before = -1
        for k in range(indptr[row], indptr[row + 1]):
            if not (0 <= indices[k] < columns and abs(data[k]) <= LARGEST):
                return INVALID
            if indices[k] <= before:
                found = UNORDERED
            before = indices[k]
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
    for start in range(0, rows, BLOCK_ROWS):
        yield _owned_block(matrix[start : start + BLOCK_ROWS], first_row + start)


def matrix_partition(X: Any, Y: Any, *, first_row: int, shape: tuple[int, int]) -> Partition:
    """Check a block of rows and of their labels, and make a partition of them.

    Parameters
    ----------
    X, Y
        As `feature_blocks` and `label_csr` take them.
    first_row
        Number of the first row, for messages.
    shape
        Columns of X and of Y.

    Raises
    ------
    InputError
        If they differ in the number of rows, or hold values that are not finite numbers.

    Examples
    --------
    >>> matrix_partition(np.eye(2), np.ones((2, 1)), first_row=0, shape=(2, 1)).rows
    2
    """
    rows = X.shape[0]
    if Y.shape[:1] != (rows,):
        raise InputError(f"X has {rows} rows but Y has {Y.shape[0]}")
    blocks = list(feature_blocks(X, shape[0], first_row))
    if not blocks:
        blocks = [from_scipy(np.zeros((0, shape[0])))]
    features = blocks[0] if len(blocks) == 1 else concatenate_csr(blocks)
    return Partition(features, label_csr(Y, rows, shape[1]))


def label_csr(Y: Any, rows: int, columns: int) -> Csr:
    """Check labels, which are the entries that are not zero.

    Parameters
    ----------
    Y
        ``(rows, columns)``, of a type that ``feature_blocks`` accepts, or a ``Csr``.
    rows, columns
        The required shape.

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
    if matrix.shape != (rows, columns):
        raise InputError(f"Y is {matrix.shape}, but X and the model ask for {(rows, columns)}")
    try:
        return from_scipy(matrix, ones=True)
    except ValueError as error:
        raise InputError(f"Y: {error}; give 1 where a label is true") from error


def _rows_first(given: Any, what: str) -> Any:
    """Return a matrix of numbers that can be sliced by rows."""
    from scipy.sparse import issparse

    if isinstance(given, Csr):
        return to_scipy(given)
    if hasattr(given, "to_scipy_sparse"):  # a matrix of the package `sparse`
        given = given.to_scipy_sparse()
    if type(given).__module__.partition(".")[0] in ("cupy", "cupyx"):
        given = given.get()
    matrix = given.tocsr() if issparse(given) else np.asarray(given)
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise InputError(
            f"{what} of shape {matrix.shape} and dtype {matrix.dtype}: "
            "give a matrix of numbers, a row for each sample"
        )
    return matrix


def _owned_block(block: Any, first_row: int) -> Csr:
    """Convert rows from ``first_row`` on to arrays that own their memory."""
    if getattr(block, "format", "") == "csr" and block.data.dtype.char in "fd":
        indptr, indices, data = block.indptr, block.indices, block.data
        order = find_order(indptr, indices, data, block.shape[1])
        if order != INVALID:
            owned = indptr.astype(np.int64), indices.astype(np.int32), data.astype(np.float32)
            if order == ASCENDING or tidy_rows(*owned) == 0:  # sums of equal ids may be too large
                return Csr(*owned, int(block.shape[1]))
    try:
        return from_scipy(block)
    except ValueError as error:
        row = next(row for row in range(block.shape[0]) if not _convertible(block[row : row + 1]))
        raise InputError(f"X, row {first_row + row}: {error}; mend or remove it") from error


def _convertible(block: Any) -> bool:
    try:
        from_scipy(block)
    except ValueError:
        return False
    return True
