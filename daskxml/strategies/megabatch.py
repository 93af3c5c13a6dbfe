"""The bookkeeping that all strategies share: rows under way, finished and remaining.

It counts rows, finds out when a mega-batch is complete, and returns the rows of a lost worker. A
subclass says how large batches are, at which rate they step, and with which weights the replicas
merge. Work is leases, and scheduling dynamic, a free worker takes more, unless a subclass assigns
rows (`daskxml.strategies.quotas`) or lets all step together (`daskxml.strategies.gangs`). All
functions return a new state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from daskxml.strategies.batches import BatchConfig
from daskxml.strategies.dispatch import DEFAULT_POLICY, LeasePolicy, Load, next_lease_rows
from daskxml.strategies.protocol import (
    REPLICA,
    BatchLimited,
    Begin,
    Command,
    Drain,
    Event,
    Measure,
    Measured,
    Merge,
    Merged,
    Started,
    Work,
    WorkDone,
    WorkerDevice,
    WorkerJoined,
    WorkerLost,
    WorkerView,
    WorkRolledBack,
    natural_order,
)

_SMOOTHING = 0.5  # share of the newest lease in the measured throughput


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerState:
    """What a strategy records of a worker.

    Attributes
    ----------
    batch_size
        Its batch size, kept as a real number; a pool's is divided among its threads.
    pool_threads
        Threads of a pool; 0 for a replica.
    updates, rows, busy_s
        Done since the last merge, and the seconds that it took; a pool's updates are its batches,
        unless the strategy counts those of its threads.
    total_updates
        Updates since the run began.
    leased_rows, leases
        Rows under way, and pieces of work: leases, or its part in a gang.
    quota_rows
        Assigned and not yet leased (static assignment only).
    rows_per_s
        Measured throughput, without waiting for others; 0 before the first measurement.
    speed
        The throughput by which its batches are sized once for all, where they are; 0 before.
    came_late
        Whether it joined in the middle of this mega-batch.
    most_rows
        The largest batch that its memory holds, an upper bound of ``batch_size``; 0: no bound.
    gain
        What a rule of batch sizes remembers of its last step; see
        `daskxml.strategies.batch_rules`.
    staleness
        Updates of others between two of a replica's own, in the last mega-batch (shared models).
    best_rows_per_s
        The highest ``rows_per_s`` so far, where a strategy asks how far the device is used.
    """

    batch_size: float
    pool_threads: int = 0
    updates: float = 0
    rows: int = 0
    total_updates: float = 0.0
    leased_rows: int = 0
    leases: int = 0
    quota_rows: int = 0
    rows_per_s: float = 0.0
    came_late: bool = False
    most_rows: int = 0
    busy_s: float = 0.0
    gain: float = 0.0
    staleness: float = 0.0
    best_rows_per_s: float = 0.0
    speed: float = 0.0

    def __post_init__(self) -> None:
        if self.most_rows:
            object.__setattr__(self, "batch_size", min(self.batch_size, float(self.most_rows)))

    @property
    def updates_per_batch(self) -> int:
        """Updates of a full batch: one, or one by every thread of a pool."""
        return max(1, self.pool_threads)

    @property
    def batch_rows(self) -> int:
        """The batch size in whole rows, the same for every thread of a pool."""
        parts = self.updates_per_batch
        return parts * max(1, round(self.batch_size / parts))

    def with_lease(self, rows: int) -> WorkerState:
        """Return the state after it was given so many rows."""
        return replace(self, leased_rows=self.leased_rows + rows, leases=self.leases + 1)

    def with_work(self, rows: int, updates: float, busy_s: float) -> WorkerState:
        """Return the state after so many rows under way are done, as so many updates."""
        measured = rows / busy_s if rows and busy_s > 0.0 else self.rows_per_s
        known = self.rows_per_s or measured
        return replace(
            self,
            updates=self.updates + updates,
            rows=self.rows + rows,
            busy_s=self.busy_s + busy_s,
            total_updates=self.total_updates + updates,
            leased_rows=self.leased_rows - rows,
            leases=self.leases - 1,
            rows_per_s=known + _SMOOTHING * (measured - known),
        )

    def in_new_megabatch(self) -> WorkerState:
        """Return the state with the counters of a mega-batch at their beginning."""
        return replace(
            self, updates=0, rows=0, busy_s=0.0, leased_rows=0, leases=0, quota_rows=0,
            came_late=False,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class MegabatchState:
    """The state of a strategy.

    Attributes
    ----------
    remaining_rows
        Rows of this mega-batch that are neither given out nor assigned.
    phase
        ``"idle"``, ``"train"``, ``"measure"``, ``"merge"``, or one that a subclass adds.
    is_draining
        Whether nothing more is given out in this mega-batch.
    merges
        Merges since the run began.
    members
        Every worker, by name.
    first_norm
        The largest norm of a replica at the first merge; 0 before.
    step_s
        Measured seconds of a step that all make together; 0 before the first measurement.
    """

    remaining_rows: int
    phase: str = "idle"
    is_draining: bool = False
    merges: int = 0
    members: Mapping[str, WorkerState] = field(default_factory=dict)
    first_norm: float = 0.0
    step_s: float = 0.0


def remove_worker(state: MegabatchState, name: str, *, keeps_work: bool = False) -> MegabatchState:
    """Remove a lost worker and return its rows: the unmerged ones, or only the unfinished ones."""
    members = dict(state.members)
    lost = members.pop(name, None)
    if lost is None:
        return state
    remaining = state.remaining_rows + lost.leased_rows + lost.quota_rows
    if not keeps_work:
        remaining += lost.rows
    phase = "train" if state.phase in ("measure", "merge") else state.phase
    return replace(state, remaining_rows=remaining, members=members, phase=phase)


def roll_back(state: MegabatchState) -> MegabatchState:
    """Return the rows of a mega-batch that has begun: all workers restart it together."""
    rows = sum(worker.rows + worker.leased_rows for worker in state.members.values())
    members = {name: worker.in_new_megabatch() for name, worker in state.members.items()}
    phase = state.phase if state.phase == "idle" else "train"
    return replace(state, remaining_rows=state.remaining_rows + rows, members=members, phase=phase)


def next_megabatch(state: MegabatchState, rows: int) -> MegabatchState:
    """Reset the counters of a mega-batch."""
    members = {name: worker.in_new_megabatch() for name, worker in state.members.items()}
    return replace(
        state,
        remaining_rows=rows,
        phase="idle",
        is_draining=False,
        merges=state.merges + 1,
        members=members,
    )


def is_complete(state: MegabatchState) -> bool:
    """Whether all work that comes before the merge is finished."""
    workers = state.members.values()
    is_over = state.is_draining or not (state.remaining_rows or any(w.quota_rows for w in workers))
    return bool(workers) and is_over and all(w.leases == 0 for w in workers)


def _load(worker: WorkerState, policy: LeasePolicy) -> Load:
    speed = worker.rows_per_s
    if policy.tail == "shares" and worker.rows and worker.busy_s:
        speed = worker.rows / worker.busy_s  # of this mega-batch: shares are to come out even
    return Load(worker.batch_rows, speed, worker.leased_rows, worker.leases, worker.rows)


def whole_or_part(rows: int, batch_rows: int) -> int:
    """Return the rows of the whole batches in a lease; all of it, if it is less than one.

    Examples
    --------
    >>> whole_or_part(70, 32), whole_or_part(6, 32)
    (64, 6)
    """
    return rows - rows % batch_rows if rows > batch_rows else rows


def proportional_weights(
    workers: Mapping[str, WorkerState], sizes: Mapping[str, float]
) -> dict[str, float]:
    """Return weights in proportion to ``sizes``, 0 for a replica without an update.

    Where all are without, all count; where all sizes are 0, alike.

    Examples
    --------
    >>> workers = {"a": WorkerState(batch_size=8, updates=2), "b": WorkerState(batch_size=8)}
    >>> proportional_weights(workers, {"a": 1.0, "b": 1.0})
    {'a': 1.0, 'b': 0.0}
    >>> proportional_weights(workers, {"a": 0.0, "b": 0.0})
    {'a': 1.0, 'b': 0.0}
    """
    updated = {name for name, worker in workers.items() if worker.updates} or workers.keys()
    if not any(sizes[name] for name in updated):
        sizes = dict.fromkeys(workers, 1.0)
    total = sum(sizes[name] for name in updated)
    return {name: sizes[name] / total if name in updated else 0.0 for name in workers}


class Strategy:
    """A pure state machine over a picklable state, which no method changes in place.

    A subclass adds the rules; it is one of leases, unless it says otherwise.

    Parameters
    ----------
    config
        Rows between two merges, and the first and the largest batch of each kind of worker.

    Attributes
    ----------
    is_joint
        All workers change one common model between merges, so a loss undoes the work of all.
    keeps_replicas
        Replicas stay what they are after a merge, instead of becoming the global model.
    averages
        A merge broadcasts the average model of `Averaging`, with the one before it.
    shares_optimizer
        Every worker's optimizer must hold the same state: a merge broadcasts it.
    shares_model
        All workers update one model, in shared memory or by pushing the changes of a copy, so a
        lost worker takes only its work under way with it, and a merge moves nothing.
    rules
        The valid values of ``combine.rule``; the first is what "auto" stands for.
    needs_norms
        Whether the weights of a merge depend on the norms of the replicas.
    scales_parts
        Whether a batch of fewer rows than the worker's others, as there may be one at the end of a
        mega-batch, steps at a rate in proportion to its rows.
    """

    is_joint: bool = False
    keeps_replicas: bool = False
    averages: bool = False
    shares_optimizer: bool = False
    shares_model: bool = False
    needs_norms: bool = False
    scales_parts: bool = False
    rules: tuple[str, ...] = ("mean", "sum", "adasum")

    config: BatchConfig

    def __init__(self, config: BatchConfig) -> None:
        self.config = config

    def rate(self, worker: WorkerState) -> float:
        """Return a worker's learning rate; in a pool, that of each thread's part of a batch."""
        raise NotImplementedError

    def policy(self, state: MegabatchState) -> LeasePolicy:
        """Return how long leases are."""
        return DEFAULT_POLICY

    def lease_of(self, name: str, worker: WorkerState, rows: int) -> Work | None:
        """Return a worker's lease of at most so many rows; None if that is none.

        With `scales_parts` a batch of fewer rows than the others is a lease of its own.
        """
        if not rows:
            return None
        rate = self.rate(worker)
        if self.scales_parts:
            rows = whole_or_part(rows, worker.batch_rows)
            rate *= min(1.0, rows / worker.batch_rows)
        return Work.alone(name, rows, worker.batch_rows, rate)

    def count_updates(self, worker: WorkerState, rows: int, updates: int) -> float:
        """Return the updates of some work: of a pool whose replica is merged, its batches."""
        return -(-updates // worker.updates_per_batch)

    def scale(self, state: MegabatchState) -> MegabatchState:
        """Return the state after a merge with the next batch sizes."""
        return state

    def merge(self, state: MegabatchState, measured: Measured) -> Merge:
        """Return how the replicas are merged."""
        raise NotImplementedError

    def initial_state(self) -> MegabatchState:
        """Return the state before any worker is known."""
        return MegabatchState(remaining_rows=self.config.megabatch_rows)

    def max_batch_rows(self, device: WorkerDevice = REPLICA) -> int:
        """Return the rows of the largest batch that is ever leased to such a worker.

        A replica allocates for it; the threads of a pool divide it among themselves.
        """
        largest = float(self.config.largest_size(device.pool_threads))
        return replace(self._new_worker(device), batch_size=largest).batch_rows

    def step(
        self, state: MegabatchState, event: Event
    ) -> tuple[MegabatchState, tuple[Command, ...]]:
        """Return the state after ``event``, and the commands that follow."""
        if isinstance(event, Merged):
            return next_megabatch(self.scale(state), self.config.megabatch_rows), ()
        if isinstance(event, Measured) and state.phase == "measure":
            state = replace(state, phase="merge", first_norm=state.first_norm or event.largest_norm)
            return state, (self.merge(state, event),)
        state = self.record(state, event)
        is_open = state.phase not in ("idle", "measure", "merge")
        return self.schedule(state) if is_open else (state, ())

    def record(self, state: MegabatchState, event: Event) -> MegabatchState:
        """Return the state updated by an event, before commands are decided."""
        members = state.members
        match event:
            case Started(names, devices):
                present = {n: self._resumed(members.get(n), devices.get(n, REPLICA)) for n in names}
                return replace(state, members=present)
            case Begin(rows):
                left = state.remaining_rows if rows is None else min(rows, state.remaining_rows)
                return replace(state, phase="train", remaining_rows=left)
            case WorkerJoined(name, device):
                came_late = state.phase != "idle" and bool(members)
                worker = replace(self._new_worker(device), came_late=came_late)
                return replace(state, members={**members, name: worker})
            case WorkerLost(name) if name in members:
                if self.is_joint:
                    state = roll_back(state)
                return remove_worker(state, name, keeps_work=self.shares_model)
            case WorkRolledBack():
                return roll_back(state)
            case BatchLimited(name, rows) if name in members:
                worker = replace(members[name], most_rows=rows)
                return replace(state, members={**members, name: worker})
            case WorkDone():
                return self._record_work(state, event)
            case Drain() if state.phase != "idle":
                return replace(state, is_draining=True)
        return state

    def _record_work(self, state: MegabatchState, done: WorkDone) -> MegabatchState:
        members = dict(state.members)
        for name, rows in done.rows.items():
            updates = self.count_updates(members[name], rows, done.updates[name])
            members[name] = members[name].with_work(rows, updates, done.busy_s[name])
        return replace(state, members=members)

    def _new_worker(self, device: WorkerDevice) -> WorkerState:
        threads = device.pool_threads
        size = float(self.config.first_size(threads))
        return WorkerState(batch_size=size, pool_threads=threads)

    def _resumed(self, known: WorkerState | None, device: WorkerDevice) -> WorkerState:
        """Return a worker as it was; a new one for a new worker or another device."""
        if known is not None and known.pool_threads == device.pool_threads:
            return known
        return self._new_worker(device)

    def schedule(self, state: MegabatchState) -> tuple[MegabatchState, tuple[Command, ...]]:
        """Give out rows; once all are finished, ask for the replicas' norms, or merge."""
        state, work = self.lease(state)
        if not is_complete(state):
            return state, work
        if self.needs_norms:
            return replace(state, phase="measure"), (Measure(),)
        return replace(state, phase="merge"), (self.merge(state, Measured({}, 0)),)

    def lease(self, state: MegabatchState) -> tuple[MegabatchState, tuple[Command, ...]]:
        """Lease rows to the workers that should have more."""
        leases, policy = list[Command](), self.policy(state)
        members, remaining = dict(state.members), state.remaining_rows
        while not state.is_draining and (lease := self._next_lease(members, remaining, policy)):
            leases.append(lease)
            (worker,) = lease.parts
            members[worker] = members[worker].with_lease(lease.rows)
            remaining -= lease.rows
        return replace(state, members=members, remaining_rows=remaining), tuple(leases)

    def _next_lease(
        self, members: Mapping[str, WorkerState], remaining_rows: int, policy: LeasePolicy
    ) -> Work | None:
        loads = {name: _load(worker, policy) for name, worker in members.items()}
        for name in sorted(members, key=lambda n: (members[n].leases, natural_order(n))):
            rows = next_lease_rows(name, loads, remaining_rows, policy)
            if lease := self.lease_of(name, members[name], rows):
                return lease
        return None

    def view(self, state: MegabatchState) -> dict[str, WorkerView]:
        """Return batch size, rate and throughput of every worker."""
        return {
            name: WorkerView(w.batch_rows, self.rate(w), w.rows_per_s, w.pool_threads)
            for name, w in state.members.items()
        }

    def plain(self, state: MegabatchState) -> dict[str, Any]:
        """Return the state as JSON values, for a checkpoint."""
        return asdict(state)

    def restore(self, plain: dict[str, Any]) -> MegabatchState:
        """Return the state that ``plain`` was made from."""
        members = {name: WorkerState(**worker) for name, worker in plain["members"].items()}
        return MegabatchState(**{**plain, "members": members})
