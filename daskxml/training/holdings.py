"""The rows that a worker holds, and how spans of the ledger become rows of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from daskxml.data.order import derive_key, shuffled_positions
from daskxml.data.rows import concatenate
from daskxml.ops import Kernels
from daskxml.training.ledger import Span
from daskxml.types import Array, Partition, Segment

_EPOCH_ORDER, _BATCH_NOISE = 1, 2  # keep the random choices of a run apart

Fetched = Mapping[Span, Partition]  # rows of spans that are not held here


class Holdings:
    """Training rows by stream and test rows by shard, on the worker's device."""

    def __init__(self, kernels: Kernels, seed: int) -> None:
        self._kernels, self._seed = kernels, seed
        self.streams: dict[int, Partition] = {}
        self.tests: dict[int, Partition] = {}

    def hold_all(self, train: Sequence[Partition], test: Sequence[Partition]) -> None:
        """Hold every row: the training partitions become one stream."""
        whole = train[0] if len(train) == 1 else concatenate(train)
        self.streams = {0: self._kernels.to_device(whole)}
        self.tests = {i: self._kernels.to_device(part) for i, part in enumerate(test)}

    def hold(self, train: Mapping[int, Partition], test: Mapping[int, Partition]) -> None:
        """Hold these shards, beside those that leases under way may still name."""
        for held, wanted in ((self.streams, train), (self.tests, test)):
            for shard in wanted.keys() - held.keys():
                held[shard] = self._kernels.to_device(wanted[shard])

    def batch(self, spans: Sequence[Span], fetched: Fetched) -> list[Segment]:
        """Return the rows that a batch's spans stand for."""
        segments = self.send(spans, fetched)
        self._kernels.settle()
        return segments

    def send(self, spans: Sequence[Span], fetched: Fetched) -> list[Segment]:
        """Return the same, on their way to the device: they are there after ``settle``."""
        return [self._segment(span, fetched) for span in spans]

    def settle(self) -> None:
        """Let the work that is queued from now on find what was sent."""
        self._kernels.settle()

    def _segment(self, span: Span, fetched: Fetched) -> Segment:
        if span in fetched:
            part = self._kernels.send(fetched[span])
            return Segment(part, self._kernels.send(np.arange(span.rows, dtype=np.int64)))
        part = self.streams[span.stream]
        rows = span_rows(span, part.rows, self._seed)
        return Segment(part, self._kernels.send(rows))

    def noise_key(self, spans: Sequence[Span]) -> int:
        """Return the key of a batch's dropout, the same on whichever worker it runs."""
        first = spans[0]
        return derive_key(self._seed, _BATCH_NOISE, first.epoch, first.stream, first.start)


def span_rows(span: Span, stream_rows: int, seed: int) -> Array:
    """Return the row numbers, ``(rows,)`` int64, that a span stands for."""
    key = _order_key(seed, span.epoch, span.stream)
    return shuffled_positions(stream_rows, key, span.start, span.stop)


@lru_cache(maxsize=256)  # asked for batch by batch
def _order_key(seed: int, epoch: int, stream: int) -> int:
    return derive_key(seed, _EPOCH_ORDER, epoch, stream)
