"""What a session and its executor say to each other: reports in, orders out.

The executor (the Dask runtime, or a simulator) carries the orders out and reports; it decides
nothing. Worker events are those of `daskxml.strategies.protocol`, passed through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from daskxml.metrics import MetricSums
from daskxml.strategies.protocol import Measured, WorkerJoined, WorkerLost
from daskxml.training.ledger import Span

Piece = tuple[int, int, int]  # test shard, first row, row after the last


@dataclass(frozen=True, slots=True)
class LeaseReport:
    """A lease is done: the sum of the rows' losses, and the seconds that it took."""

    lease: int
    loss_sum: float
    busy_s: float


@dataclass(frozen=True, slots=True)
class MergeReport:
    """The merged model is committed on every worker; ``sent_bytes`` moved between them."""

    sent_bytes: int


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """An evaluation order is done."""

    order: int
    sums: MetricSums


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """The checkpoint is on disk."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Somebody wants the run to end at the next merge, which is to come soon."""

    reason: str


Report = (
    LeaseReport
    | MergeReport
    | EvaluationReport
    | CheckpointReport
    | StopRequest
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
class MeasureOrder:
    """Report the squared norm of every replica: ``Measured``."""

    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MergeOrder:
    """Merge the replicas into the model of ``generation``, on all of ``weights`` or on none.

    A worker that dies before all have the merged model undoes the merge for all: then the
    executor reports ``WorkerLost`` instead of ``MergeReport``.
    """

    generation: int
    weights: Mapping[str, float]
    momentum: float


@dataclass(frozen=True, slots=True)
class EvaluateOrder:
    """Score pieces of the test rows with the global model."""

    order: int
    worker: str
    pieces: tuple[Piece, ...]


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
    | MeasureOrder
    | MergeOrder
    | EvaluateOrder
    | CheckpointOrder
    | PlaceOrder
    | RestartOrder
    | StopOrder
)
