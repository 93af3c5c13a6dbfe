"""Matrix products in which one side is a single vector: what a batch of one row needs.

BLAS's ``sgemm`` copies its operands into panels first, which costs several times the product itself
where each weight is used once. The sums of a dot product are formed in the order that vectorises
best: always the same one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from daskxml.types import Array

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


def vector_product(out: Array, a: Array, b: Array, alpha: float, beta: float) -> bool:
    """``out = alpha * a @ b + beta * out`` in place, if that is a vector's; False if it is not.

    Parameters
    ----------
    out, a, b
        ``(m, n)``, ``(m, k)`` and ``(k, n)`` float32. It is for this function where m, n or k is
        1, and the matrix among the three lies row after row, or as a transposed view of one.

    Examples
    --------
    >>> out = np.zeros((1, 2), np.float32)
    >>> row, matrix = np.ones((1, 3), np.float32), np.ones((3, 2), np.float32)
    >>> vector_product(out, row, matrix, 2.0, 0.0), out
    (True, array([[6., 6.]], dtype=float32))
    >>> vector_product(matrix, np.ones((3, 3), np.float32), matrix, 1.0, 0.0)
    False
    """
    if a.shape[1] == 1:
        kernel, target, x, matrix = outer, out, _line(a), _line(b)
    else:
        target, x, matrix = (out, a, b) if out.shape[0] == 1 else (out.T, b.T, a.T)
        if target.shape[0] != 1:
            return False
        kernel, target, x = add_rows, target[0], x[0]
        if not matrix.flags.c_contiguous:
            kernel, matrix = dot_rows, matrix.T
    if not (target.flags.c_contiguous and x.flags.c_contiguous and matrix.flags.c_contiguous):
        return False  # compiled for no other
    kernel(target, x, matrix, np.float32(alpha), np.float32(beta))
    return True


def _line(matrix: Array) -> Array:
    """The only row, or the only column."""
    return matrix[0] if matrix.shape[0] == 1 else matrix[:, 0]


@njit(nogil=True, cache=True, fastmath={"contract"})
def add_rows(out: Any, x: Any, matrix: Any, alpha: Any, beta: Any) -> None:
    """``out = alpha * x @ matrix + beta * out``: rows of the matrix are added up."""
    _scale(out, beta)
    for i in range(matrix.shape[0]):
        factor = alpha * x[i]
        for j in range(matrix.shape[1]):
            out[j] += factor * matrix[i, j]


@njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz"})
def dot_rows(out: Any, x: Any, matrix: Any, alpha: Any, beta: Any) -> None:
    """``out = alpha * matrix @ x + beta * out``: a dot product for each row of the matrix."""
    _scale(out, beta)
    for i in range(matrix.shape[0]):
        total = _ZERO
        for j in range(matrix.shape[1]):
            total += matrix[i, j] * x[j]
        out[i] += alpha * total


@njit(nogil=True, cache=True, fastmath={"contract"})
def outer(out: Any, left: Any, right: Any, alpha: Any, beta: Any) -> None:
    """``out = alpha * left[:, None] * right + beta * out``; rows that would not change are left.

    So threads of a pool do not take each other's cache lines for nothing.
    """
    for i in range(out.shape[0]):
        factor = alpha * left[i]
        if factor == _ZERO and beta == _ONE:
            continue
        _scale(out[i], beta)
        for j in range(out.shape[1]):
            out[i, j] += factor * right[j]


@njit(nogil=True, cache=True)
def _scale(out: Any, beta: Any) -> None:
    """``out = beta * out``; what is there is not read where beta is zero."""
    if beta == _ZERO:
        out[:] = _ZERO
    elif beta != _ONE:
        for j in range(out.shape[0]):
            out[j] *= beta
