"""Matrices as users hold them, SciPy's sparse or NumPy's dense, taken in a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse

from daskxml.data.rows import from_scipy, to_scipy
from daskxml.errors import InputError
from daskxml.types import Csr, Partition

BLOCK_ROWS = 8192


def feature_blocks(X: Any, columns: int) -> Iterator[Csr]:
    """Check features, and give them in blocks of rows that own their memory.

    Parameters
    ----------
    X
        ``(rows, columns)``: a SciPy sparse matrix or array of any format, anything that NumPy
        makes a 2-d array of numbers of, or a ``Partition`` on the host.
    columns
        How many features the model knows.

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
    for start in range(0, rows, BLOCK_ROWS):
        yield _owned_block(matrix[start : start + BLOCK_ROWS], start)


def label_csr(Y: Any, rows: int, columns: int) -> Csr:
    """Check true labels: every entry that is not zero is one.

    Parameters
    ----------
    Y
        ``(rows, columns)``, of the kinds that ``feature_blocks`` takes, or a ``Csr``.
    rows, columns
        What it must have.

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
    """Something of two dimensions and numbers that can be sliced by rows."""
    if isinstance(given, Csr):
        return to_scipy(given)
    matrix = given.tocsr() if scipy.sparse.issparse(given) else np.asarray(given)
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise InputError(
            f"{what} of shape {matrix.shape} and dtype {matrix.dtype}: "
            "give a matrix of numbers, a row for each sample"
        )
    return matrix


def _owned_block(block: Any, first_row: int) -> Csr:
    """Convert rows ``first_row`` and on to arrays that are nobody else's to change."""
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
