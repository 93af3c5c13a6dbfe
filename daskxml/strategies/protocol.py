"""Events that a strategy receives and commands that it returns.

A strategy is a pure state machine, ``step(state, event) -> (state, commands)``. It decides which
worker steps through how many rows at what rate, and when the replicas merge. It has no clock, no
arrays, no threads, no random numbers and no Dask: times, counts and norms arrive inside events. The
same object therefore runs on a cluster and in a simulator, and a test can feed it a trace worked
out by hand.

`Work` is what one worker does on its own (a *lease*), or what several do together while they
exchange arrays by a pattern (a *gang*); `WorkDone` reports either. The life of a mega-batch:

=======  ================  =======  ===========================================================
phase    event             next     commands
=======  ================  =======  ===========================================================
idle     `Begin`           train    `Work`: leases in `dispatch`'s order, or a gang of all
train    `WorkDone`        train    `Work`, as long as rows of the mega-batch are left
train    last `WorkDone`   measure  `Measure`: the norms of the replicas
measure  `Measured`        merge    `Merge`, with the weights
merge    `Merged`          idle     none: evaluation and checkpoints come before the next `Begin`
=======  ================  =======  ===========================================================

A run begins idle, with `Started`; replicas that are idle equal the global model. Strategies whose
weights need no norms go from train to merge. After `Drain` nothing more is given before the merge.

A lost worker takes its unmerged rows with it: `WorkerLost` leads from measure or merge back to
train, and they are given out again (the executor takes a merge back that has begun before it sends
the event). A merge may begin without workers that are late (`daskxml.strategies.quorum`). Where all
workers update one model (``shares_model``), what they have done is in that
model and stays counted: only the rows under way are given out again.

Between two merges the workers of gangs change one common model, so a lost worker takes the work of
*all* with it: the next gang starts from the last merged model, with every row since (the session
rolls back what it has counted for a strategy with ``is_joint``).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorkerDevice:
    """What a worker computes with.

    Attributes
    ----------
    pool_threads
        0: a replica, one batch after the other. Otherwise the worker is a pool of so many threads,
        which divide each of its batches among themselves and update one model without locks.
    rows_per_s
        Its speed in the warm-up; 0: not known.
    """

    pool_threads: int = 0
    rows_per_s: float = 0.0

    @property
    def is_pool(self) -> bool:
        """Whether threads update one model at the same time."""
        return self.pool_threads > 0


REPLICA = WorkerDevice()


@dataclass(frozen=True, slots=True)
class Started:
    """The run begins, or resumes from a checkpoint, with these workers.

    Workers that are not in ``devices`` have a replica.
    """

    workers: tuple[str, ...]
    devices: Mapping[str, WorkerDevice] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Begin:
    """The next mega-batch may be given out.

    It has at most ``rows`` rows, where that is not None: the run's epochs have no more.
    """

    rows: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker arrived, or one that was late is back, based on the global model.

    One that was late brings what it changed, if it ``keeps_change``; else its rows are done again.
    The mega-batch has gone on for ``after_s`` seconds.
    """

    worker: str
    device: WorkerDevice = REPLICA
    keeps_change: bool = True
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker is gone, and with it every update since the last merge.

    Where the model is shared its updates stay, and only its work under way is lost.
    """

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerSilent:
    """Nothing has been heard of a worker for so long that it is late, whatever it was asked."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkRolledBack:
    """The work of a joint strategy since the last merge is lost, but no worker is."""


@dataclass(frozen=True, slots=True)
class BatchLimited:
    """A worker's memory holds batches of at most ``rows`` rows: give it no larger ones."""

    worker: str
    rows: int


@dataclass(frozen=True, slots=True)
class WorkDone:
    """Work is done, ``took_s`` seconds after it was given.

    ``rows``, ``updates`` and ``busy_s`` (without waiting for others) are of each of its workers. A
    replica makes one update a batch, a pool one for each thread's part of a batch.

    Examples
    --------
    >>> WorkDone.alone("a", rows=64, updates=1, busy_s=0.5)
    WorkDone(took_s=0.5, rows={'a': 64}, updates={'a': 1}, busy_s={'a': 0.5})
    """

    took_s: float
    rows: Mapping[str, int]
    updates: Mapping[str, int]
    busy_s: Mapping[str, float]

    @classmethod
    def alone(cls, worker: str, rows: int, updates: int, busy_s: float) -> WorkDone:
        """Return the report of a lease."""
        return cls(busy_s, {worker: rows}, {worker: updates}, {worker: busy_s})


@dataclass(frozen=True, slots=True)
class Measured:
    """Squared L2 norms of the replicas, each a model of ``parameters`` parameters."""

    squared_norms: Mapping[str, float]
    parameters: int

    @property
    def largest_norm(self) -> float:
        """The norm of the replica that has the largest."""
        return math.sqrt(max(self.squared_norms.values()))


