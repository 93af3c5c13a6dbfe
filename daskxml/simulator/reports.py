"""What virtual workers did, as the reports that a session hears."""

from __future__ import annotations

from daskxml.simulator.clock import Finished
from daskxml.training import orders
from daskxml.training.programs import PartResult
from daskxml.training.results import LeaseResult


def lease_report(lease: int, busy_s: float, done: list[LeaseResult]) -> orders.LeaseReport:
    """Return the report on a lease; ``done`` has what each of its batches did."""
    return orders.LeaseReport(
        lease=lease,
        loss_sum=sum(batch.loss_sum for batch in done),
        busy_s=busy_s,
        nonzeros=sum(batch.nonzeros for batch in done),
        updates=sum(batch.updates for batch in done),
        notes=orders.join_notes(batch.notes for batch in done),
        most_rows=min((batch.most_rows for batch in done if batch.most_rows), default=0),
    )


def gang_results(ends: list[Finished], ranks: int) -> tuple[orders.GangResult, ...]:
    """Return what each rank did; a server's part is the first rank's, whose process runs it."""
    results = []
    for rank in range(ranks):
        parts = [ends[rank], *(ends[ranks:] if rank == 0 else [])]
        done: list[PartResult] = [part.result for part in parts]
        results.append(
            orders.GangResult(
                loss_sum=sum(part.loss_sum for part in done),
                nonzeros=sum(part.nonzeros for part in done),
                busy_s=ends[rank].busy_s,
                sent_bytes=sum(part.sent_bytes for part in parts),
                notes=orders.join_notes([part.notes for part in done]),
            )
        )
    return tuple(results)
