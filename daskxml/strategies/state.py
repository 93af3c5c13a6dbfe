"""What a strategy remembers: the rows, the workers, and what each has done since the last merge."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

MEMORY = 16.0  # observations that evidence remembers
# What is assumed of noise: as if so many mega-batches had shown such a deviation, of which few are
# as many times larger.
_PRIOR, _DEVIATION, _SURPRISE = 1, 0.08, 3.5
_SMOOTHING = 0.5  # share of the newest lease in the measured throughput
_SLOWEST = 4  # times as long as expected that a late lease counts, at most: a frozen worker is idle


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What the mega-batches so far say of a quantity that is to be 0.

    The first observation that is far from those before is left out, as a moment in which the
    worker was held up; with a second one in a row all begins anew.

    Attributes
    ----------
    seen
        Observations, by their weights; at most `MEMORY`: older ones count less and less.
    mean, squares
        Their mean, and the sum of the squares of the deviations from it.
    is_doubted
        Whether the last one was left out.

    Examples
    --------
    >>> found = Evidence()
    >>> for value in (0.4, 0.4, -0.9, 0.4):
    ...     found = found.with_value(value)
    >>> found.seen, round(found.mean, 3), round(found.error, 3)
    (3.0, 0.4, 0.027)
    """

    seen: float = 0.0
    mean: float = 0.0
    squares: float = 0.0
    is_doubted: bool = False

    def with_value(self, value: float, weight: float = 1.0) -> Evidence:
        """Return it with one more observation; that of a short time is a part of one."""
        off = value - self.mean
        if self.seen and abs(off) > _SURPRISE * self._deviation / math.sqrt(weight):
            if self.is_doubted:
                return Evidence(seen=weight, mean=value)
            return replace(self, is_doubted=True)
        seen = self.seen + weight
        mean = self.mean + off * weight / seen
        squares = self.squares + weight * off * (value - mean)
        if seen > MEMORY:
            seen, squares = MEMORY, squares * MEMORY / seen
        return Evidence(seen=seen, mean=mean, squares=squares)

    def restarted(self, mean: float) -> Evidence:
        """Return one with a single observation, and the noise that this one knows."""
        return Evidence(seen=1.0, mean=mean, squares=_PRIOR * (self._deviation**2 - _DEVIATION**2))

    @property
    def _freedom(self) -> float:
        return _PRIOR + max(0.0, self.seen - 1.0)

    @property
    def _deviation(self) -> float:
        return math.sqrt((_PRIOR * _DEVIATION**2 + self.squares) / self._freedom)

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return self._deviation / math.sqrt(self.seen) if self.seen else math.inf

    def bound(self, normal: float) -> float:
        """Return how far the mean may be from 0 by noise, as often as a ``normal`` deviate.

        By the first terms of the t distribution's quantile, for a deviation that is estimated.
        """
        return normal * (1.0 + (normal**2 + 1.0) / (4.0 * self._freedom)) * self.error

    @property
    def likely(self) -> float:
        """The mean, drawn to 0 by as much as it may be noise."""
        return self.mean * max(0.0, 1.0 - (self.error / self.mean) ** 2) if self.mean else 0.0


