"""What a strategy hears and says: events in, commands out, nothing else.

A strategy decides who works on how many rows at what rate and when the replicas merge. It has no
clock, no arrays, no threads, no random numbers and no Dask: times, counts and norms arrive inside
events. The same object therefore runs on a cluster and in a simulator, and a test can feed it a
trace worked out by hand.

The life of a mega-batch, phase by phase::

    idle     Started, Merged   the replicas equal the global model; sizes and rates are set
    train    Begin             -> Lease ... Lease, as long as rows of the mega-batch are left
             LeaseDone         -> Lease, to whoever should take more
    measure  last LeaseDone    -> Measure: everything is back, ask for the replicas' norms
    merge    Measured          -> Merge, with the weights
    idle     Merged            evaluation and checkpoints happen here, then Begin

A worker that is lost takes its unmerged rows with it: they are leased again to the others, also
when the merge had begun (the executor takes the merge back before it sends ``WorkerLost``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Started:
    """The run begins, or goes on from a checkpoint, with these workers."""

    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """The next mega-batch may be leased."""


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker arrived; its replica equals the global model."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker is gone, and with it every update since the last merge."""

    worker: str


@dataclass(frozen=True, slots=True)
class LeaseDone:
    """A worker finished a lease: ``rows`` rows in ``updates`` batches took ``busy_s`` seconds."""

    worker: str
    rows: int
    updates: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Squared L2 norms of the replicas, each a model of ``parameters`` parameters."""

    squared_norms: Mapping[str, float]
    parameters: int


@dataclass(frozen=True, slots=True)
class Merged:
    """Every replica is now the merged model; the next mega-batch waits for ``Begin``."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Lease nothing more in this mega-batch: merge what is done (time is up, or a stop)."""


Event = Started | Begin | WorkerJoined | WorkerLost | LeaseDone | Measured | Merged | Drain


@dataclass(frozen=True, slots=True)
class Lease:
    """Let ``worker`` step through ``rows`` rows in batches of ``batch_rows`` at ``lr``.

    The last batch is smaller where ``rows`` is no multiple of ``batch_rows``.
    """

    worker: str
    rows: int
    batch_rows: int
    lr: float


@dataclass(frozen=True, slots=True)
class Measure:
    """Report the norm of every replica."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge to ``sum_i weights[i] * replica_i + momentum * (global - previous global)``.

    ``perturbed`` tells the history whether the weights were perturbed.
    """

    weights: Mapping[str, float]
    momentum: float
    perturbed: bool


Command = Lease | Measure | Merge


@dataclass(frozen=True, slots=True)
class WorkerView:
    """What the history shows of a worker: its batch size and rate in this mega-batch."""

    batch_rows: int
    lr: float
    rows_per_s: float


class Strategy(Protocol):
    """A pure state machine over a picklable state.

    ``step`` returns the next state and the commands; the state it was given stays as it was.
    ``plain`` and ``restore`` take a state to JSON values and back, for checkpoints.
    """

    def initial_state(self) -> Any:
        """Return the state before any worker is known."""
        ...

    def step(self, state: Any, event: Event) -> tuple[Any, tuple[Command, ...]]:
        """Return the state after an event, and what is to be done."""
        ...

    def view(self, state: Any) -> dict[str, WorkerView]:
        """Return what each worker is set to now."""
        ...

    def max_batch_rows(self) -> int:
        """Return the largest batch that will ever be leased: replicas allocate for it."""
        ...

    def plain(self, state: Any) -> dict[str, Any]:
        """Return the state as JSON values."""
        ...

    def restore(self, plain: dict[str, Any]) -> Any:
        """Return the state that ``plain`` was made from."""
        ...
