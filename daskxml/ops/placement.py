"""Move every array of a value with one function: how data gets to a device and back."""

from __future__ import annotations

from collections.abc import Callable

from daskxml.types import Array, Csr, Partition, Segment


def relocate(value: object, move: Callable[[Array], Array]) -> object:
    """An array, ``Csr``, ``Partition`` or ``Segment`` with ``move`` applied to its arrays.

    The same object comes back where ``move`` changed nothing.

    Examples
    --------
    >>> import numpy as np
    >>> x = Csr(np.array([0, 1]), np.array([2], np.int32), None, 3)
    >>> relocate(x, np.asarray) is x
    True
    """
    if isinstance(value, Csr):
        indptr, indices = move(value.indptr), move(value.indices)
        data = None if value.data is None else move(value.data)
        same = indptr is value.indptr and indices is value.indices and data is value.data
        return value if same else Csr(indptr, indices, data, value.columns)
    if isinstance(value, Partition):
        features, labels = relocate(value.features, move), relocate(value.labels, move)
        if features is value.features and labels is value.labels:
            return value
        return Partition(features, labels)  # type: ignore[arg-type]
    if isinstance(value, Segment):
        partition, rows = relocate(value.partition, move), move(value.rows)
        if partition is value.partition and rows is value.rows:
            return value
        return Segment(partition, rows)  # type: ignore[arg-type]
    return move(value)
