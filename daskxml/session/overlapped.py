"""Merges that are under way while the workers do the next mega-batch.

When the leases of mega-batch t are back, every worker takes a *snapshot* ``s_i`` of its replica
``w_i`` and continues with mega-batch t + 1 from a guess ``v_i`` of the merged model: the replica,
with the momentum that is known already (`daskxml.worker.snapshot`). Meanwhile the snapshots are
merged,

    m_t = merge of all s_i        (the strategy's weights; momentum, outer optimizer, any rule)

and when all workers have ``m_t``, each corrects its replica between two batches::

    w_i += m_t - v_i

so that its steps since the snapshot are kept. ``m_t`` is then the global model, and the replica
is that model plus the steps of mega-batch t + 1, which is what the next merge assumes. So nothing
in a merge is stale, and rows, weights and momentum are counted as without overlap; only the steps
between snapshot and correction were taken elsewhere than at the merged model. Merge t + 1 begins
when mega-batch t + 1 is over and merge t is done: never more than one is under way.

The idea is that of Wang et al., "Overlap Local-SGD", ICASSP 2020; Sun et al., "CO2: Efficient
Distributed Training with Full Communication-Computation Overlap", ICLR 2024; and Douillard et al.,
"Streaming DiLoCo with Overlapping Communication", 2025. Those pull replicas to the merged model or
mix the two; here no step in between is dropped. The whole model is sent at once.

The global model is evaluated when mega-batch t + 1 is over, while no worker steps: the row of the
history for merge t is closed there. A merge does not overlap where the run needs every replica to
be the global model: the last one, one after which a checkpoint is written, and one that a worker
waits for to join. Replicas keep their optimizers' moments, or reset them when they are corrected.

If a worker is lost while a merge is under way, its rows of both mega-batches go back to the ledger,
and the others merge their snapshots without it; its weight is divided among them in proportion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from daskxml.session.commands import Command, MergeReplicas, MergeResult
from daskxml.session.history import MegabatchLog
from daskxml.session.ledger import Span
from daskxml.session.session import Session, ends_megabatch
from daskxml.strategies import protocol


@dataclass
class PendingMerge:
    """A merge that is under way while the next mega-batch is trained.

    Attributes
    ----------
    log
        Of the mega-batch that is merged.
    command
        The last one for this merge.
    spans
        The rows in it, by worker and lease.
    begun_s
        When it began.
    """

    log: MegabatchLog
    command: MergeReplicas
    spans: dict[str, list[list[Span]]]
    begun_s: float

    def without(self, worker: str) -> MergeReplicas:
        """Return the command without a lost worker."""
        self.log.leave_out(worker)
        weights, momentum = self.log.weights, self.log.decided.momentum
        self.command = replace(self.command, weights=weights, momentum=momentum)
        return self.command


class OverlappedSession(Session):
    """One run whose merges overlap with the next mega-batch."""

    overlaps = True
    _pending: PendingMerge | None = None
    _held: tuple[protocol.Command, ...] | None = None  # while the last row is closed
    _waiting: tuple[protocol.Command, ...] = ()  # for the merge that is under way

    @property
    def may_join(self) -> bool:
        """Whether replicas are the global model, or may step."""
        return super().may_join and self._pending is None and not self.holds_decisions

    @property
    def holds_decisions(self) -> bool:  # type: ignore[override]
        """The row of the last merge is being closed."""
        return self._held is not None

    @property
    def rows_under_way(self) -> int:  # type: ignore[override]
        """Rows of the merge that is under way."""
        return self._pending.log.rows if self._pending is not None else 0

    # ------------------------------------------------------- end of a mega-batch

    def execute(self, decisions: Sequence[protocol.Command], now_s: float) -> list[Command]:
        """Hold decisions while the last row is closed, and a merge until the one before is done."""
        if self._held is not None:  # no worker is to step while the global model is evaluated
            leases = [d for d in self._held if isinstance(d, protocol.Work)]
            valid = [lease for lease in leases if lease.parts.keys() <= self.workers.keys()]
            self._held = (*valid, *decisions)  # a loss voids a merge, and its worker's leases
            return []
        is_unclosed = self.closed_rows < len(self.history)
        if ends_megabatch(decisions) and (self._pending is not None or is_unclosed):
            self.end_training(now_s)
            self._waiting = tuple(decisions)
            return [] if self._pending is not None else self._close_last_row(now_s)
        commands = super().execute(decisions, now_s)
        match commands:
            case [MergeReplicas() as command] if self._may_overlap(now_s):
                return self._begin_merge(replace(command, overlaps=True), now_s)
        return commands

    def _may_overlap(self, now_s: float) -> bool:
        """Whether nothing after the next merge needs every replica to be the global model."""
        log, rules = self.log, self.rules
        epoch = (self.rows_merged + log.rows) / sum(self.ledger.stream_rows)
        row = {"epoch": epoch, "train_s": now_s - log.begun_s, "merge_s": 0.0}
        is_last = self.stop_reason or rules.reached([*self.history, row])
        if is_last or self.join_is_pending or rules.is_checkpoint_turn(self.generation + 1):
            self.join_is_pending = False
            return False
        return True

    def _begin_merge(self, command: MergeReplicas, now_s: float) -> list[Command]:
        self._pending = PendingMerge(self.log, command, self.ledger.settle(), now_s)
        self.inform(protocol.Merged())
        self.log.trace = self.take_trace()
        commands = self.begin_megabatch(now_s)
        self.log.megabatch += 1
        self.log.unrecorded_since_s = self._pending.log.begun_s
        return [command, *commands]

    # ------------------------------------------------------- end of a merge

    def _finish_merge(self, result: MergeResult, now_s: float) -> list[Command]:
        """Record a merge after which all replicas have been corrected."""
        pending, self._pending = self._pending, None
        if pending is None:
            return super()._finish_merge(result, now_s)
        is_waited_for, log = self.stage == "merge", self.log
        wait_s = now_s - log.trained_s if is_waited_for else 0.0
        pending.log.merged(result, pending.begun_s + wait_s)
        pending.log.overlapped_s = now_s - pending.begun_s - wait_s
        log.corrected, log.unrecorded_since_s = dict(result.corrected), log.begun_s
        self.record(pending.log, pending.spans)
        return self._close_last_row(now_s) if is_waited_for else []

    def _close_last_row(self, now_s: float) -> list[Command]:
        """Close the row of the last merge, then execute the decisions that wait for that."""
        if self.log.rows:
            self._held = self._waiting
        else:  # nothing was done since: that merge is the last one
            self.inform(protocol.Merged())
        return self.complete_row(now_s)

    def _checkpoint_written(self, now_s: float) -> list[Command]:
        """Execute the decisions that were held while the last row was closed."""
        if self._held is None:
            return super()._checkpoint_written(now_s)
        held, self._held = self._held, None
        self.closed_rows = len(self.history)
        self.log.postpone(now_s)
        if ends_megabatch(held):
            self.stage = "merge"
            return self.execute(held, now_s)
        self.stage = "train"  # a worker was lost meanwhile; its rows are leased again
        commands, reason = self.execute(held, now_s), self.stop_reason
        return [*commands, *self.drain(reason, now_s)] if reason else commands

    # ------------------------------------------------------------------ workers

    def _leave_out(self, worker: str) -> tuple[list[Command], int]:
        """Repeat the merge under way without a lost worker; return its rows to the ledger."""
        if self._pending is None:
            return [], 0
        rows = self.ledger.take_back(self._pending.spans.pop(worker, []))
        return [self._pending.without(worker)], rows
