"""What the kernels of sampled output layers take: the labels of rows, and the buckets of rows."""

from __future__ import annotations

from dataclasses import dataclass

from daskxml.core.arrays import Array


@dataclass(frozen=True, slots=True)
class RowSamples:
    """The labels of each row of a batch that the loss is computed over, in flat arrays.

    Attributes
    ----------
    starts
        ``(rows + 1,)`` int64: row ``i`` has ``ids[starts[i]:starts[i + 1]]``.
    ids
        ``(pairs,)`` int32 labels, distinct in a row: the row's targets, those from its buckets,
        those drawn uniformly.
    rows
        ``(pairs,)`` int32: the row of the batch that each belongs to.
    own
        ``(rows,)`` int32: how many of a row's labels are targets.

    Examples
    --------
    >>> import numpy as np
    >>> ids, rows = np.array([7, 2, 9], np.int32), np.array([0, 0, 1], np.int32)
    >>> samples = RowSamples(np.array([0, 2, 3]), ids, rows, rows)
    >>> samples.ids[samples.starts[0] : samples.starts[1]]
    array([7, 2], dtype=int32)
    """

    starts: Array
    ids: Array
    rows: Array
    own: Array

    @property
    def pairs(self) -> int:
        """How many logits a step computes."""
        return int(self.ids.shape[0])


@dataclass(frozen=True, slots=True)
class Lookup:
    """The buckets of the rows of a batch.

    Attributes
    ----------
    keys
        ``(tables, rows)`` int32: the bucket of each row in every hash table.
    starts, members
        Labels by bucket, see `daskxml.kernels.cpu.sampling.fill_buckets`.
    """

    keys: Array
    starts: Array
    members: Array
