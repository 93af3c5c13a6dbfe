"""What a worker does in an evaluation: ranks labels of test rows, adds up losses of training rows.

Bits of a loss depend on the batch in which a row lies. So losses are found in batches that begin at
multiples of ``batch_rows`` in a shard, whoever finds them: the sum is the same for any number of
workers (of the same device and threads).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from daskxml.errors import TrainingError
from daskxml.metrics import LossSum, MetricSums, metric_sums
from daskxml.training.orders import Piece
from daskxml.training.replica import Replica
from daskxml.types import Array, Csr, Partition, Segment

Shards = Mapping[int, Partition]


def sum_metrics(
    replica: Replica, shards: Shards, pieces: Sequence[Piece], batch_rows: int,
    inverse_propensity: Array, ks: Sequence[int],
) -> MetricSums:  # fmt: skip
    """Rank the labels of pieces of ``shards``; ``inverse_propensity`` is ``(labels,)``."""
    sums = MetricSums.zero(ks)
    there: Partition | None = None
    for part, rows in _batches(shards, pieces, batch_rows):
        if part is not there:
            there, truth = part, replica.kernels.to_host(part.labels)
        ids, _ = replica.top_k([Segment(part, replica.kernels.to_device(rows))], ks[-1])
        sums += metric_sums(ids, _rows_of(truth, rows), inverse_propensity, ks)
    return sums


def sum_losses(
    replica: Replica, shards: Shards, pieces: Sequence[Piece], batch_rows: int
) -> LossSum:
    """Add up the losses of pieces of ``shards``; pieces begin at multiples of ``batch_rows``.

    Raises
    ------
    TrainingError
        If a loss is not finite.
    """
    replica.resize(batch_rows)
    total = LossSum()
    for part, rows in _batches(shards, pieces, batch_rows):
        loss_sum = replica.loss_sum([Segment(part, replica.kernels.to_device(rows))])
        if not np.isfinite(loss_sum):
            raise TrainingError(
                "the loss over the training rows is not finite any more: lower strategy.lr"
            )
        total += LossSum.of(loss_sum=loss_sum, rows=len(rows))
    return total


def _batches(
    shards: Shards, pieces: Sequence[Piece], batch_rows: int
) -> Iterator[tuple[Partition, Array]]:
    for shard, start, stop in pieces:
        for first in range(start, stop, batch_rows):
            yield shards[shard], np.arange(first, min(first + batch_rows, stop))


def _rows_of(labels: Csr, rows: Array) -> Csr:
    """Consecutive rows of a host matrix."""
    first, last = labels.indptr[rows[0]], labels.indptr[rows[-1] + 1]
    indptr = labels.indptr[rows[0] : rows[-1] + 2] - first
    return Csr(indptr, labels.indices[first:last], None, labels.columns)
