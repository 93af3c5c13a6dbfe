"""The bookkeeping of a mega-batch that strategies with leases share.

Who has been leased what, who did how much, when everything is back, and what a lost worker takes
with it. The algorithm that uses it says how large batches are, at which rate, and with which
weights the replicas merge. Scheduling is dynamic, whoever is free takes more, unless a subclass
assigns rows (`daskxml.strategies.quotas`). All functions return a new state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from daskxml.strategies.dispatch import Load, next_lease_rows
from daskxml.strategies.protocol import (
    Begin,
    Command,
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

_SMOOTHING = 0.5  # share of the newest lease in the measured throughput


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A worker's part in this mega-batch.

    Attributes
    ----------
    batch_size
        Its batch size, kept as a real number.
    updates, rows
        What it has done since the last merge.
    leased_rows, leases
        What it has been given and not yet reported.
    quota_rows
        What is set aside for it and not yet leased (static assignment only).
    rows_per_s
        Its measured throughput; 0 while nothing is measured.
    came_late
        It arrived in the middle of this mega-batch.
    """

    batch_size: float
    updates: int = 0
    rows: int = 0
    leased_rows: int = 0
    leases: int = 0
    quota_rows: int = 0
    rows_per_s: float = 0.0
    came_late: bool = False

    @property
    def batch_rows(self) -> int:
        """The batch size in whole rows."""
        return max(1, round(self.batch_size))


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Where the run stands.

    Attributes
    ----------
    remaining_rows
        Rows of this mega-batch that are with nobody.
    phase
        ``"idle"``, ``"train"``, ``"measure"``, ``"merge"``, or one of a subclass's own.
    is_draining
        Nothing more is leased in this mega-batch.
    merges
        Since the run began.
    members
        Every worker, by name.
    """

    remaining_rows: int
    phase: str = "idle"
    is_draining: bool = False
    merges: int = 0
    members: Mapping[str, Member] = field(default_factory=dict)


def natural_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts worker 2 before worker 10.

    >>> sorted(["10", "2", "gpu-b", "gpu-a"], key=natural_order)
    ['2', '10', 'gpu-a', 'gpu-b']
    """
    parts = re.findall(r"\d+|\D+", name)
    return tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in parts)


def hear(state: State, event: Event, batch_size: float) -> State:
    """Book an event that means the same to every strategy; new workers get ``batch_size``."""
    match event:
        case Started(workers):
            members = {n: state.members.get(n, Member(batch_size=batch_size)) for n in workers}
            return replace(state, members=members)
        case Begin():
            return replace(state, phase="train")
        case WorkerJoined(worker):
            return admit(state, worker, batch_size)
        case WorkerLost(worker):
            return dismiss(state, worker)
        case LeaseDone():
            return count(state, event)
        case Drain() if state.phase != "idle":
            return replace(state, is_draining=True)
    return state


def admit(state: State, worker: str, batch_size: float) -> State:
    """Add a worker whose replica equals the global model."""
    member = Member(batch_size=batch_size, came_late=state.phase != "idle")
    return replace(state, members={**state.members, worker: member})


def dismiss(state: State, worker: str) -> State:
    """Remove a lost worker; its unmerged rows are to be leased again."""
    members = dict(state.members)
    lost = members.pop(worker, None)
    if lost is None:
        return state
    remaining = state.remaining_rows + lost.rows + lost.leased_rows + lost.quota_rows
    phase = "train" if state.phase in ("measure", "merge") else state.phase
    return replace(state, remaining_rows=remaining, members=members, phase=phase)


def count(state: State, done: LeaseDone) -> State:
    """Book a finished lease."""
    member = state.members[done.worker]
    measured = done.rows / done.busy_s if done.busy_s > 0.0 else member.rows_per_s
    known = member.rows_per_s or measured
    member = replace(
        member,
        updates=member.updates + done.updates,
        rows=member.rows + done.rows,
        leased_rows=member.leased_rows - done.rows,
        leases=member.leases - 1,
        rows_per_s=known + _SMOOTHING * (measured - known),
    )
    return replace(state, members={**state.members, done.worker: member})


