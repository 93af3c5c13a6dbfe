"""What runs on a worker: the members of runs, and the Dask tasks that act on them.

Every task is a module-level function that finds its member by the run's name. Leases of a run are
taken one after the other in the order of their numbers, whatever the worker's number of threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from distributed import Worker, WorkerPlugin, get_worker, secede
from distributed.protocol import to_serialize
from distributed.utils import offload

from daskxml.data.rows import take_rows
from daskxml.errors import ClusterError
from daskxml.metrics import MetricSums
from daskxml.model.store import ModelHeader, write_model
from daskxml.runtime.ring import RingPort
from daskxml.training.checkpoint import read_checkpoint, write_checkpoint
from daskxml.training.member import Member, MemberSettings, span_rows
from daskxml.training.orders import EvaluateOrder, LeaseOrder
from daskxml.types import Array, Partition

TOPIC = "daskxml"
PLUGIN = "daskxml"


class Seat:
    """A member on this worker, and whose turn it is."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.turn = threading.Condition()
        self.next_lease = 0
        self.is_closed = False

    def take_turn(self, number: int) -> None:
        """Wait until all leases before ``number`` are done.

        A lease may be started before the one that it must follow, whose rows are still on their
        way: then it leaves its place in the worker's thread pool to that one.
        """
        with self.turn:
            is_early = self.next_lease != number
        if is_early:
            secede()
        with self.turn:
            self.turn.wait_for(lambda: self.is_closed or self.next_lease == number)
            if self.is_closed:
                raise ClusterError("the run is over on this worker")

    def end_turn(self) -> None:
        """Let the next lease begin."""
        with self.turn:
            self.next_lease += 1
            self.turn.notify_all()

    def close(self) -> None:
        """Wake and refuse whoever waits."""
        with self.turn:
            self.is_closed = True
            self.turn.notify_all()


class MembersPlugin(WorkerPlugin):
    """Owns a worker's members and its port for merging."""

    name = PLUGIN

    def setup(self, worker: Worker) -> None:
        """Open the port, and answer the scheduler and workers that join."""
        self.seats: dict[str, Seat] = {}
        self.port = RingPort(worker)
        worker.handlers |= self.handlers()

    def handlers(self) -> dict[str, Any]:
        """Return the messages that a worker answers at once, whatever tasks it runs."""
        return {
            "daskxml_models": self.send_models,
            "daskxml_norm": self.measure,
            "daskxml_commit": self.commit,
            "daskxml_abort": self.abort,
        }

    async def teardown(self, worker: Worker) -> None:
        """Close everything."""
        for seat in self.seats.values():
            seat.close()
        for name in self.handlers():
            worker.handlers.pop(name, None)
        await self.port.close()

    async def measure(self, run: str) -> float:
        """Return the squared norm of the replica."""
        norm: float = await offload(self.seats[run].member.squared_norm)
        return norm

    async def commit(self, run: str, generation: int) -> None:
        """Make the merged model the global one."""
        await offload(self.seats[run].member.commit, generation)

    async def abort(self, run: str, generation: int, attempt: int) -> None:
        """Make this worker's part in a merge fail now."""
        self.port.abort(run, generation, attempt)

    async def send_models(self, run: str) -> dict[str, Any]:
        """Give the global model to a worker that joins."""
        if run not in self.seats:
            return {"generation": -1}
        generation, models = self.seats[run].member.host_models()
        return {"generation": generation, **{n: to_serialize(m) for n, m in models.items()}}


def _plugin() -> MembersPlugin:
    plugin: MembersPlugin = get_worker().plugins[PLUGIN]
    return plugin


def _seat(run: str) -> Seat:
    try:
        return _plugin().seats[run]
    except KeyError:
        raise ClusterError(f"run {run} is not on this worker") from None


def count_cores() -> int:
    """Return how many cores this worker may use."""
    return len(os.sched_getaffinity(0))


def sees_file(path: str) -> bool:
    """Whether this worker sees a file of the client's."""
    return Path(path).exists()


def sit_down(run: str, settings: MemberSettings) -> float:
    """Make this worker a member; return its rows a second on made-up rows."""
    member = Member(settings)
    speed = member.warm_up()
    member.initialize()
    _plugin().seats[run] = Seat(member)
    return speed


def stand_up(run: str) -> None:
    """Forget a run."""
    seat = _plugin().seats.pop(run, None)
    if seat is not None:
        seat.close()