@dataclass(frozen=True, slots=True)
class Merged:
    """Every replica is the merged model; the next mega-batch waits for ``Begin``.

    The last one took ``took_s`` seconds, its merge included.
    """

    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GraceOver:
    """The time is over that `Wait` asked for: merge without those who are not in."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Time is up, or the run was stopped: merge what is done, and give out nothing more before."""


Event = (
    Started
    | Begin
    | WorkerJoined
    | WorkerLost
    | WorkerSilent
    | WorkRolledBack
    | BatchLimited
    | WorkDone
    | Measured
    | Merged
    | GraceOver
    | Drain
)


@dataclass(frozen=True, slots=True)
class Mirrored:
    """Every step, an all-reduce combines the gradients of all; every worker applies the result."""


@dataclass(frozen=True, slots=True)
class Central:
    """Every step, a server applies the combined gradient of all and gives all the new model."""


@dataclass(frozen=True, slots=True)
class Asynchronous:
    """A server applies each gradient when it comes, and gives that worker the new model.

    A worker that is ``staleness`` batches ahead of the slowest waits; below 0 none waits.
    """

    staleness: int


@dataclass(frozen=True, slots=True)
class LocalSteps:
    """After every ``steps`` batches, the changes of all replicas are combined into one."""

    steps: int


@dataclass(frozen=True, slots=True)
class Averaging:
    """CROSSBOW: after every batch replicas are pulled to the average model, and it to them.

    With ``w`` a replica, ``z`` the average model and ``c = pull * (w - z)``: ``w -= c`` and
    ``z += sum of all c + momentum * (z - previous z)``.
    """

    pull: float
    momentum: float


SyncPattern = Mirrored | Central | Asynchronous | LocalSteps | Averaging


@dataclass(frozen=True, slots=True)
class Part:
    """One worker's part in some work: ``rows`` rows in batches of ``batch_rows``, at ``lr``.

    The last batch is smaller where ``rows`` is no multiple of ``batch_rows``.
    """

    rows: int
    batch_rows: int
    lr: float


@dataclass(frozen=True, slots=True)
class Work:
    """Let workers step through their batches, and exchange arrays by ``pattern``.

    ``parts`` are in the order of the ranks. Where their numbers of batches differ, workers without
    a batch left take part in the exchange with nothing to add. Without a pattern it is a lease: one
    worker steps on its own.

    Examples
    --------
    >>> lease = Work.alone("a", rows=64, batch_rows=32, lr=0.1)
    >>> lease.parts, lease.is_lease, lease.rows
    ({'a': Part(rows=64, batch_rows=32, lr=0.1)}, True, 64)
    """

    parts: Mapping[str, Part]
    pattern: SyncPattern | None = None

    @classmethod
    def alone(cls, worker: str, rows: int, batch_rows: int, lr: float) -> Work:
        """Return a lease."""
        return cls({worker: Part(rows, batch_rows, lr)})

    @property
    def is_lease(self) -> bool:
        """Whether one worker steps on its own."""
        return self.pattern is None

    @property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(part.rows for part in self.parts.values())


@dataclass(frozen=True, slots=True)
class Measure:
    """Report the norms of the replicas that are to be merged."""

    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge to ``sum_i weights[i] * replica_i + momentum * (global - previous global)``.

    ``perturbed`` and ``regularized`` are for the history: whether the weights were perturbed, and
    whether the norms were small enough for that; None where they are not compared. A joint strategy
    has one model to broadcast: its first worker has the weight 1 and all others 0. Where the model
    is shared nothing moves: the weights are the shares of the updates of each worker that is
    present.
    """

    weights: Mapping[str, float]
    momentum: float
    perturbed: bool
    regularized: bool | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Report when the grace is over for those who are not in yet: `GraceOver`.

    It takes the place of the last one. ``waits_for`` is ``"others"``, where a quorum is in,
    ``"quorum"``, or ``"work"``, where those that are in have done nothing that could be merged.
    """

    waits_for: str


@dataclass(frozen=True, slots=True)
class Rebase:
    """Set a late worker's replica to the global model, with what it changed: `WorkerJoined`.

    If it does not keep its change, its rows are done again.
    """

    worker: str
    keeps_change: bool


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Give the rows of a late worker to others, and drop what it did with them."""

    worker: str


Command = Work | Measure | Merge | Wait | Rebase | GiveUp


@dataclass(frozen=True, slots=True)
class WorkerView:
    """Batch size, rate and throughput of a worker in this mega-batch, for the history.

    ``lr`` is the rate of one update: in a pool, of each thread's part of a batch. ``batch_size`` is
    the batch size before rounding, and ``counted`` the updates that weigh the worker in a merge,
    where a strategy has them.
    """

    batch_rows: int
    lr: float
    rows_per_s: float
    pool_threads: int = 0
    batch_size: float | None = None
    counted: float | None = None


@functools.lru_cache(maxsize=4096)
def natural_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts worker 2 before worker 10.

    Examples
    --------
    >>> sorted(["10", "2", "gpu-b", "gpu-a"], key=natural_order)
    ['2', '10', 'gpu-a', 'gpu-b']
    """
    parts = re.findall(r"\d+|\D+", name)
    return tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in parts)
