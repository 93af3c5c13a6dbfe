"""A replica with a parameter for each row of the data, which counts how often it was trained on.

Workers, merges, gangs, checkpoints and optimizers are the product's; a step adds 1 to the
parameters of its rows, in the place of a gradient. So a merged model shows which rows went into it,
of which worker and with which weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from daskxml.core.arrays import Array, Csr, Partition, Segment
from daskxml.core.work_stats import WorkStats
from daskxml.data.reading import Facts
from daskxml.worker.replica import Replica
from harness.faults.loop import PROCESS, pause

TRAIN, TEST, LABELS = (28, 20), (3, 2), 6  # rows of each shard
ROWS = sum(TRAIN)
FACTS = Facts(
    rows=ROWS, features=ROWS, labels=LABELS, nonzeros=ROWS, label_nonzeros=ROWS, nbytes=0,
    feature_base=0,
)  # fmt: skip


def partition(first: int, rows: int) -> Partition:
    """Return rows whose only feature is their number."""
    indptr = np.arange(rows + 1, dtype=np.int64)
    numbers = np.arange(first, first + rows, dtype=np.int32)
    features = Csr(indptr, numbers % ROWS, np.ones(rows, np.float32), ROWS)
    return Partition(features, Csr(indptr, numbers % LABELS, None, LABELS))


class CountingReplica(Replica):
    """Counts rows; a step takes virtual time."""

    def step(self, batch: Sequence[Segment], lr: float, key: int) -> WorkStats:
        """Add 1 to the parameters of the batch's rows; a rate of 0 changes nothing."""
        numbers = _numbers(batch)
        self._work(len(numbers))
        if lr:
            np.add.at(self.flat, numbers, 1.0)
        return WorkStats(len(numbers), 1, 0.5 * len(numbers), len(numbers), LABELS)

    def gradient(self, batch: Sequence[Segment], buffer: Any, key: int) -> WorkStats:
        """Subtract a share of 1 from the gradient of the batch's rows."""
        numbers = _numbers(batch)
        self._work(len(numbers))
        np.add.at(buffer.flat, numbers, -1.0 / len(numbers))
        return WorkStats(len(numbers), 1, 0.5 * len(numbers), len(numbers), LABELS)

    def top_k(self, segments: Sequence[Segment], k: int) -> tuple[Array, Array]:
        """Rank labels by their numbers."""
        rows = len(_numbers(segments))
        self._work(rows)
        return np.tile(np.arange(k, dtype=np.int32), (rows, 1)), np.zeros((rows, k), np.float32)

    def _work(self, rows: int) -> None:
        process: Any = PROCESS.get()
        process.work(rows)
        pause(rows / process.rows_per_s)


def _numbers(batch: Sequence[Segment]) -> Array:
    parts = [segment.partition.features.indices[segment.rows] for segment in batch]
    return np.concatenate(parts)
