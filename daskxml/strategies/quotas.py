"""Static assignment: every worker has a quota of the rows of a mega-batch.

Quotas are fixed when the mega-batch begins, so the others wait for a slow worker at the merge. A
quota is leased in pieces of at most about a second, so that a stop is prompt. The rows of a lost
worker are divided among those that are present; a worker that joins waits for the next mega-batch,
or for such rows. The merge follows without norms: weights need none.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from daskxml.strategies.batches import split_rows
from daskxml.strategies.dispatch import IN_FLIGHT, LONGEST_LEASE_S
from daskxml.strategies.megabatch import Strategy
from daskxml.strategies.protocol import Command, Work, natural_order
from daskxml.strategies.state import MegabatchState, WorkerState, present


def assign_quotas(state: MegabatchState, names: Collection[str]) -> MegabatchState:
    """Divide the remaining rows among these workers, in the same number of batches each.

    Examples
    --------
    >>> members = {"a": WorkerState(batch_size=20), "b": WorkerState(batch_size=10)}
    >>> state = assign_quotas(MegabatchState(remaining_rows=100, members=members), {"a", "b"})
    >>> state.remaining_rows, {name: w.quota_rows for name, w in state.members.items()}
    (0, {'a': 67, 'b': 33})
    """
    members = dict(state.members)
    ordered = sorted(names, key=natural_order)
    if not ordered or not state.remaining_rows or state.is_draining:
        return state
    quotas = split_rows(state.remaining_rows, {name: members[name].batch_rows for name in ordered})
    for name, rows in quotas.items():
        members[name] = replace(members[name], quota_rows=members[name].quota_rows + rows)
    return replace(state, remaining_rows=0, members=members)


def quota_lease_rows(worker: WorkerState) -> int:
    """Return how many rows of its quota to lease to a worker now; 0 for none.

    Examples
    --------
    One batch while the speed is unknown, then a second's worth in whole batches.

    >>> quota_lease_rows(WorkerState(batch_size=20, quota_rows=500))
    20
    >>> quota_lease_rows(WorkerState(batch_size=20, quota_rows=500, rows_per_s=130.0))
    120
    """
    if worker.leases >= IN_FLIGHT:
        return 0
    batches = max(1, int(worker.rows_per_s * LONGEST_LEASE_S / worker.batch_rows))
    return min(worker.quota_rows, batches * worker.batch_rows)


def begin_probe(state: MegabatchState, batch_size: float) -> MegabatchState:
    """Discard all speeds: every worker is to be measured with batches of this size."""
    members = {
        name: replace(worker, batch_size=batch_size, rows_per_s=0.0)
        for name, worker in state.members.items()
    }
    return replace(state, phase="probe", members=members)


def lease_probes(
    state: MegabatchState, batches: int, lr: float
) -> tuple[MegabatchState, tuple[Command, ...]]:
    """Lease the same few batches to every worker without a lease yet, as far as rows suffice."""
    leases: list[Command] = []
    members, left = dict(state.members), state.remaining_rows
    here = present(members).items()
    new = sorted((n for n, w in here if not (w.rows or w.leases)), key=natural_order)
    for place, name in enumerate(() if state.is_draining else new):
        worker = members[name]
        rows = min(batches * worker.batch_rows, -(-left // (len(new) - place)))
        if rows:
            leases.append(Work.alone(name, rows, worker.batch_rows, lr))
            members[name] = worker.with_lease(rows)
            left -= rows
    return replace(state, members=members, remaining_rows=left), tuple(leases)


class QuotaStrategy(Strategy):
    """A strategy of static assignment but for its rules: rate, weights, and eligible workers."""

    def eligible(self, state: MegabatchState) -> Collection[str]:
        """Return the workers among which remaining rows are divided."""
        return state.members

    def lease(self, state: MegabatchState) -> tuple[MegabatchState, tuple[Command, ...]]:
        """Lease from the quotas, which are assigned first."""
        here = present(state.members)
        state = assign_quotas(state, here.keys() & set(self.eligible(state)) or here)
        leases: list[Command] = []
        members, gain = dict(state.members), self.gain(state)
        ordered = sorted(here, key=natural_order)
        for name in () if state.is_draining else ordered * IN_FLIGHT:  # one each, then another
            worker = members[name]
            if lease := self.lease_of(name, worker, quota_lease_rows(worker), gain):
                leases.append(lease)
                left = worker.quota_rows - lease.rows
                members[name] = replace(worker.with_lease(lease.rows), quota_rows=left)
        return replace(state, members=members), tuple(leases)