def next_megabatch(batch_sizes: Mapping[str, float], state: State, rows: int) -> State:
    """Start counting anew, with these batch sizes (the old one where none is given)."""
    members = {
        name: Member(batch_size=batch_sizes.get(name, m.batch_size), rows_per_s=m.rows_per_s)
        for name, m in state.members.items()
    }
    return State(remaining_rows=rows, merges=state.merges + 1, members=members)


def lease_out(state: State, rate: Callable[[Member], float]) -> tuple[State, tuple[Command, ...]]:
    """Lease while anybody should take more."""
    leases: list[Command] = []
    members, remaining = dict(state.members), state.remaining_rows
    while not state.is_draining and (lease := _next_lease(members, remaining, rate)):
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
    members: Mapping[str, Member], remaining_rows: int, rate: Callable[[Member], float]
) -> Lease | None:
    loads = {
        name: Load(m.batch_rows, m.rows_per_s, m.leased_rows, m.leases)
        for name, m in members.items()
    }
    for name in sorted(members, key=lambda n: (members[n].leases, natural_order(n))):
        rows = next_lease_rows(name, loads, remaining_rows)
        if rows:
            return Lease(name, rows, loads[name].batch_rows, rate(members[name]))
    return None


class MegabatchStrategy:
    """A strategy of leases but for its rules, which a subclass adds.

    Parameters
    ----------
    first_batch_size
        Batch size of a worker that is new, 1 to ``max_batch_size``.
    max_batch_size
        No batch is ever larger.
    megabatch_rows
        Rows between two merges.
    """

    is_joint = False
    keeps_replicas = False
    averages = False
    shares_optimizer = False
    rules: tuple[str, ...] = ("mean", "sum", "adasum")

    def __init__(self, first_batch_size: int, max_batch_size: int, megabatch_rows: int) -> None:
        self._first, self._largest, self._rows = first_batch_size, max_batch_size, megabatch_rows

    def rate(self, member: Member) -> float:
        """Return a worker's learning rate."""
        raise NotImplementedError

    def scale(self, state: State) -> dict[str, float]:
        """Return the next batch sizes; the old one stays where none is given."""
        return {}

    def merge(self, members: Mapping[str, Member], measured: Measured) -> Merge:
        """Return how the replicas are merged."""
        raise NotImplementedError

    def initial_state(self) -> State:
        """Return the state before any worker is known."""
        return State(remaining_rows=self._rows)

    def max_batch_rows(self) -> int:
        """Return the largest batch that is ever leased."""
        return self._largest

    def step(self, state: State, event: Event) -> tuple[State, tuple[Command, ...]]:
        """Return the state after ``event``, and what is to be done."""
        if isinstance(event, Merged):
            return next_megabatch(self.scale(state), state, self._rows), ()
        if isinstance(event, Measured) and state.phase == "measure":
            return replace(state, phase="merge"), (self.merge(state.members, event),)
        state = hear(state, event, float(self._first))
        is_open = state.phase not in ("idle", "measure", "merge")
        return self.go_on(state) if is_open else (state, ())

    def go_on(self, state: State) -> tuple[State, tuple[Command, ...]]:
        """Lease what should be leased; once everything is back, ask for the replicas' norms."""
        state, leases = lease_out(state, self.rate)
        if is_finished(state):
            return replace(state, phase="measure"), (Measure(),)
        return state, leases

    def view(self, state: State) -> dict[str, WorkerView]:
        """Return batch size, rate and throughput of every worker."""
        return {
            name: WorkerView(m.batch_rows, self.rate(m), m.rows_per_s)
            for name, m in state.members.items()
        }

    def plain(self, state: State) -> dict[str, Any]:
        """Return the state as JSON values."""
        return asdict(state)

    def restore(self, plain: dict[str, Any]) -> State:
        """Return the state that ``plain`` was made from."""
        members = {name: Member(**member) for name, member in plain["members"].items()}
        return State(**{**plain, "members": members})
