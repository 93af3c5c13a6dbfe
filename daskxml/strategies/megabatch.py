"""The bookkeeping that all strategies share: rows under way, finished and remaining.

It counts rows, finds out when a mega-batch is complete, and returns the rows of a lost worker. A
subclass says how large batches are, at which rate they step, and with which weights the replicas
merge. Work is leases, and scheduling dynamic, a free worker takes more, unless a subclass assigns
rows (`daskxml.strategies.quotas`) or lets all step together (`daskxml.strategies.gangs`). All
functions return a new state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, ClassVar, get_type_hints

from daskxml.strategies import quorum as by_quorum
from daskxml.strategies.batches import BatchConfig, rate_gain, with_length
from daskxml.strategies.dispatch import (
    DEFAULT_POLICY,
    SHORTEST_LEASE_S,
    LeasePolicy,
    Load,
    next_lease_rows,
)
from daskxml.strategies.protocol import (
    REPLICA,
    BatchLimited,
    Begin,
    Command,
    Drain,
    Event,
    GraceOver,
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
    WorkerSilent,
    WorkerView,
    WorkRolledBack,
    natural_order,
)
from daskxml.strategies.state import MegabatchState, WorkerState, present


def _load(worker: WorkerState, *, is_planned: bool) -> Load:
    share = worker.rows / worker.busy_s if worker.rows and worker.busy_s else worker.rows_per_s
    if is_planned and worker.speed:
        share = worker.speed
    done_rows = worker.rows + worker.absent_rows
    return Load(
        worker.batch_rows, worker.rows_per_s, worker.leased_rows, worker.leases, done_rows, share
    )


def _is_as_planned(workers: Iterable[WorkerState]) -> bool:
    """Whether all did their rows of this mega-batch as soon as shares assume, but for a moment."""
    done = [w for w in workers if w.rows and w.busy_s and w.speed]
    busy_s, planned_s = sum(w.busy_s for w in done), sum(w.rows / w.speed for w in done)
    slower = busy_s / planned_s if done else 1.0
    return all(
        w.busy_s - slower * w.rows / w.speed <= max(SHORTEST_LEASE_S, w.busy_s / 32.0) for w in done
    )


def proportional_weights(
    workers: Mapping[str, WorkerState], sizes: Mapping[str, float]
) -> dict[str, float]:
    """Return weights in proportion to positive ``sizes``, 0 for a replica without an update.

    Where all are without, all count.

    Examples
    --------
    >>> workers = {"a": WorkerState(batch_size=8, updates=2), "b": WorkerState(batch_size=8)}
    >>> proportional_weights(workers, {"a": 1.0, "b": 1.0})
    {'a': 1.0, 'b': 0.0}
    """
    updated = {name for name, worker in workers.items() if worker.updates} or workers.keys()
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
    Config
        The class of ``config``, by its annotation.
    is_joint
        All workers change one common model between merges, so a loss undoes the work of all.
    averages
        A merge broadcasts the average model of `Averaging`, with the one before it, and replicas
        stay what they are instead of becoming the global model.
    shares_optimizer
        Every worker's optimizer must hold the same state: a merge broadcasts it.
    shares_model
        All workers update one model, in shared memory or by pushing the changes of a copy, so a
        lost worker takes only its work under way with it, and a merge moves nothing.
    rules
        The valid values of ``combine.rule``; the first is what "auto" stands for.
    needs_norms
        Whether the weights of a merge depend on the norms of the replicas.
    quorum
        The share of the workers that a merge needs, of a strategy that merges replicas: see
        `daskxml.strategies.quorum`. 1 unless it is set.
    scales_parts
        Whether a batch of fewer rows than the worker's others, as there may be one at the end of a
        lease, steps at a rate in proportion to its rows.
    """

    is_joint: bool = False
    averages: bool = False
    shares_optimizer: bool = False
    shares_model: bool = False
    needs_norms: bool = False
    scales_parts: bool = False
    quorum: float = 1.0
    rules: tuple[str, ...] = ("mean", "sum", "adasum")

    config: BatchConfig
    Config: ClassVar[Any]

    def __init_subclass__(cls) -> None:
        cls.Config = get_type_hints(cls)["config"]

    def __init__(self, config: BatchConfig) -> None:
        self.config = config

    def rate(self, worker: WorkerState) -> float:
        """Return a worker's learning rate; in a pool, that of each thread's part of a batch."""
        raise NotImplementedError

    def policy(self, state: MegabatchState) -> LeasePolicy:
        """Return how long leases are."""
        return DEFAULT_POLICY

    def lease_of(self, name: str, worker: WorkerState, rows: int, gain: float) -> Work | None:
        """Return a worker's lease of at most so many rows; None if that is none.

        With `scales_parts` a lease of less than a batch is at a rate in proportion to its rows.
        ``gain`` is a factor of all rates.
        """
        if not rows:
            return None
        rate = self.rate(worker) * gain
        if self.scales_parts:
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
        rows, batches = self.config.megabatch_rows, self.config.first_batches
        return MegabatchState(remaining_rows=rows, batches=batches)

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
            largest = self.config.batch_max
            if self.config.megabatch_batches == "auto" and not (self.is_joint or self.shares_model):
                state = with_length(state, event.took_s, largest, self._momentum)
            return self.scale(state).next_megabatch(state.batches * largest), ()
        if isinstance(event, Measured) and state.phase == "measure":
            state = replace(state, phase="merge", first_norm=state.first_norm or event.largest_norm)
            return state, (self._merge(state, event),)
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
            case WorkerJoined():
                return self._joined(state, event)
            case WorkerLost(name) if name in members:
                if self.is_joint:
                    state = state.rolled_back()
                return state.without_worker(name, keeps_work=self.shares_model)
            case WorkerSilent(name) if name in members:
                return state.left_behind(name)
            case WorkRolledBack():
                return state.rolled_back()
            case BatchLimited(name, rows) if name in members:
                worker = replace(members[name], most_rows=rows)
                return replace(state, members={**members, name: worker})
            case WorkDone():
                return self._record_work(state, event)
            case GraceOver() if state.waits_for:
                return replace(state, is_grace_over=True)
            case Drain() if state.phase != "idle":
                return state.drained()
        return state

    def _record_work(self, state: MegabatchState, done: WorkDone) -> MegabatchState:
        members = dict(state.members)
        for name, rows in done.rows.items():
            updates = self.count_updates(members[name], rows, done.updates[name])
            members[name] = members[name].with_work(rows, updates, done.busy_s[name])
        return replace(state, members=members)

    def _joined(self, state: MegabatchState, event: WorkerJoined) -> MegabatchState:
        """Return the state with a worker that is new, or was late and is back."""
        name, left, is_back = event.worker, state.remaining_rows, event.worker in self.late(state)
        worker = state.members[name] if is_back else self._new_worker(event.device)
        if not event.keeps_change:
            left, worker = left + worker.rows, worker.without_work()
        if is_back or (state.phase != "idle" and state.members):
            worker = worker.coming_late(event.after_s)
        return replace(state, remaining_rows=left, members={**state.members, name: worker})

    def _new_worker(self, device: WorkerDevice) -> WorkerState:
        threads = device.pool_threads
        size = float(self.config.first_size(threads))
        return WorkerState(batch_size=size, pool_threads=threads)

    def _resumed(self, known: WorkerState | None, device: WorkerDevice) -> WorkerState:
        """Return a worker as it was; a new one for a new worker or another device."""
        if known is not None and known.pool_threads == device.pool_threads:
            fresh = known.in_new_megabatch()  # what a late one had was not stored
            return known if fresh == known else fresh
        return self._new_worker(device)

    def schedule(self, state: MegabatchState) -> tuple[MegabatchState, tuple[Command, ...]]:
        """Give out rows; once a merge is due, ask for the replicas' norms, or merge."""
        state, given_up = by_quorum.give_up(state)
        state, called = by_quorum.call_back(state)
        state, work = self.lease(state)
        state, waits, is_due = by_quorum.wait(state, self.quorum)
        commands = (*given_up, *called, *work, *waits)
        if not is_due:
            return state, commands
        names = by_quorum.those_in(state)
        if self.needs_norms:
            state = replace(state, phase="measure", merging=names)
            return state, (*commands, Measure(names))
        state = replace(state, phase="merge", merging=names)
        return state, (*commands, self._merge(state, Measured({}, 0)))

    def _merge(self, state: MegabatchState, measured: Measured) -> Merge:
        merge = self.merge(by_quorum.merging(state), measured)
        return replace(merge, momentum=merge.momentum ** self._times(state))

    @property
    def _momentum(self) -> float:
        return getattr(self.config, "momentum", 0.0)

    def _times(self, state: MegabatchState) -> float:
        """Return how many times as long as the first mega-batch this one is."""
        return state.batches / self.config.first_batches

    def gain(self, state: MegabatchState) -> float:
        """Return the factor of all rates in this mega-batch."""
        return rate_gain(self._momentum, self._times(state))

    def lease(self, state: MegabatchState) -> tuple[MegabatchState, tuple[Command, ...]]:
        """Lease rows to the workers that should have more."""
        if state.is_draining or not state.remaining_rows:
            return state, ()
        leases, policy, gain = list[Command](), self.policy(state), self.gain(state)
        members, remaining = present(state.members), state.remaining_rows
        is_planned = _is_as_planned(members.values())
        loads = {name: _load(w, is_planned=is_planned) for name, w in members.items()}

        def next_lease() -> Work | None:
            for name in sorted(loads, key=lambda n: (loads[n].leases, natural_order(n))):
                rows = next_lease_rows(name, loads, remaining, policy)
                if lease := self.lease_of(name, members[name], rows, gain):
                    return lease
            return None

        while remaining and (lease := next_lease()):
            leases.append(lease)
            (name,) = lease.parts
            members[name] = members[name].with_lease(lease.rows)
            loads[name] = _load(members[name], is_planned=is_planned)
            remaining -= lease.rows
        everyone = {**state.members, **members}
        return replace(state, members=everyone, remaining_rows=remaining), tuple(leases)

    def view(self, state: MegabatchState) -> dict[str, WorkerView]:
        """Return batch size, rate and throughput of every worker."""
        gain = self.gain(state)
        return {
            name: WorkerView(w.batch_rows, self.rate(w) * gain, w.rows_per_s, w.pool_threads)
            for name, w in state.members.items()
        }

    def late(self, state: MegabatchState) -> set[str]:
        """Return the workers whose replicas are not based on the global model."""
        return state.members.keys() - present(state.members).keys()

    def merging(self, state: MegabatchState) -> tuple[str, ...]:
        """Return the workers of the merge that is decided."""
        return state.merging

    def plain(self, state: MegabatchState) -> dict[str, Any]:
        """Return the state as JSON values, for a checkpoint."""
        return asdict(state)

    def restore(self, plain: dict[str, Any]) -> MegabatchState:
        """Return the state that ``plain`` was made from."""
        members = {name: WorkerState.restored(worker) for name, worker in plain["members"].items()}
        merging = tuple(plain.get("merging", ()))
        older = {"batches": self.config.first_batches}  # of checkpoints without this field
        return MegabatchState(**{**older, **plain, "members": members, "merging": merging})
