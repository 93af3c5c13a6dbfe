"""The rows that a worker holds, and how spans of the ledger become the rows of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

import numpy as np

from daskxml.core.arrays import Array, Partition, Segment
from daskxml.data.order import derive_key, shuffled_positions
from daskxml.data.rows import concatenate, slice_rows
from daskxml.kernels import Kernels
from daskxml.session.ledger import Span

_EPOCH_ORDER, _BATCH_NOISE = 1, 2  # keep the random choices of a run apart

Batch = Sequence[Span]
Fetched = Mapping[Span, Partition]  # rows of spans that are not resident


class ResidentRows:
    """Training rows by stream and test rows by shard, on the worker's device.

    Attributes
    ----------
    sends_numbers
        Whether the numbers of a batch's rows are sent to the device too.
    """

    def __init__(self, kernels: Kernels, seed: int) -> None:
        self._kernels, self._seed, self.sends_numbers = kernels, seed, True
        self.streams: dict[int, Partition] = {}
        self.tests: dict[int, Partition] = {}

    def hold_all(self, train: Sequence[Partition], test: Sequence[Partition]) -> None:
        """Hold every row: the training partitions become one stream."""
        whole = train[0] if len(train) == 1 else concatenate(train)
        self.streams = {0: self._kernels.to_device(whole)}
        self.tests = {i: self._kernels.to_device(part) for i, part in enumerate(test)}

    def hold(self, train: Mapping[int, Partition], test: Mapping[int, Partition]) -> None:
        """Hold these shards, beside those that running leases may still refer to."""
        for held, wanted in ((self.streams, train), (self.tests, test)):
            for shard in wanted.keys() - held.keys():
                held[shard] = self._kernels.to_device(wanted[shard])

    def batch(self, spans: Batch, fetched: Fetched) -> list[Segment]:
        """Return the rows of a batch."""
        segments = self.send(spans, fetched)
        self.await_uploads()
        return segments

    def send(self, spans: Batch, fetched: Fetched) -> list[Segment]:
        """Return the rows of a batch, which are on the device only after `await_uploads`."""
        return [self._segment(span, fetched) for span in spans]

    def await_uploads(self) -> None:
        """Make the work that is queued from now on wait for everything sent before."""
        self._kernels.await_uploads()

    def _segment(self, span: Span, fetched: Fetched) -> Segment:
        upload = self._kernels.to_device_async
        if span in fetched:
            part, numbers = upload(fetched[span]), np.arange(span.rows, dtype=np.int64)
        else:
            part = self.streams[span.stream]
            numbers = span_rows(span, part.rows, self._seed)
        return Segment(part, upload(numbers) if self.sends_numbers else numbers)

    def noise_key(self, spans: Batch) -> int:
        """Return the key of a batch's dropout, the same on whichever worker it runs."""
        first = spans[0]
        return derive_key(self._seed, _BATCH_NOISE, first.epoch, first.stream, first.start)


class Prefetch:
    """Sends the rows of the next batch to the device while another batch is computed."""

    def __init__(self, rows: ResidentRows) -> None:
        self._rows = rows
        self._sent: tuple[Batch, list[Segment]] | None = None

    def send(self, batch: Batch, fetched: Fetched) -> None:
        """Send a batch's rows, unless the device has no room for them yet."""
        with suppress(MemoryError):
            self._sent = batch, self._rows.send(batch, fetched)

    def take(self, batch: Batch, fetched: Fetched) -> list[Segment]:
        """Return a batch's rows, for the work that is queued next."""
        if self._sent is None or self._sent[0] is not batch:
            self.drop()
            return self._rows.batch(batch, fetched)
        segments, self._sent = self._sent[1], None
        self._rows.await_uploads()
        return segments

    def drop(self) -> None:
        """Release what was sent."""
        self._sent = None


def span_rows(span: Span, stream_rows: int, seed: int) -> Array:
    """Return the row numbers of a span, ``(rows,)`` int64."""
    key = _order_key(seed, span.epoch, span.stream)
    return shuffled_positions(stream_rows, key, span.start, span.stop)


@lru_cache(maxsize=256)  # needed for every batch
def _order_key(seed: int, epoch: int, stream: int) -> int:
    return derive_key(seed, _EPOCH_ORDER, epoch, stream)


def part_of(batch: Batch, part: int, parts: int) -> list[Span]:
    """Return one of the near-equal parts that a batch is cut into; empty where rows are too few.

    Examples
    --------
    >>> batch = [Span(0, 0, 0, 3), Span(1, 0, 0, 2)]
    >>> [[tuple(span) for span in part_of(batch, part, 2)] for part in range(2)]
    [[(0, 0, 0, 2)], [(0, 0, 2, 3), (1, 0, 0, 2)]]
    """
    rows = sum(span.rows for span in batch)
    first, last = rows * part // parts, rows * (part + 1) // parts
    found = []
    for span in batch:
        start, stop = span.start + max(first, 0), min(span.start + last, span.stop)
        if start < stop:
            found.append(Span(span.epoch, span.stream, start, stop))
        first, last = first - span.rows, last - span.rows
    return found


def cut_fetched(batches: Sequence[Batch], fetched: Fetched, parts: int) -> Fetched:
    """Return the fetched rows by the spans of the parts into which each batch is cut."""
    found = {}
    for batch in batches if fetched else ():
        sources = [span for span in batch if span in fetched]
        for piece in (piece for i in range(parts) for piece in part_of(batch, i, parts)):
            for span in sources:
                if span[:2] == piece[:2] and span.start <= piece.start < span.stop:
                    first = piece.start - span.start
                    found[piece] = slice_rows(fetched[span], first, first + piece.rows)
    return found
