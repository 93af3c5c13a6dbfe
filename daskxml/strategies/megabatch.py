"""The bookkeeping of a mega-batch that strategies with leases share.

Who has been leased what, who did how much, when everything is back, and what a lost worker takes
with it. The algorithm that uses it says how large batches are, at which rate, and with which
weights the replicas merge. Scheduling is dynamic, whoever is free takes more, unless a subclass
assigns rows (`daskxml.strategies.quotas`). All functions return a new state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from daskxml.strategies.batches import BatchConfig
from daskxml.strategies.dispatch import DEFAULT_PACE, Load, Pace, next_lease_rows
from daskxml.strategies.members import Member, State, natural_order
from daskxml.strategies.protocol import (
    REPLICA,
    Begin,
    Bounded,
    Command,
    Device,
    Drain,
    Event,
    Lease,
    LeaseDone,
    Measure,
    Measured,
    Merge,
    Merged,
    Started,
    WorkerJoined,
    WorkerLost,
    WorkerView,
)

__all__ = ["MegabatchStrategy", "Member", "State", "natural_order"]

NOT_MEASURED = Measured({}, 0)  # in the place of norms that are not asked for
_SMOOTHING = 0.5  # share of the newest lease in the measured throughput


def dismiss(state: State, worker: str, *, keeps_work: bool = False) -> State:
    """Remove a lost worker; its unmerged rows are to be leased again, or what it had not done."""
    members = dict(state.members)
    lost = members.pop(worker, None)
    if lost is None:
        return state
    remaining = state.remaining_rows + lost.leased_rows + lost.quota_rows
    if not keeps_work:
        remaining += lost.rows
    phase = "train" if state.phase in ("measure", "merge") else state.phase
    return replace(state, remaining_rows=remaining, members=members, phase=phase)


def count(state: State, done: LeaseDone, updates: int) -> State:
    """Book a finished lease, as so many updates."""
    member = state.members[done.worker]
    measured = done.rows / done.busy_s if done.busy_s > 0.0 else member.rows_per_s
    known = member.rows_per_s or measured
    member = replace(
        member,
        updates=member.updates + updates,
        rows=member.rows + done.rows,
        total_updates=member.total_updates + updates,
        leased_rows=member.leased_rows - done.rows,
        leases=member.leases - 1,
        rows_per_s=known + _SMOOTHING * (measured - known),
    )
    return replace(state, members={**state.members, done.worker: member})


def next_megabatch(batch_sizes: Mapping[str, float], state: State, rows: int) -> State:
    """Start counting anew, with these batch sizes (the old one where none is given)."""
    members = {
        name: Member(
            batch_size=batch_sizes.get(name, m.batch_size),
            pool_threads=m.pool_threads,
            total_updates=m.total_updates,
            rows_per_s=m.rows_per_s,
            most_rows=m.most_rows,
        )
        for name, m in state.members.items()
    }
    return State(remaining_rows=rows, merges=state.merges + 1, members=members)


def lease_out(
    state: State, rate: Callable[[Member], float], pace: Pace = DEFAULT_PACE
) -> tuple[State, tuple[Command, ...]]:
    """Lease while anybody should take more."""
    leases: list[Command] = []
    members, remaining = dict(state.members), state.remaining_rows
    while not state.is_draining and (lease := _next_lease(members, remaining, rate, pace)):
        leases.append(lease)
        members[lease.worker] = lend(members[lease.worker], lease.rows)
        remaining -= lease.rows
    return replace(state, members=members, remaining_rows=remaining), tuple(leases)


def lend(member: Member, rows: int) -> Member:
    """Book a lease as handed out."""
    return replace(member, leased_rows=member.leased_rows + rows, leases=member.leases + 1)


def is_finished(state: State) -> bool:
    """Whether everything that is to be done before the merge is back."""
    members = state.members.values()
    is_over = state.is_draining or not (state.remaining_rows or any(m.quota_rows for m in members))
    return bool(members) and is_over and all(m.leases == 0 for m in members)


def _next_lease(
    members: Mapping[str, Member],
    remaining_rows: int,
    rate: Callable[[Member], float],
    pace: Pace,
) -> Lease | None:
    loads = {
        name: Load(m.batch_rows, m.rows_per_s, m.leased_rows, m.leases)
        for name, m in members.items()
    }
    for name in sorted(members, key=lambda n: (members[n].leases, natural_order(n))):
        rows = next_lease_rows(name, loads, remaining_rows, pace)
        if rows:
            return Lease(name, rows, loads[name].batch_rows, rate(members[name]))
    return None


class MegabatchStrategy:
    """A strategy of leases but for its rules, which a subclass adds.

    Parameters
    ----------
    config
        Rows between two merges, and the first and the largest batch of each kind of worker.
    """

    is_joint = False
    keeps_replicas = False
    averages = False
    shares_optimizer = False
    shares_model = False
    rules: tuple[str, ...] = ("mean", "sum", "adasum")

    def __init__(self, config: BatchConfig) -> None:
        self._batches, self._rows = config, config.megabatch_rows

    def rate(self, member: Member) -> float:
        """Return a worker's learning rate, in a pool that of each thread's part of a batch."""
        raise NotImplementedError

    def count_updates(self, member: Member, done: LeaseDone) -> int:
        """Return how many updates a lease is: of a pool whose replica is merged, its batches."""
        return -(-done.updates // member.parts)

    def scale(self, state: State) -> dict[str, float]:
        """Return the next batch sizes; the old one stays where none is given."""
        return {}

    def merge(self, members: Mapping[str, Member], measured: Measured) -> Merge:
        """Return how the replicas are merged."""
        raise NotImplementedError

    def initial_state(self) -> State:
        """Return the state before any worker is known."""
        return State(remaining_rows=self._rows)

    def max_batch_rows(self, device: Device = REPLICA) -> int:
        """Return the largest batch that is ever leased to such a worker."""
        largest = float(self._batches.largest_size(device.pool_threads))
        return replace(self._seat(None, device), batch_size=largest).batch_rows

    def step(self, state: State, event: Event) -> tuple[State, tuple[Command, ...]]:
        """Return the state after ``event``, and what is to be done."""
        if isinstance(event, Merged):
            return next_megabatch(self.scale(state), state, self._rows), ()
        if isinstance(event, Measured) and state.phase == "measure":
            return replace(state, phase="merge"), (self.merge(state.members, event),)
        state = self.hear(state, event)
        is_open = state.phase not in ("idle", "measure", "merge")
        return self.go_on(state) if is_open else (state, ())

    def hear(self, state: State, event: Event) -> State:
        """Book an event that means the same to every strategy."""
        match event:
            case Started(workers, devices):
                kinds = {name: devices.get(name, REPLICA) for name in workers}
                known = state.members
                members = {n: self._seat(known.get(n), kind) for n, kind in kinds.items()}
                return replace(state, members=members)
            case Begin():
                return replace(state, phase="train")
            case WorkerJoined(worker, device):
                member = replace(self._seat(None, device), came_late=state.phase != "idle")
                return replace(state, members={**state.members, worker: member})
            case WorkerLost(worker):
                return dismiss(state, worker, keeps_work=self.shares_model)
            case Bounded(worker, rows) if worker in state.members:
                member = replace(state.members[worker], most_rows=rows)
                return replace(state, members={**state.members, worker: member})
            case LeaseDone(worker):
                return count(state, event, self.count_updates(state.members[worker], event))
            case Drain() if state.phase != "idle":
                return replace(state, is_draining=True)
        return state

    def _seat(self, member: Member | None, device: Device) -> Member:
        """Return a worker's member as it was; a new one for a new worker or another device."""
        threads = device.pool_threads
        if member is not None and member.pool_threads == threads:
            return member
        return Member(batch_size=float(self._batches.first_size(threads)), pool_threads=threads)

    def go_on(self, state: State) -> tuple[State, tuple[Command, ...]]:
        """Lease what should be leased; once everything is back, ask for the replicas' norms."""
        state, leases = lease_out(state, self.rate)
        if is_finished(state):
            return replace(state, phase="measure"), (Measure(),)
        return state, leases

    def view(self, state: State) -> dict[str, WorkerView]:
        """Return batch size, rate and throughput of every worker."""
        return {
            name: WorkerView(m.batch_rows, self.rate(m), m.rows_per_s, m.pool_threads)
            for name, m in state.members.items()
        }

    def plain(self, state: State) -> dict[str, Any]:
        """Return the state as JSON values."""
        return asdict(state)

    def restore(self, plain: dict[str, Any]) -> State:
        """Return the state that ``plain`` was made from."""
        members = {name: Member(**member) for name, member in plain["members"].items()}
        return State(**{**plain, "members": members})
