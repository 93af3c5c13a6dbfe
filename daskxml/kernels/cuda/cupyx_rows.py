"""Rows on a GPU as matrices of ``cupyx.scipy.sparse``, and back."""

from __future__ import annotations

from typing import Any

from daskxml.core.arrays import Csr
from daskxml.core.errors import InputError


def to_cupyx(csr: Csr) -> Any:
    """View rows on a GPU as ``cupyx.scipy.sparse.csr_matrix`` of float32.

    Parameters
    ----------
    csr
        Of CuPy arrays. Column ids and values are shared, and must not be changed; offsets are
        copied as int32, and labels have no values of their own: they become ones.

    Raises
    ------
    InputError
        For 2**31 entries and more, which int32 offsets cannot tell.

    Examples
    --------
    ::

        part = kernels.to_device(partition)
        lengths = to_cupyx(part.features).getnnz(axis=1)
    """
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    if csr.nonzeros >= 2**31:
        raise InputError(f"{csr.nonzeros:,} entries: cupyx takes less than 2,147,483,648")
    data = cupy.ones(csr.nonzeros, "float32") if csr.data is None else csr.data
    indptr = csr.indptr.astype("int32")
    return csr_matrix((data, csr.indices, indptr), shape=(csr.rows, csr.columns))


def from_cupyx(matrix: Any, *, ones: bool = False) -> Csr:
    """Return rows that share the column ids and values of a ``cupyx.scipy.sparse.csr_matrix``.

    Parameters
    ----------
    matrix
        Of float32 and int32. Column ids are sorted, and duplicates summed, in place.
    ones
        Whether it holds labels: then its values are not kept.

    Raises
    ------
    InputError
        If it is of another format or type.

    Examples
    --------
    ::

        features = from_cupyx(cupyx.scipy.sparse.random(100, 50, format="csr", dtype="float32"))
    """
    format, kinds = getattr(matrix, "format", ""), (matrix.dtype.name, matrix.indices.dtype.name)
    if format != "csr" or kinds != ("float32", "int32"):
        raise InputError(f"a matrix in the format {format!r} of {kinds}: give csr, float32, int32")
    matrix.sum_duplicates()
    data = None if ones else matrix.data
    return Csr(matrix.indptr.astype("int64"), matrix.indices, data, int(matrix.shape[1]))
