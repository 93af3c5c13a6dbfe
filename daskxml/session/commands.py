"""The interface of a session and its backend: results in, commands out.

The backend (the Dask cluster or the simulator) executes commands and reports results; it decides
nothing. Events of workers are those of `daskxml.strategies.protocol`, passed on.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from daskxml.core.work_stats import Means, WorkStats
from daskxml.metrics import LossSum, MetricSums
from daskxml.session.ledger import Span
from daskxml.strategies import protocol

INTERRUPTED = "the run ends at the next merge; Ctrl-C again ends it at once, as it was last written"
Piece = tuple[int, int, int]  # shard, first row, row after the last


@dataclass(frozen=True, slots=True)
class WorkResult:
    """The work of this number is done; ``ranks`` has what each rank did.

    ``squared_norm`` is that of a lease's replica, where it is known.
    """

    number: int
    ranks: tuple[WorkStats, ...]
    squared_norm: float | None = None


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """A gang failed although no worker was lost: a connection broke, for example."""

    number: int


@dataclass(frozen=True, slots=True)
class MergeResult:
    """Every worker has the merged model, and commits it before all that follows.

    Attributes
    ----------
    sent_bytes
        Bytes sent between workers.
    means
        Means that the rule of combining reports.
    """

    sent_bytes: int
    means: Means = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The `Evaluate` command of this number is done."""

    number: int
    sums: MetricSums
    loss: LossSum = field(default_factory=LossSum)


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """The checkpoint is on disk, or could not be written and is given up."""


@dataclass(frozen=True, slots=True)
class BestKept:
    """Every worker keeps the model of `KeepBest`."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """The run is to end at a merge, soon."""

    reason: str


class Stop(enum.Enum):
    """What a listener returns for the event of a mega-batch to end the run at the next merge."""

    STOP = "callback"  # the reason of the run's end

    def __repr__(self) -> str:
        """Return its public name."""
        return f"daskxml.{self.name}"


STOP: Final = Stop.STOP


Result = (
    WorkResult
    | WorkFailed
    | MergeResult
    | EvaluationResult
    | CheckpointWritten
    | BestKept
    | StopRequest
    | protocol.Measured
    | protocol.WorkerJoined
    | protocol.WorkerLost
    | protocol.WorkerSilent
)


@dataclass(frozen=True, slots=True)
class RunWork:
    """Step ``workers`` through their batches, exchanging arrays by ``pattern``.

    Without a pattern it is a lease: one worker, whose replica steps on its own. Several workers are
    a gang, all or nothing: if one dies, the gang is undone, and the backend reports ``WorkerLost``
    instead of ``WorkResult`` once no survivor takes part in it any more.

    Attributes
    ----------
    number
        Of the work.
    workers
        In the order of their ranks.
    batches
        The batches of each rank, in order; a rank may have fewer than another.
    lrs
        The learning rate of each rank.
    pattern
        What the ranks exchange; None in a lease.
    begins
        The first work since a merge: the replicas of a gang start from the global model.
    rewinds
        A worker was lost since the merge: the replicas of a gang drop what they have done since.
    scales_parts
        A last batch of fewer rows than the first steps at a rate in proportion; see `rated`.
    """

    number: int
    workers: tuple[str, ...]
    batches: tuple[tuple[tuple[Span, ...], ...], ...]
    lrs: tuple[float, ...]
    pattern: protocol.SyncPattern | None = None
    begins: bool = False
    rewinds: bool = False
    scales_parts: bool = False

    @property
    def rated(self) -> list[tuple[Sequence[Sequence[Span]], float]]:
        """The batches of a lease with their rates.

        Examples
        --------
        >>> batches = ((Span(0, 0, 0, 8),), (Span(0, 0, 8, 10),))
        >>> lease = RunWork(1, ("a",), (batches,), (0.5,), scales_parts=True)
        >>> [(len(some), lr) for some, lr in lease.rated]
        [(1, 0.5), (1, 0.125)]
        """
        (batches,), (lr,) = self.batches, self.lrs
        first, last = (sum(span.rows for span in batches[place]) for place in (0, -1))
        if last == first or not self.scales_parts:
            return [(batches, lr)]
        return [(batches[:-1], lr), (batches[-1:], lr * (last / first))]

    @property
    def is_lease(self) -> bool:
        """Whether one worker steps on its own."""
        return self.pattern is None

    @property
    def steps(self) -> int:
        """Batches of the rank that has the most."""
        return max(len(batches) for batches in self.batches)

    def rows_of(self, rank: int) -> int:
        """Return the rows of all batches of a rank."""
        return sum(span.rows for batch in self.batches[rank] for span in batch)

    def step_rows(self, step: int) -> tuple[int, ...]:
        """Return the rows of every rank's batch of this step; 0 for a rank without one."""
        return tuple(
            sum(span.rows for span in batches[step]) if step < len(batches) else 0
            for batches in self.batches
        )


@dataclass(frozen=True, slots=True)
class MergeReplicas:
    """Merge the replicas into the model of ``generation``, on all of ``weights`` or on none.

    If a worker dies before all have the merged model, the merge is undone for all, and the backend
    reports ``WorkerLost`` instead of ``MergeResult``.
    """

    generation: int
    weights: Mapping[str, float]
    momentum: float


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Score pieces of the test rows, and sum the loss of pieces of the training rows.

    Both with the global model.
    """

    number: int
    worker: str
    pieces: tuple[Piece, ...]
    train_pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteCheckpoint:
    """Write the global model and the session's state, by ``worker``."""

    worker: str
    megabatch: int


@dataclass(frozen=True, slots=True)
class KeepBest:
    """Keep a copy of the global model, which is that of ``megabatch``, on every worker."""

    megabatch: int


@dataclass(frozen=True, slots=True)
class Rebalance:
    """The placement changed: every worker loads the shards that it now owns."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Begin again from the last checkpoint once there is a worker, as every replica is lost."""


@dataclass(frozen=True, slots=True)
class EndRun:
    """The run is over; the global model is the result."""

    reason: str


Command = (
    RunWork
    | protocol.Measure
    | MergeReplicas
    | Evaluate
    | WriteCheckpoint
    | KeepBest
    | Rebalance
    | protocol.Rebase
    | Restart
    | EndRun
)