NO_EVIDENCE = Evidence()


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
        The throughput by which its batches are sized once for all, or by which rows are shared,
        where they are; 0 before.
    came_late
        Whether it joined, or came back, since this mega-batch began: it has no whole share of it.
    absent_rows
        What it would have done by then, less the rows that it brought.
    most_rows
        The largest batch that its memory holds, an upper bound of ``batch_size``; 0: no bound.
    evidence
        How much sooner than the others it ends a batch, and how sure that is.
    staleness
        Updates of others between two of a replica's own, in the last mega-batch (shared models).
    best_rows_per_s
        The highest ``rows_per_s`` so far, where a strategy asks how far the device is used.
    lag, age
        Merges since the base of its replica, and since its oldest step that is in no merge.
    is_given_up, is_called
        Whether its unmerged rows were given to others, and whether it is being rebased.
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
    absent_rows: float = 0.0
    most_rows: int = 0
    busy_s: float = 0.0
    evidence: Evidence = NO_EVIDENCE
    staleness: float = 0.0
    best_rows_per_s: float = 0.0
    speed: float = 0.0
    lag: int = 0
    age: int = 0
    is_given_up: bool = False
    is_called: bool = False

    def __post_init__(self) -> None:
        if self.most_rows:
            object.__setattr__(self, "batch_size", min(self.batch_size, float(self.most_rows)))

    @classmethod
    def restored(cls, plain: Mapping[str, Any]) -> WorkerState:
        """Return the state of which these are the values."""
        return cls(**{**plain, "evidence": Evidence(**plain["evidence"])})

    @property
    def updates_per_batch(self) -> int:
        """Updates of a full batch: one, or one by every thread of a pool."""
        return max(1, self.pool_threads)

    @property
    def batch_rows(self) -> int:
        """The batch size in whole rows, the same for every thread of a pool."""
        parts = self.updates_per_batch
        return parts * max(1, round(self.batch_size / parts))

    @property
    def is_late(self) -> bool:
        """Whether its replica is not based on the global model: nothing is leased to it."""
        return self.lag > 0 or self.is_given_up

    @property
    def is_in(self) -> bool:
        """Whether it can be merged: it is not late, and nothing is under way."""
        return not (self.is_late or self.leases or self.quota_rows)

    def coming_late(self, after_s: float) -> WorkerState:
        """Return the state of a worker that comes so long after the mega-batch began."""
        absent_rows = after_s * (self.speed or self.rows_per_s) - self.rows
        return replace(
            self, lag=0, is_given_up=False, is_called=False, came_late=True,
            absent_rows=absent_rows,
        )  # fmt: skip

    def with_lease(self, rows: int) -> WorkerState:
        """Return the state after it was given so many rows."""
        return replace(self, leased_rows=self.leased_rows + rows, leases=self.leases + 1)

    def with_work(self, rows: int, updates: float, busy_s: float) -> WorkerState:
        """Return the state after so many rows under way are done, as so many updates."""
        if self.is_late and self.rows_per_s:
            busy_s = min(busy_s, _SLOWEST * rows / self.rows_per_s)
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

    def without_work(self) -> WorkerState:
        """Return the state without what it has done and was given, but for the work under way."""
        return replace(self, updates=0, rows=0, busy_s=0.0, leased_rows=0, quota_rows=0, age=0)

    def given_up(self) -> WorkerState:
        """Return the state after its rows were given to others."""
        bare = self.without_work()
        return replace(bare, is_given_up=True, is_called=False)

    def in_new_megabatch(self) -> WorkerState:
        """Return the state with the counters of a mega-batch at their beginning."""
        return replace(
            self.without_work(), leases=0, came_late=False, absent_rows=0.0, lag=0,
            is_given_up=False, is_called=False,
        )  # fmt: skip

    def left_behind(self) -> WorkerState:
        """Return the state of a worker that is late, once more if it was before."""
        is_idle = self.is_given_up or not (self.rows or self.leased_rows)
        age = 0 if is_idle else self.age + 1
        return replace(self, quota_rows=0, lag=self.lag + 1, age=age)


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
    merging
        The workers of the merge that is decided, or that norms are measured for.
    waits_for, is_grace_over
        That of the last `Wait`, or ""; whether it was answered.
    merges
        Merges since the run began.
    members
        Every worker, by name.
    first_norm
        The largest norm of a replica at the first merge; 0 before.
    step_s
        Measured seconds of a step that all make together; 0 before the first measurement.
    batches
        Length of a mega-batch, in batches of the largest size (`daskxml.strategies.batches`).
    waited_s
        Seconds that workers wait around a merge; 0 before the first measurement.
    """

    remaining_rows: int
    phase: str = "idle"
    is_draining: bool = False
    merging: tuple[str, ...] = ()
    waits_for: str = ""
    is_grace_over: bool = False
    merges: int = 0
    members: Mapping[str, WorkerState] = field(default_factory=dict)
    first_norm: float = 0.0
    step_s: float = 0.0
    batches: int = 0
    waited_s: float = 0.0

    def without_worker(self, name: str, *, keeps_work: bool = False) -> MegabatchState:
        """Remove a lost worker, and return its rows: the unmerged, or only the unfinished ones."""
        members = dict(self.members)
        lost = members.pop(name, None)
        if lost is None:
            return self
        remaining = self.remaining_rows + lost.leased_rows + lost.quota_rows
        if not keeps_work:
            remaining += lost.rows
        return replace(self, remaining_rows=remaining, members=members)._without_merge(name)

    def left_behind(self, name: str) -> MegabatchState:
        """Return the state with a worker that is late from now on."""
        late = self.members[name]
        left = self.remaining_rows + late.quota_rows
        members = {**self.members, name: late.left_behind()}
        return replace(self, remaining_rows=left, members=members)._without_merge(name)

    def _without_merge(self, name: str) -> MegabatchState:
        """Undo the merge that is decided, if this worker takes part."""
        if name not in self.merging:
            return self
        return replace(self, phase="train", merging=(), waits_for="", is_grace_over=False)

    def drained(self) -> MegabatchState:
        """Return the state of a mega-batch in which nothing more is given out."""
        quotas = sum(worker.quota_rows for worker in self.members.values())
        members = {name: replace(worker, quota_rows=0) for name, worker in self.members.items()}
        left = self.remaining_rows + quotas
        return replace(self, is_draining=True, members=members, remaining_rows=left)

    def rolled_back(self) -> MegabatchState:
        """Return the rows of a mega-batch that has begun: all workers restart it together."""
        rows = sum(worker.rows + worker.leased_rows for worker in self.members.values())
        members = {name: worker.in_new_megabatch() for name, worker in self.members.items()}
        phase = self.phase if self.phase == "idle" else "train"
        left = self.remaining_rows + rows
        return replace(self, remaining_rows=left, members=members, phase=phase, merging=())

    def next_megabatch(self, rows: int) -> MegabatchState:
        """Reset the counters of a mega-batch, but for workers that the merge began without."""
        members = {
            name: worker.in_new_megabatch() if name in self.merging else worker.left_behind()
            for name, worker in self.members.items()
        }
        return MegabatchState(
            remaining_rows=rows,
            merges=self.merges + 1,
            members=members,
            first_norm=self.first_norm,
            step_s=self.step_s,
            batches=self.batches,
            waited_s=self.waited_s,
        )


def present(members: Mapping[str, WorkerState]) -> dict[str, WorkerState]:
    """Return the workers that are not late."""
    return {name: worker for name, worker in members.items() if not worker.is_late}
