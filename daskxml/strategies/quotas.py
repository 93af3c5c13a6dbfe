"""Static assignment: every worker has its quota of a mega-batch, and nobody takes another's rows.

The quota of all is fixed when the mega-batch begins, so that a slow worker shows: the others wait
for it. A quota is leased in pieces of at most about a second, so that a stop is prompt. The rows of
a worker that is lost are divided among those that are there; a worker that joins waits for the next
mega-batch, or for such rows. The replicas' norms are not asked for: weights need none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from daskxml.strategies.batches import deal_rows
from daskxml.strategies.dispatch import IN_FLIGHT, LONGEST_LEASE_S
from daskxml.strategies.megabatch import (
    NOT_MEASURED,
    MegabatchStrategy,
    Member,
    State,
    is_finished,
    lend,
    natural_order,
)
from daskxml.strategies.protocol import Command, Lease


def assign(state: State, takers: Collection[str]) -> State:
    """Divide the rows that are with nobody among ``takers``, in equally many batches each.

    Examples
    --------
    >>> members = {"a": Member(batch_size=20), "b": Member(batch_size=10)}
    >>> state = assign(State(remaining_rows=100, members=members), {"a", "b"})
    >>> state.remaining_rows, {name: m.quota_rows for name, m in state.members.items()}
    (0, {'a': 67, 'b': 33})
    """
    members = dict(state.members)
    ordered = sorted(takers, key=natural_order)
    if not ordered or not state.remaining_rows:
        return state
    quotas = deal_rows(state.remaining_rows, {name: members[name].batch_rows for name in ordered})
    for name, rows in quotas.items():
        members[name] = replace(members[name], quota_rows=members[name].quota_rows + rows)
    return replace(state, remaining_rows=0, members=members)


def quota_lease_rows(member: Member) -> int:
    """Return how much of its quota to lease to a worker now; 0 for none.

    Examples
    --------
    One batch while the speed is unknown, then a second's worth in whole batches.

    >>> quota_lease_rows(Member(batch_size=20, quota_rows=500))
    20
    >>> quota_lease_rows(Member(batch_size=20, quota_rows=500, rows_per_s=130.0))
    120
    """
    if member.leases >= IN_FLIGHT:
        return 0
    batches = max(1, int(member.rows_per_s * LONGEST_LEASE_S / member.batch_rows))
    return min(member.quota_rows, batches * member.batch_rows)


def begin_probe(state: State, batch_size: float) -> State:
    """Forget all speeds; everybody is to be measured with batches of this size."""
    members = {
        name: replace(member, batch_size=batch_size, rows_per_s=0.0)
        for name, member in state.members.items()
    }
    return replace(state, phase="probe", members=members)


def lease_probes(state: State, batches: int, lr: float) -> tuple[State, tuple[Command, ...]]:
    """Lease the same few batches to everybody who has had none; less where rows are too few."""
    leases: list[Command] = []
    members, left = dict(state.members), state.remaining_rows
    new = sorted((n for n, m in members.items() if not (m.rows or m.leases)), key=natural_order)
    for place, name in enumerate(() if state.is_draining else new):
        member = members[name]
        rows = min(batches * member.batch_rows, -(-left // (len(new) - place)))
        if rows:
            leases.append(Lease(name, rows, member.batch_rows, lr))
            members[name] = lend(member, rows)
            left -= rows
    return replace(state, members=members, remaining_rows=left), tuple(leases)


class QuotaStrategy(MegabatchStrategy):
    """A strategy of static assignment but for its rules: rate, weights, and who takes rows."""

    def takers(self, state: State) -> Collection[str]:
        """Return among whom rows are divided that are with nobody."""
        return state.members

    def go_on(self, state: State) -> tuple[State, tuple[Command, ...]]:
        """Lease from the quotas; once everything is back, merge."""
        state, leases = self._lease(assign(state, self.takers(state)))
        if is_finished(state):
            return replace(state, phase="merge"), (self.merge(state.members, NOT_MEASURED),)
        return state, leases

    def _lease(self, state: State) -> tuple[State, tuple[Command, ...]]:
        leases: list[Command] = []
        members = dict(state.members)
        ordered = sorted(members, key=natural_order)
        for name in () if state.is_draining else ordered * IN_FLIGHT:  # one each, then another
            member = members[name]
            rows = quota_lease_rows(member)
            if rows:
                leases.append(Lease(name, rows, member.batch_rows, self.rate(member)))
                members[name] = replace(lend(member, rows), quota_rows=member.quota_rows - rows)
        return replace(state, members=members), tuple(leases)


def shared_weights(members: Mapping[str, Member], sizes: Mapping[str, float]) -> dict[str, float]:
    """Return weights in proportion to ``sizes``, 0 for a replica that has not been updated.

    Where none has, all count.

    Examples
    --------
    >>> members = {"a": Member(batch_size=8, updates=2), "b": Member(batch_size=8)}
    >>> shared_weights(members, {"a": 1.0, "b": 1.0})
    {'a': 1.0, 'b': 0.0}
    """
    updated = {name for name, member in members.items() if member.updates} or members.keys()
    total = sum(sizes[name] for name in updated)
    return {name: sizes[name] / total if name in updated else 0.0 for name in members}
