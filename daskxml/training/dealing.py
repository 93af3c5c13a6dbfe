"""Rows handed out and taken back: from a strategy's commands to orders, from reports to its events.

A lease is one worker's; its rows come back if that worker is lost, or, where all update one shared
model, those of leases that are not done. A gang is everybody's: between two merges its workers
change one common model, so with one of them the work of all is undone.
"""

from __future__ import annotations

from typing import Any

from daskxml.strategies import protocol
from daskxml.training import orders
from daskxml.training.history import MegabatchLog, Tally, memory_event
from daskxml.training.ledger import Ledger, Span, cut_batches
from daskxml.training.placement import Placement


class Dealer:
    """What is with whom in this mega-batch.

    Parameters
    ----------
    ledger
        Which rows are whose.
    placement
        Where they lie.
    dealt
        Leases and gangs so far; each gets the next number.
    """

    def __init__(self, ledger: Ledger, placement: Placement, dealt: int) -> None:
        self.ledger, self.placement, self.dealt = ledger, placement, dealt
        self._leases: dict[int, tuple[orders.LeaseOrder, list[Span]]] = {}
        self._gang: orders.GangOrder | None = None
        self._gang_begun_s = 0.0
        self._rewinds = False

    def lease(self, lease: protocol.Lease) -> orders.LeaseOrder:
        """Hand out a lease."""
        spans = self._take(lease.worker, lease.rows)
        self.dealt += 1
        batches = cut_batches(spans, lease.batch_rows)
        order = orders.LeaseOrder(self.dealt, lease.worker, batches, lease.lr)
        self._leases[order.lease] = order, spans
        return order

    def gather(self, gang: protocol.Gang, *, begins: bool, now_s: float) -> orders.GangOrder:
        """Hand out a gang; ``begins``: the first one since a merge."""
        shares = gang.shares.items()
        self.dealt += 1
        self._gang = orders.GangOrder(
            gang=self.dealt,
            workers=tuple(gang.shares),
            batches=tuple(cut_batches(self._take(w, s.rows), s.batch_rows) for w, s in shares),
            lrs=tuple(share.lr for share in gang.shares.values()),
            scheme=gang.scheme,
            begins=begins,
            rewinds=self._rewinds,
        )
        self._gang_begun_s, self._rewinds = now_s, False
        return self._gang

    def _take(self, worker: str, rows: int) -> list[Span]:
        if not rows:
            return []
        return self.ledger.take(worker, rows, self.placement.preferred_streams(worker))

    def bounded(
        self, report: orders.LeaseReport, log: MegabatchLog, now_s: float
    ) -> protocol.Bounded | None:
        """Note that a worker's memory holds less than was thought; None where it does not."""
        if not report.most_rows or report.lease not in self._leases:
            return None
        worker = self._leases[report.lease][0].worker
        log.event(memory_event(worker, now_s - log.begun_s, report.most_rows))
        return protocol.Bounded(worker, report.most_rows)

    def lease_done(
        self, report: orders.LeaseReport, log: MegabatchLog
    ) -> protocol.LeaseDone | None:
        """Book a lease; None if its worker has been given up, and its rows are leased again."""
        if report.lease not in self._leases:
            return None
        order, _ = self._leases.pop(report.lease)
        done = Tally(order.rows, report.updates, report.busy_s, report.loss_sum, report.nonzeros)
        log.count(order.worker, done)
        log.note(report.notes)
        return protocol.LeaseDone(order.worker, order.rows, report.updates, report.busy_s)

    def gang_done(
        self, report: orders.GangReport, log: MegabatchLog, now_s: float
    ) -> protocol.GangDone | None:
        """Book a gang; None if a loss has undone it."""
        order = self._gang
        if order is None or order.gang != report.gang:
            return None
        self._gang = None
        log.note(orders.join_notes(result.notes for result in report.results))
        log.moved_bytes += sum(result.sent_bytes for result in report.results)
        tallies = {
            worker: Tally(order.rows_of(rank), len(batches), r.busy_s, r.loss_sum, r.nonzeros)
            for rank, (worker, batches, r) in enumerate(
                zip(order.workers, order.batches, report.results, strict=True)
            )
        }
        for worker, tally in tallies.items():
            log.count(worker, tally)
        return protocol.GangDone(
            took_s=now_s - self._gang_begun_s,
            rows={worker: tally.rows for worker, tally in tallies.items()},
            updates={worker: tally.updates for worker, tally in tallies.items()},
            busy_s={worker: tally.busy_s for worker, tally in tallies.items()},
        )

    def is_open(self, gang: int) -> bool:
        """Whether this gang is under way, as far as is known."""
        return self._gang is not None and self._gang.gang == gang

    def lose(self, worker: str, strategy: protocol.Strategy, state: Any, log: MegabatchLog) -> int:
        """Take back what a strategy loses with a worker; return how many rows."""
        if strategy.is_joint:
            return self.take_back_all(log)
        if strategy.shares_model:
            log.depart(worker, strategy.view(state)[worker])
            return self.take_back_open(worker)
        return self.take_back(worker, log)

    def take_back(self, worker: str, log: MegabatchLog) -> int:
        """Take back what a lost worker had since the last merge; return how many rows."""
        self._forget(worker)
        log.drop(worker)
        return self.ledger.give_back(worker)

    def take_back_open(self, worker: str) -> int:
        """Take back only the leases that a lost worker had not done; return how many rows."""
        return sum(self.ledger.give_back_lease(worker, spans) for spans in self._forget(worker))

    def _forget(self, worker: str) -> list[list[Span]]:
        """Give up a worker's open leases; return their rows."""
        lost = {n: spans for n, (order, spans) in self._leases.items() if order.worker == worker}
        for number in lost:
            del self._leases[number]
        return list(lost.values())

    def take_back_all(self, log: MegabatchLog) -> int:
        """Undo the work of all since the last merge; return how many rows that is."""
        rows = sum(self.ledger.give_back(name) for name in list(self.ledger.held))
        self._rewinds = self._rewinds or rows > 0
        self._gang = None
        log.drop_all()
        return rows