def hold_all(
    run: str, train: Sequence[Partition], test: Sequence[Partition], label_counts: Array
) -> None:
    """Keep every row on this worker."""
    member = _seat(run).member
    member.hold_all(train, test)
    member.count_labels(label_counts)


def hold(
    run: str,
    shares: Shares,
    train: Sequence[Partition],
    test: Sequence[Partition],
    label_counts: Array,
) -> None:
    """Keep these shards on this worker, beside those that it has."""
    member = _seat(run).member
    member.hold(
        dict(zip(shares.train, train, strict=True)), dict(zip(shares.test, test, strict=True))
    )
    member.count_labels(label_counts)


def load_checkpoint(run: str, path: str, generation: int) -> None:
    """Start from a checkpoint's model."""
    models, _ = read_checkpoint(path)
    _seat(run).member.set_model(models["current"], models["previous"], generation)


def read_session(path: str) -> dict[str, Any]:
    """Return the session that a checkpoint holds."""
    return read_checkpoint(path)[1]


async def copy_model(run: str, donor: str) -> int:
    """Take the global model from another worker; return its generation, -1 if it has none."""
    worker = get_worker()
    models = await worker.rpc(donor).daskxml_models(run=run)
    if models["generation"] >= 0:
        member = _seat(run).member
        member.set_model(models["current"], models["previous"], models["generation"])
    return int(models["generation"])


@dataclass(frozen=True, slots=True)
class Parcel:
    """Keys of what is fetched for a task; one opaque value, so that Dask does not walk into it."""

    keys: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Shares:
    """The shards that a worker is to hold."""

    train: tuple[int, ...]
    test: tuple[int, ...]


def run_lease(
    run: str, turn: int, order: LeaseOrder, spans: Parcel, fetched: Sequence[Partition]
) -> None:
    """Step through a lease, and tell the scheduler how it went."""
    seat = _seat(run)
    seat.take_turn(turn)
    try:
        rows = dict(zip(spans.keys, fetched, strict=True))
        result = seat.member.lease(order.batches, order.lr, rows)
    finally:
        seat.end_turn()
    done = {"run": run, "lease": order.lease}
    get_worker().log_event(TOPIC, done | asdict(result))


def fetch_rows(partition: Partition, span: Parcel, stream_rows: int, seed: int) -> Partition:
    """Return a span's rows, in its order, for a worker that does not hold its shard."""
    return take_rows(partition, span_rows(span.keys[0], stream_rows, seed))


class RingPlan(NamedTuple):
    """Who merges with whom, in which order."""

    run: str
    generation: int
    attempt: int
    addresses: tuple[str, ...]
    weights: tuple[float, ...]
    momentum: float


async def merge_replica(plan: RingPlan, rank: int) -> int:
    """Take part in a ring all-reduce into ``scratch``; return the bytes sent."""
    member = _seat(plan.run).member
    stats = await _plugin().port.all_reduce(
        plan.run,
        plan.generation,
        plan.attempt,
        rank,
        plan.addresses,
        plan.weights,
        member.replica.flat,
        member.current,
        member.previous,
        member.scratch,
        plan.momentum,
        member.kernels,
    )
    return int(stats.sent_bytes)


def evaluate_pieces(
    run: str, order: EvaluateOrder, shards: Parcel, fetched: Sequence[Partition]
) -> MetricSums:
    """Score test rows."""
    parts = dict(zip(shards.keys, fetched, strict=True))
    return _seat(run).member.evaluate(order.pieces, parts)


def store_checkpoint(
    run: str, run_dir: str, megabatch: int, session: dict[str, Any], keep: int
) -> str:
    """Write a checkpoint; return its path."""
    _, models = _seat(run).member.host_models()
    return str(write_checkpoint(run_dir, megabatch, models, session, keep))


def store_model(run: str, run_dir: str, header: ModelHeader) -> None:
    """Write the global model where the run is."""
    parameters, label_counts = model_arrays(run)
    write_model(run_dir, header, parameters, label_counts, overwrite=True)


def model_arrays(run: str) -> tuple[dict[str, Array], Array]:
    """Return the global model's parameters by name, and the label counts."""
    member = _seat(run).member
    flat = member.kernels.to_host(member.current)
    return member.layout.views(flat), member.label_counts
