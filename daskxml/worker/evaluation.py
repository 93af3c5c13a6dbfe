"""Metrics of test rows and the loss of training rows, by a worker's global model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from daskxml.core.arrays import Partition, Segment
from daskxml.core.errors import TrainingError
from daskxml.data.rows import slice_csr
from daskxml.metrics import LossSum, MetricSums, metric_sums
from daskxml.session.commands import Piece
from daskxml.worker.training_worker import TrainingWorker


def evaluate(
    worker: TrainingWorker, pieces: Sequence[Piece], fetched: Mapping[int, Partition]
) -> MetricSums:
    """Rank labels of pieces of the test rows; ``fetched`` has shards that are not resident."""
    ks, kernels = worker.settings.config.evaluation.k, worker.kernels
    sums, held = MetricSums.zero(ks), None
    with worker.global_model() as replica:
        for part, first, last in _batches(worker, pieces, {**worker.rows.tests, **fetched}):
            if part is not held:
                held, labels = part, kernels.to_host(part.labels)
            segment = Segment(part, kernels.to_device(np.arange(first, last)))
            ids, _ = replica.top_k([segment], ks[-1])
            truth = slice_csr(labels, first, last)
            sums += metric_sums(ids, truth, worker.inverse_propensity, ks)
    return sums


def training_loss(
    worker: TrainingWorker, pieces: Sequence[Piece], fetched: Mapping[int, Partition]
) -> LossSum:
    """Sum the loss of pieces of the training rows.

    The bits of a loss depend on the batch in which its row is. So pieces begin at multiples of
    ``evaluation.batch_rows`` in their shards: then the sum is the same for any number of workers of
    the same device and threads.

    Raises
    ------
    TrainingError
        If it is not finite.
    """
    total, to_device = LossSum(), worker.kernels.to_device
    if not pieces:
        return total
    with worker.global_model() as replica:
        replica.resize(worker.settings.config.evaluation.batch_rows)
        for part, first, last in _batches(worker, pieces, {**worker.rows.streams, **fetched}):
            loss_sum = replica.loss_sum([Segment(part, to_device(np.arange(first, last)))])
            if not np.isfinite(loss_sum):
                raise TrainingError(
                    "the loss over the training rows is not finite any more: lower strategy.lr"
                )
            total += LossSum.of(loss_sum=loss_sum, rows=last - first)
    return total


def _batches(
    worker: TrainingWorker, pieces: Sequence[Piece], shards: Mapping[int, Partition]
) -> Iterator[tuple[Partition, int, int]]:
    """Yield the shard, the first row and the row after the last of an evaluation's batches."""
    batch_rows = worker.settings.config.evaluation.batch_rows
    for shard, start, stop in pieces:
        for first in range(start, stop, batch_rows):
            yield shards[shard], first, min(first + batch_rows, stop)
