"""A worker of a simulated run: a real member, whose time is virtual."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from daskxml.simulator.cost import CostModel, jitter_factor, whole_ticks
from daskxml.simulator.rows import Rows
from daskxml.training.holdings import span_rows
from daskxml.training.ledger import Span
from daskxml.training.member import Member
from daskxml.training.orders import Piece
from daskxml.training.settings import MemberSettings
from daskxml.types import Array, Csr


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

    Attributes
    ----------
    free_s
        When it is through with all that it has been given.
    """

    def __init__(
        self, name: str, speed: float, settings: MemberSettings, rows: Rows, cost: CostModel
    ) -> None:
        self.name, self.speed, self.cost = name, speed, cost
        self.free_s = 0.0
        self._batches = (-1, 0)  # of which mega-batch, and how many of it were worked on
        self.member = Member(settings)
        self.member.initialize()
        self._hold(rows)

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
        """Return how long its next batch of a mega-batch takes."""
        before, number = self._batches
        number = number + 1 if before == megabatch else 0
        self._batches = megabatch, number
        seed, cost = self.member.settings.seed, self.cost
        factor = jitter_factor(cost.jitter, seed, self.name, megabatch, number)
        return whole_ticks(cost.batch_s(rows, nonzeros) / self.speed * factor)

    def lease_s(self, batches: Iterable[Sequence[Span]], megabatch: int) -> float:
        """Return how long a lease takes."""
        return sum(
            self.work_s(sum(span.rows for span in batch), self._nonzeros(batch), megabatch)
            for batch in batches
        )

    def _nonzeros(self, batch: Sequence[Span]) -> int:
        total = 0
        for span in batch:
            part = self.member.holdings.streams[span.stream]
            rows = span_rows(span, part.rows, self.member.settings.seed)
            total += self.member.kernels.nonzeros(part.features, rows)
        return total

    def evaluate_s(self, pieces: Sequence[Piece]) -> float:
        """Return how long it takes to score test rows."""
        most, total_s = self.member.settings.evaluation_rows, 0.0
        for shard, start, stop in pieces:
            features = self.member.holdings.tests[shard].features
            for first in range(start, stop, most):
                last = min(first + most, stop)
                total_s += self.cost.batch_s(last - first, _stored(features, first, last))
        return whole_ticks(total_s * self.cost.evaluation_share / self.speed)


def _stored(features: Csr, first: int, last: int) -> int:
    indptr: Array = np.asarray(features.indptr)
    return int(indptr[last] - indptr[first])
