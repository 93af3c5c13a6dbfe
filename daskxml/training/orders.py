"""What a session and its executor say to each other: reports in, orders out.

The executor (the Dask runtime, or a simulator) carries the orders out and reports; it decides
nothing. Worker events are those of `daskxml.strategies.protocol`, passed through.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from daskxml.metrics import LossSum, MetricSums
from daskxml.strategies.protocol import Measured, WorkerJoined, WorkerLost
from daskxml.strategies.schemes import Scheme
from daskxml.training.ledger import Span

Piece = tuple[int, int, int]  # shard, first row, row after the last
Notes = Mapping[str, tuple[float, int]]  # what is worth telling: name to (sum, count)


@dataclass(frozen=True, slots=True)
class LeaseReport:
    """A lease is done: the rows' losses, summed, the seconds it took, and the features it read.

    ``updates`` is how often the model was changed: once a batch, or more by the threads of a pool.
    ``notes`` is what is worth telling, as name to (sum, count). ``most_rows`` is the largest batch
    that the worker's memory holds, where that has turned out to be less than thought; else 0.
    ``squared_norm`` is that of the worker's replica after the lease, where it is told.
    """

    lease: int
    loss_sum: float
    busy_s: float
    nonzeros: int
    updates: int
    notes: Notes = field(default_factory=dict)
    most_rows: int = 0
    squared_norm: float | None = None


@dataclass(frozen=True, slots=True)
class GangResult:
    """What one worker did in a gang.

    Attributes
    ----------
    loss_sum, nonzeros
        Sums over its rows.
    busy_s
        Seconds of work, without waiting for others.
    sent_bytes
        Bytes that it sent to others.
    notes
        What is worth telling, as name to (sum, count): the history shows means.
    """

    loss_sum: float
    nonzeros: int
    busy_s: float
    sent_bytes: int
    notes: Notes


@dataclass(frozen=True, slots=True)
class GangReport:
    """A gang is done; one result for each rank."""

    gang: int
    results: tuple[GangResult, ...]


@dataclass(frozen=True, slots=True)
class GangBroken:
    """A gang could not go on although nobody was lost (a connection broke, say)."""

    gang: int


@dataclass(frozen=True, slots=True)
class MergeReport:
    """The merged model is committed on every worker; ``sent_bytes`` moved between them.

    ``notes`` is what is worth telling, as name to (sum, count). Of a merge that overlapped with
    training, ``corrected`` has the batches that each worker did before its replica was corrected.
    """

    sent_bytes: int
    notes: Notes = field(default_factory=dict)
    corrected: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """An evaluation order is done."""

    order: int
    sums: MetricSums
    loss: LossSum = field(default_factory=LossSum)


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """The checkpoint is on disk."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Somebody wants the run to end at the next merge, which is to come soon."""

    reason: str


@dataclass(frozen=True, slots=True)
class Awaited:
    """A worker gets ready to join, which it can only after a merge that does not overlap."""


Report = (
    LeaseReport
    | GangReport
    | GangBroken
    | MergeReport
    | EvaluationReport
    | CheckpointReport
    | StopRequest
    | Awaited
    | Measured
    | WorkerJoined
    | WorkerLost
)


@dataclass(frozen=True, slots=True)
class LeaseOrder:
    """Step ``worker``'s replica through ``batches``, in order, at ``lr``."""

    lease: int
    worker: str
    batches: tuple[tuple[Span, ...], ...]
    lr: float

    @property
    def rows(self) -> int:
        """Rows of all batches."""
        return sum(span.rows for batch in self.batches for span in batch)


@dataclass(frozen=True, slots=True)
class GangOrder:
    """Let ``workers`` go through their batches together, as ``scheme`` says.

    All of it or nothing: a worker that dies undoes it, and the executor reports ``WorkerLost``
    instead of ``GangReport`` once no survivor is at it any more.

    Attributes
    ----------
    gang
        Its number.
    workers
        In the order of their ranks.
    batches
        For every rank its batches, in order; a rank may have fewer than another.
    lrs
        For every rank its learning rate.
    scheme
        What they exchange.
    begins
        The first gang since a merge: every replica starts from the global model.
    rewinds
        A worker was lost since the merge: what replicas have done since is to be forgotten.
    """

    gang: int
    workers: tuple[str, ...]
    batches: tuple[tuple[tuple[Span, ...], ...], ...]
    lrs: tuple[float, ...]
    scheme: Scheme
    begins: bool
    rewinds: bool

    @property
    def steps(self) -> int:
        """Batches of the rank that has the most."""
        return max(len(batches) for batches in self.batches)

    def rows_of(self, rank: int) -> int:
        """Return the rows of all batches of a rank."""
        return sum(span.rows for batch in self.batches[rank] for span in batch)

    def step_rows(self, step: int) -> tuple[int, ...]:
        """Return the rows of every rank's batch of this step; 0 for a rank that is through."""
        return tuple(
            sum(span.rows for span in batches[step]) if step < len(batches) else 0
            for batches in self.batches
        )


@dataclass(frozen=True, slots=True)
class MeasureOrder:
    """Report the squared norm of every replica: ``Measured``."""

    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MergeOrder:
    """Merge the replicas into the model of ``generation``, on all of ``weights`` or on none.

    A worker that dies before all have the merged model undoes the merge for all: then the
    executor reports ``WorkerLost`` instead of ``MergeReport``.

    Attributes
    ----------
    overlaps
        Each worker takes a snapshot of its replica, which is what it brings to the merge, before
        the next lease that it is given; when all have the merged model, the replica is corrected
        by it, between two batches. The order may come again for the same generation, without a
        worker that was lost meanwhile; snapshots stay as they are.
    """

    generation: int
    weights: Mapping[str, float]
    momentum: float
    overlaps: bool = False


@dataclass(frozen=True, slots=True)
class EvaluateOrder:
    """Score pieces of the test rows, and add up the loss of some of the training rows.

    Both with the global model.
    """

    order: int
    worker: str
    pieces: tuple[Piece, ...]
    train_pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointOrder:
    """Write the global model and the session's state, by ``worker``."""

    worker: str
    megabatch: int


@dataclass(frozen=True, slots=True)
class PlaceOrder:
    """The placement changed: let every worker hold the shards that it now owns."""


@dataclass(frozen=True, slots=True)
class RestartOrder:
    """Every replica is gone: begin again from the last checkpoint once a worker is there."""


@dataclass(frozen=True, slots=True)
class StopOrder:
    """The run is over; the global model is the result."""

    reason: str


Order = (
    LeaseOrder
    | GangOrder
    | MeasureOrder
    | MergeOrder
    | EvaluateOrder
    | CheckpointOrder
    | PlaceOrder
    | RestartOrder
    | StopOrder
)


def join_notes(parts: Iterable[Notes]) -> dict[str, tuple[float, int]]:
    """Add up notes by name.

    Examples
    --------
    >>> join_notes([{"a": (1.0, 1)}, {"a": (2.0, 3), "b": (0.5, 1)}])
    {'a': (3.0, 4), 'b': (0.5, 1)}
    """
    joined: dict[str, tuple[float, int]] = {}
    for notes in parts:
        for name, (total, count) in notes.items():
            before = joined.get(name, (0.0, 0))
            joined[name] = before[0] + total, before[1] + count
    return joined
