"""Sparse rows in arrays of any kind (NumPy or CuPy), as they are passed between all rooms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any  # numpy.ndarray or cupy.ndarray, depending on the kernels


@dataclass(frozen=True, slots=True)
class Csr:
    """A sparse matrix of ``rows`` x ``columns``.

    Attributes
    ----------
    indptr
        ``(rows + 1,)`` int64; row ``i`` is ``indices[indptr[i]:indptr[i + 1]]``.
    indices
        ``(nonzeros,)`` int32 column ids, strictly ascending within a row.
    data
        ``(nonzeros,)`` float32 values, or None for a matrix of ones (labels).
    columns
        Number of columns.
    """

    indptr: Array
    indices: Array
    data: Array | None
    columns: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.indptr.shape[0]) - 1

    @property
    def nonzeros(self) -> int:
        """Number of stored entries."""
        return int(self.indices.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays."""
        held = self.indptr.nbytes + self.indices.nbytes
        return int(held + (0 if self.data is None else self.data.nbytes))


@dataclass(frozen=True, slots=True)
class Partition:
    """Consecutive rows of a data set: features ``(rows, F)`` and labels ``(rows, L)``.

    ``weights`` ``(rows,)`` float32 is what each row counts in the loss; None: all count 1.
    """

    features: Csr
    labels: Csr
    weights: Array | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.features.rows

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays."""
        weights = 0 if self.weights is None else int(self.weights.nbytes)
        return self.features.nbytes + self.labels.nbytes + weights


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows of one partition that belong to a batch, in the order of the batch.

    A batch is a sequence of segments: one where the data is replicated, several where it spans
    shards. Kernels read the rows in place; nothing is gathered first.

    Attributes
    ----------
    partition
        The partition that holds the rows.
    rows
        ``(count,)`` int64 row numbers within the partition.
    """

    partition: Partition
    rows: Array


def starts_of(sizes: Any) -> Array:
    """Return where each of several spans that follow one another starts, and the last one ends.

    Examples
    --------
    >>> starts_of([2, 0, 1])
    array([0, 2, 2, 3])
    """
    return np.append(0, np.cumsum(sizes, dtype=np.int64))
