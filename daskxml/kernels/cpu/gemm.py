"""Single precision matrix products that write into the caller's array and release the GIL.

SciPy exports the BLAS that it links (``scipy.linalg.cython_blas``). Its ``sgemm`` is called here
through ctypes, because NumPy's ``matmul`` cannot accumulate (``beta = 1``) and SciPy's own
wrappers hold the GIL. Whoever trains or predicts limits the library to one thread meanwhile
(`thread_team.ONE_THREAD`): the kernels run one product per thread themselves, which scales better
on the long thin matrices of an output layer. NumPy's BLAS is another library and is not changed.

A product in which one side is a single vector, as in a batch of one row, is a Numba loop instead:
``sgemm`` copies its operands into panels first, which costs several times the product itself where
each weight is used once. Its dot products are summed in the order that vectorizes best, always the
same one.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from daskxml.core.arrays import Array
from daskxml.core.jit import njit
from daskxml.kernels.cpu.numba_math import dot
from daskxml.kernels.operands import orientation

_TRANSPOSES = {False: b"N", True: b"T"}
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


def gemm(out: Array, a: Array, b: Array, alpha: float = 1.0, beta: float = 0.0) -> None:
    """``out = alpha * a @ b + beta * out``, in place.

    Parameters
    ----------
    out
        ``(m, n)`` float32, rows contiguous; overwritten.
    a, b
        ``(m, k)`` and ``(k, n)`` float32, either one C- or F-ordered (a transposed view is free).

    Raises
    ------
    ValueError
        If a matrix is strided in both directions, which no BLAS can read.

    Examples
    --------
    >>> out = np.ones((1, 2), dtype=np.float32)
    >>> gemm(out, np.ones((1, 3), np.float32), np.ones((3, 2), np.float32), 2.0, 1.0)
    >>> out
    array([[7., 7.]], dtype=float32)
    """
    m, n = out.shape
    if m == 0 or n == 0 or (1 in (m, n, a.shape[1]) and vector_product(out, a, b, alpha, beta)):
        return
    (flips_a, lda), (flips_b, ldb), (flips_out, ldc) = map(orientation, (a, b, out))
    if flips_out:
        raise ValueError("gemm writes rows that are contiguous: pass the transposed product")
    # BLAS counts columns first, so it is given out.T = b.T @ a.T.
    _sgemm()(
        _TRANSPOSES[flips_b], _TRANSPOSES[flips_a], _int(n), _int(m), _int(a.shape[1]),
        _float(alpha), b.ctypes.data, _int(ldb), a.ctypes.data, _int(lda),
        _float(beta), out.ctypes.data, _int(ldc),
    )  # fmt: skip


def _int(value: int) -> Any:
    return ctypes.byref(ctypes.c_int(value))


def _float(value: float) -> Any:
    return ctypes.byref(ctypes.c_float(value))


@functools.cache
def _sgemm() -> Callable[..., None]:
    from scipy.linalg import cython_blas

    return _function(cython_blas.__pyx_capi__["sgemm"])


def _function(capsule: object) -> Callable[..., None]:
    """A C function of thirteen pointers, as Cython exports it; a call releases the GIL."""
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 13)(address)


# -- products with a vector ----------------------------------------------------------------------


def vector_product(out: Array, a: Array, b: Array, alpha: float, beta: float) -> bool:
    """``out = alpha * a @ b + beta * out`` in place; False if no operand is a vector.

    Parameters
    ----------
    out, a, b
        ``(m, n)``, ``(m, k)`` and ``(k, n)`` float32. m, n or k must be 1, and the matrix among
        the three C-contiguous, or a transposed view of such.

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
        return False  # not compiled for other layouts
    kernel(target, x, matrix, np.float32(alpha), np.float32(beta))
    return True


def _line(matrix: Array) -> Array:
    """The only row, or the only column."""
    return matrix[0] if matrix.shape[0] == 1 else matrix[:, 0]


@njit(nogil=True, fastmath={"contract"})
def add_rows(out: Any, x: Any, matrix: Any, alpha: Any, beta: Any) -> None:
    """``out = alpha * x @ matrix + beta * out``: a sum of rows of the matrix."""
    _scale(out, beta)
    for i in range(matrix.shape[0]):
        factor = alpha * x[i]
        for j in range(matrix.shape[1]):
            out[j] += factor * matrix[i, j]


@njit(nogil=True)
def dot_rows(out: Any, x: Any, matrix: Any, alpha: Any, beta: Any) -> None:
    """``out = alpha * matrix @ x + beta * out``: a dot product for each row of the matrix."""
    _scale(out, beta)
    for i in range(matrix.shape[0]):
        out[i] += alpha * dot(x, matrix[i])


@njit(nogil=True, fastmath={"contract"})
def outer(out: Any, left: Any, right: Any, alpha: Any, beta: Any) -> None:
    """``out = alpha * left[:, None] * right + beta * out``; rows that would not change are not
    written, so that threads of a pool do not invalidate each other's cache lines for nothing.
    """
    for i in range(out.shape[0]):
        factor = alpha * left[i]
        if factor == _ZERO and beta == _ONE:
            continue
        _scale(out[i], beta)
        for j in range(out.shape[1]):
            out[i, j] += factor * right[j]


@njit(nogil=True)
def _scale(out: Any, beta: Any) -> None:
    """``out = beta * out``; ``out`` is not read where beta is zero."""
    if beta == _ZERO:
        out[:] = _ZERO
    elif beta != _ONE:
        for j in range(out.shape[0]):
            out[j] *= beta
