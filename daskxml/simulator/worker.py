"""A worker of a simulated run: a real member, whose time is virtual.

A pool's threads are virtual as well. Every batch is cut into one part for each thread, as a real
pool cuts it, and the parts' updates are made one after the other when the batch ends: each sees
those before it, and none is lost, which is the best that races of real threads can come to, and
the same every time. A batch takes as long as if all parts were as long as the longest.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from daskxml.simulator.cost import CostModel, jitter_factor, whole_ticks
from daskxml.simulator.pending import PendingStore
from daskxml.simulator.rows import Rows
from daskxml.strategies.protocol import Device
from daskxml.training.holdings import span_rows
from daskxml.training.ledger import Span
from daskxml.training.member import Member
from daskxml.training.orders import EvaluateOrder, MergeOrder, Piece
from daskxml.training.pool import part_of
from daskxml.training.results import LeaseResult
from daskxml.training.settings import MemberSettings
from daskxml.training.shared import LocalStore, SharedModel
from daskxml.types import Partition


class VirtualWorker:
    """One worker.

    Parameters
    ----------
    name
        In the strategy and the history.
    speed
        Batches take their cost over this; above 0.
    settings, rows
        Of its member; rows are shared with other workers, not copied.
    cost
        What batches cost.
    shared
        The model that all share; where there is to be one, the first worker at its home makes it.

    Attributes
    ----------
    device
        What it steps with.
    has_copy
        It works on a copy of a shared model: from `work` to `release` its change is held back.
    free_s
        When it is through with all that it has been given.
    """

    def __init__(
        self, name: str, speed: float, settings: MemberSettings, rows: Rows, cost: CostModel,
        shared: SharedModel | None = None,
    ) -> None:  # fmt: skip
        self.name, self.speed, self.cost = name, speed, cost
        self.device = Device(settings.pool_threads)
        self.free_s = 0.0
        self._done: list[tuple[float, float, int]] = []  # from, until, batches; since a snapshot
        self._batches = (-1, 0)  # of which mega-batch, and how many of it were worked on
        self.has_copy = settings.shares_model and not settings.steps_in_place
        self._make_member(settings, shared)
        self.member.initialize()
        self._hold(rows)

    def _make_member(self, settings: MemberSettings, shared: SharedModel | None) -> None:
        self._pending = PendingStore()
        alone = replace(settings, pool_threads=min(settings.pool_threads, 1))
        self.member = Member(
            alone, shared if settings.is_at_home else None, self._pending if self.has_copy else None
        )
        if self.has_copy:
            found = shared or self.member.shared
            assert found is not None
            self._pending.bind(LocalStore(found, self.member.kernels))

    def _hold(self, rows: Rows) -> None:
        if rows.is_replicated:
            self.member.hold_all(rows.train, rows.test)
        else:  # all of them: who owns which is a matter of time only
            self.member.hold(dict(enumerate(rows.train)), dict(enumerate(rows.test)))
        self.member.count_labels(rows.label_counts)

    @property
    def rows_per_s(self) -> float:
        """Its speed on typical batches, for the placement of shards."""
        settings = self.member.settings
        rows = min(settings.max_batch_rows, 256)
        return self.speed * rows / self.cost.batch_s(rows, rows * settings.row_nonzeros)

    def work_s(self, rows: int, nonzeros: int, megabatch: int) -> float:
        """Return how long so much work takes, as its next batch of a mega-batch."""
        before, number = self._batches
        number = number + 1 if before == megabatch else 0
        self._batches = megabatch, number
        seed, cost = self.member.settings.seed, self.cost
        rows, nonzeros = self._rounded(rows, nonzeros)
        factor = jitter_factor(cost.jitter, seed, self.name, megabatch, number)
        return whole_ticks(cost.batch_s(rows, nonzeros) / self.speed * factor)

    def _rounded(self, rows: int, nonzeros: int) -> tuple[int, int]:
        """Round a pool's batch up to as many rows for each thread as one has."""
        threads = max(1, self.device.pool_threads)
        all_rows = -(-rows // threads) * threads
        return all_rows, nonzeros * all_rows // max(1, rows)

    def batch_s(self, batch: Sequence[Span], megabatch: int) -> float:
        """Return how long its next batch of a mega-batch takes."""
        rows = sum(span.rows for span in batch)
        return self.work_s(rows, self._nonzeros(batch), megabatch)

    def _nonzeros(self, batch: Sequence[Span]) -> int:
        total = 0
        for span in batch:
            part = self.member.holdings.streams[span.stream]
            rows = span_rows(span, part.rows, self.member.settings.seed)
            total += self.member.kernels.nonzeros(part.features, rows)
        return total

    def work(self, batch: Sequence[Span], lr: float, done: list[LeaseResult]) -> None:
        """Work on a batch, a pool on its parts in turn; add to ``done`` what it did."""
        parts = self.device.pool_threads or 1
        cut = [part_of(batch, part, parts) for part in range(parts)]
        done.append(self.member.lease([part for part in cut if part], lr, {}))

    def release(self) -> None:
        """Add to the shared model what the batch that ends has changed in the copy of it."""
        self._pending.release()

    def take_snapshot(self, order: MergeOrder) -> None:
        """Keep the replica as it is, for a merge that overlaps with the next leases."""
        if self.member.snapshot.generation != order.generation:
            self._done = []
        self.member.take_snapshot(order)

    def book_lease(self, begun_s: float, ends_s: Sequence[float]) -> None:
        """Hear when a lease begins, and when each of its batches ends."""
        if not self.member.settings.combine.overlap:
            return
        if self.device.is_pool:  # whose threads do not wait for each other between batches
            self._done.append((begun_s, ends_s[-1], len(ends_s)))
        else:
            self._done += [(*at, 1) for at in itertools.pairwise((begun_s, *ends_s))]

    def between_batches_s(self, at_s: float) -> float:
        """Return when the batch ends that it is at; ``at_s`` if it is at none."""
        ends = (end_s for begun_s, end_s, _ in self._done if begun_s < at_s < end_s)
        return next(ends, at_s)

    def batches_until(self, at_s: float) -> int:
        """Return how many batches it has done since the snapshot."""
        return sum(batches for _, end_s, batches in self._done if end_s <= at_s)

    def evaluate_s(self, order: EvaluateOrder) -> float:
        """Return how long an evaluation takes."""
        holdings = self.member.holdings
        total_s = self._forward_s(order.pieces, holdings.tests)
        total_s += self._forward_s(order.train_pieces, holdings.streams)
        return whole_ticks(total_s * self.cost.evaluation_share / self.speed)

    def _forward_s(self, pieces: Sequence[Piece], shards: Mapping[int, Partition]) -> float:
        """Return how long training on these rows would take, in an evaluation's batches."""
        most, total_s = self.member.settings.evaluation_rows, 0.0
        for shard, start, stop in pieces:
            features = shards[shard].features
            for first in range(start, stop, most):
                last = min(first + most, stop)
                stored = self.member.kernels.nonzeros(features, np.arange(first, last))
                total_s += self.cost.batch_s(last - first, stored)
        return total_s
