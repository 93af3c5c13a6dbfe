"""A user's matrices as training rows: put on the workers, block by block, by the client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distributed import Client, Future

from daskxml.errors import InputError
from daskxml.model.matrices import feature_blocks, label_csr
from daskxml.types import Csr, Partition


@dataclass(frozen=True)
class Matrices:
    """Rows in memory.

    A worker that is lost takes its share of them with it, and the run ends: only files are read
    again.

    Attributes
    ----------
    X
        ``(rows, features)``: scipy sparse of any format, or a dense array of numbers.
    Y
        ``(rows, labels)``: the same, with 1 where a label is true.

    Examples
    --------
    >>> import numpy as np
    >>> rows = Matrices(np.eye(3), np.array([[1, 0], [0, 1], [1, 1]]))
    >>> [part.rows for part in rows.partitions()]
    [3]
    """

    X: Any
    Y: Any

    def partitions(self) -> list[Partition]:
        """Return the rows as partitions of a few thousand.

        Raises
        ------
        InputError
            If the two do not have the same number of rows, or hold what is no number.
        """
        try:
            (rows, columns), (label_rows, labels) = self.X.shape, self.Y.shape
        except (AttributeError, ValueError) as error:
            raise InputError("Matrices(X, Y) takes two matrices, a row for each sample") from error
        if rows != label_rows:
            raise InputError(f"X has {rows} rows but Y has {label_rows}")
        targets = label_csr(self.Y, rows, labels)
        parts, first = [], 0
        for features in feature_blocks(self.X, columns):
            last = first + features.rows
            parts.append(Partition(features, _slice(targets, first, last)))
            first = last
        return parts


def _slice(labels: Csr, first: int, last: int) -> Csr:
    start, stop = labels.indptr[first], labels.indptr[last]
    indptr = labels.indptr[first : last + 1] - start
    return Csr(indptr, labels.indices[start:stop], None, labels.columns)


def scatter(client: Client, matrices: Matrices, name: str) -> list[Future]:
    """Put the rows on the workers; they stay there while the futures are held."""
    parts = matrices.partitions()
    futures: list[Future] = client.scatter(parts, hash=False)
    return futures
