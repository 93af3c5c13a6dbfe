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
when the merge had begun (the executor takes the merge back before it sends ``WorkerLost``). Where
all workers update one model (``shares_model``), what it had finished is in that model and stays
counted: only its leases under way are leased again.

Algorithms in which the workers exchange arrays at every step command a `Gang` in the place of
leases: all workers go through so many batches together and reduce among themselves, and one
``GangDone`` comes back. Between two merges they change one common model, so a lost worker takes the
work of *all* with it: every row since the last merge is handed out again (the session sees to it
for a strategy with ``is_joint``), and the next gang starts from the last merged model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from daskxml.strategies.schemes import Scheme


@dataclass(frozen=True, slots=True)
class Device:
    """What a worker steps with.

    Attributes
    ----------
    pool_threads
        0: a replica, one batch after the other. Otherwise the worker is a pool of so many threads,
        which divide each of its batches among themselves and update one model without locks.
    """

    pool_threads: int = 0

    @property
    def is_pool(self) -> bool:
        """Whether threads update one model at the same time."""
        return self.pool_threads > 0


REPLICA = Device()


@dataclass(frozen=True, slots=True)
class Started:
    """The run begins, or goes on from a checkpoint, with these workers.

    Those that ``devices`` does not name have a replica.
    """

    workers: tuple[str, ...]
    devices: Mapping[str, Device] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Begin:
    """The next mega-batch may be leased."""


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker arrived; its replica equals the global model."""

    worker: str
    device: Device = REPLICA


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker is gone, and with it every update since the last merge.

    Where the model is shared its updates stay, and only its leases under way are gone.
    """

    worker: str


@dataclass(frozen=True, slots=True)
class Undone:
    """What a joint strategy's workers did since the last merge is lost; nobody of them is."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """A worker's memory holds batches of at most ``rows`` rows: lease it no larger ones."""

    worker: str
    rows: int


@dataclass(frozen=True, slots=True)
class LeaseDone:
    """A worker finished a lease: ``rows`` rows in ``updates`` updates took ``busy_s`` seconds.

    A replica makes one update a batch, a pool one for each thread's part of a batch.
    """

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


@dataclass(frozen=True, slots=True)
class GangDone:
    """A gang is done, after ``took_s`` seconds.

    ``rows``, ``updates`` and ``busy_s`` (without waiting for others) are of each of its workers.
    """

    took_s: float
    rows: Mapping[str, int]
    updates: Mapping[str, int]
    busy_s: Mapping[str, float]


Event = (
    Started
    | Begin
    | WorkerJoined
    | WorkerLost
    | Undone
    | Bounded
    | LeaseDone
    | GangDone
    | Measured
    | Merged
    | Drain
)


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
class Share:
    """One worker's part in a gang: ``rows`` rows in batches of ``batch_rows``, at ``lr``."""

    rows: int
    batch_rows: int
    lr: float


@dataclass(frozen=True, slots=True)
class Gang:
    """Let these workers go through their batches together, exchanging arrays as ``scheme`` says.

    ``shares`` are in the order of the ranks; where they differ in their number of batches, those
    that are through take part in the exchange with nothing to add.
    """

    shares: Mapping[str, Share]
    scheme: Scheme


@dataclass(frozen=True, slots=True)
class Measure:
    """Report the norm of every replica."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge to ``sum_i weights[i] * replica_i + momentum * (global - previous global)``.

    ``perturbed`` tells the history whether the weights were perturbed. A strategy that is joint
    has one model to spread: it gives its first worker the weight 1 and all others 0. Where the
    model is shared nothing moves: the weights name who is there, with their shares of the updates.
    """

    weights: Mapping[str, float]
    momentum: float
    perturbed: bool


Command = Lease | Gang | Measure | Merge


@dataclass(frozen=True, slots=True)
class WorkerView:
    """What the history shows of a worker: its batch size and rate in this mega-batch.

    ``lr`` is the rate of one update: in a pool, of each thread's part of a batch.
    """

    batch_rows: int
    lr: float
    rows_per_s: float
    pool_threads: int = 0


class Strategy(Protocol):
    """A pure state machine over a picklable state.

    ``step`` returns the next state and the commands; the state it was given stays as it was.
    ``plain`` and ``restore`` take a state to JSON values and back, for checkpoints.

    Attributes
    ----------
    is_joint
        All workers change one common model between merges, so a loss undoes the work of all.
    keeps_replicas
        Replicas stay what they are after a merge, instead of becoming the global model.
    averages
        What a merge spreads is the average model of `schemes.Averaging`, with the one before it.
    shares_optimizer
        Every worker's optimizer must hold the same state: a merge spreads it.
    shares_model
        All workers update one model in shared memory (others push what they change in a copy), so
        a lost worker takes only its leases under way with it, and a merge only looks at the model.
    rules
        The values of ``combine.rule`` that make sense; the first is what "auto" means.
    """

    is_joint: bool
    keeps_replicas: bool
    averages: bool
    shares_optimizer: bool
    shares_model: bool
    rules: tuple[str, ...]

    def initial_state(self) -> Any:
        """Return the state before any worker is known."""
        ...

    def step(self, state: Any, event: Event) -> tuple[Any, tuple[Command, ...]]:
        """Return the state after an event, and what is to be done."""
        ...

    def view(self, state: Any) -> dict[str, WorkerView]:
        """Return what each worker is set to now."""
        ...

    def max_batch_rows(self, device: Device = REPLICA) -> int:
        """Return the largest batch that such a worker will ever be leased, in rows.

        A replica allocates for it; the threads of a pool divide it among themselves.
        """
        ...

    def plain(self, state: Any) -> dict[str, Any]:
        """Return the state as JSON values."""
        ...

    def restore(self, plain: dict[str, Any]) -> Any:
        """Return the state that ``plain`` was made from."""
        ...
