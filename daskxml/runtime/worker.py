"""What runs on a worker: the Dask tasks of a run.

Every task is a module-level function that finds its member by the run's name. Leases of a run are
taken one after the other in the order of their numbers, whatever the worker's number of threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from distributed import get_worker, secede

from daskxml.data.rows import take_rows
from daskxml.errors import ClusterError
from daskxml.model.store import ModelHeader, write_model
from daskxml.runtime.performing import Performed
from daskxml.runtime.port import Patience, RoundKey, RoundPlan
from daskxml.runtime.remote import RemoteStore
from daskxml.runtime.seats import TOPIC, Seat, members_plugin, seat_of
from daskxml.runtime.shared_arrays import shared_zeros
from daskxml.training import checkpoint
from daskxml.training.budget import LogitsBudget
from daskxml.training.holdings import span_rows
from daskxml.training.member import Member
from daskxml.training.orders import (
    EvaluateOrder,
    EvaluationReport,
    GangOrder,
    GangResult,
    LeaseOrder,
    MergeOrder,
    Notes,
    join_notes,
)
from daskxml.training.programs import PartResult, gang_program, needs_server
from daskxml.training.server import server_program
from daskxml.training.settings import MemberSettings
from daskxml.training.shared import SharedHandle, SharedModel
from daskxml.training.warm_up import warm_up
from daskxml.types import Array, Partition

Answer = TypeVar("Answer")
Told = tuple[float, str, LogitsBudget]

HANDLE_S = 5.0  # for a message to a worker on the same machine
QUICK_FLOATS = 1 << 20  # of a model whose norm takes less than a hundredth of a lease
GANG_PATIENCE = Patience(idle_s=600.0)  # a worker may be at a batch for long


def sees_file(path: str) -> bool:
    """Whether this worker sees a file of the client's."""
    return Path(path).exists()


def sit_down(run: str, settings: MemberSettings, donors: Sequence[str]) -> Told:
    """Make this worker a member; return its rows a second, its memory's plan, its logits' budget.

    ``donors`` are workers on this machine with the model that all share; else it is made here.
    """
    shared = store = None
    if settings.shares_model and not settings.is_at_home:
        store = RemoteStore(get_worker(), run)
    elif settings.shares_model and donors:
        shared = open_shared(run, donors)
    member = Member(settings, shared, store, shared_zeros if settings.device == "cpu" else None)
    speed = warm_up(member.replica, member.settings)
    member.initialize()
    members_plugin().seats[run] = Seat(member, store)
    return speed, member.memory.announce(), member.budget


def open_shared(run: str, donors: Sequence[str]) -> SharedModel:
    """Return the model that the run's workers on this machine share.

    Raises
    ------
    ClusterError
        If none of ``donors`` hands it on, or it cannot be opened.
    """
    worker, problem = get_worker(), "it is over there"
    for donor in donors:
        try:
            asked = worker.rpc(donor).daskxml_handle(run=run)
            told = _on_loop(asyncio.wait_for(asked, HANDLE_S))
            if told["handle"] is not None:
                return SharedModel.open(SharedHandle(**told["handle"]))
        except (OSError, ClusterError) as error:  # the donor is gone, or goes
            problem = str(error)
    raise ClusterError(f"the shared model cannot be had from {', '.join(donors)}: {problem}")


async def stand_up(run: str) -> None:
    """Forget a run; whatever it still does here ends."""
    plugin = members_plugin()
    seat = plugin.seats.pop(run, None)
    if seat is not None:
        seat.close()
    await plugin.port.forget(run)


def hold_all(
    run: str, train: Sequence[Partition], test: Sequence[Partition], label_counts: Array
) -> None:
    """Keep every row on this worker."""
    member = seat_of(run).member
    member.hold_all(train, test)
    member.count_labels(label_counts)


def hold(
    run: str, shares: Shares, train: Sequence[Partition], test: Sequence[Partition],
    label_counts: Array,
) -> None:  # fmt: skip
    """Keep these shards on this worker, beside those that it has."""
    member = seat_of(run).member
    member.hold(
        dict(zip(shares.train, train, strict=True)), dict(zip(shares.test, test, strict=True))
    )
    member.count_labels(label_counts)


def load_checkpoint(run: str, path: str, generation: int, number: int | None) -> None:
    """Start from a checkpoint's model, and from the local state of that number."""
    models, _ = checkpoint.read_checkpoint(path)
    member = seat_of(run).member
    member.set_model(models["current"], models["previous"], generation)
    if number is not None:
        member.set_local_state(checkpoint.read_local(path, number))


def read_session(path: str) -> dict[str, Any]:
    """Return the session that a checkpoint holds."""
    return checkpoint.read_checkpoint(path)[1]


async def copy_model(run: str, donor: str) -> int:
    """Take the global model from another worker; return its generation, -1 if it has none."""
    worker = get_worker()
    models = await worker.rpc(donor).daskxml_models(run=run)
    if models["generation"] >= 0:
        member = seat_of(run).member
        member.set_model(models["current"], models["previous"], models["generation"])
    return int(models["generation"])


@dataclass(frozen=True, slots=True)
class Parcel:
    """Keys of what is fetched for a task; one opaque value, so that Dask does not walk into it."""

    keys: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Shares:
    """Shards that a worker is to hold, or that are fetched for it."""

    train: tuple[int, ...]
    test: tuple[int, ...]


def run_lease(
    run: str, turn: int, order: LeaseOrder, spans: Parcel, fetched: Sequence[Partition]
) -> None:
    """Step through a lease, and tell the scheduler how it went."""
    seat = seat_of(run)
    seat.take_turn(turn)
    try:
        rows = dict(zip(spans.keys, fetched, strict=True))
        result = seat.member.lease(order.batches, order.lr, rows, seat.rest)
        told = {"run": run, "lease": order.lease, "squared_norm": quick_norm(seat.member)}
    finally:
        seat.end_turn()
    get_worker().log_event(TOPIC, told | asdict(result))


def quick_norm(member: Member) -> float | None:
    """Return the replica's squared norm if that is quicker than to be asked for it; else None.

    A replica that a merge may change between two leases has no norm that holds.
    """
    settings = member.settings
    is_settled = not (settings.shares_model or settings.combine.overlap)
    return member.squared_norm() if is_settled and member.layout.size <= QUICK_FLOATS else None


def fetch_rows(partition: Partition, span: Parcel, stream_rows: int, seed: int) -> Partition:
    """Return a span's rows, in its order, for a worker that does not hold its shard."""
    return take_rows(partition, span_rows(span.keys[0], stream_rows, seed))


async def merge_replica(plan: RoundPlan, order: MergeOrder, rank: int) -> Performed[Notes]:
    """Take part in a merge."""
    return await members_plugin().take_part(plan, order, rank)


def merge_snapshot(plan: RoundPlan, order: MergeOrder, rank: int, turn: int) -> Performed[Notes]:
    """Take part in a merge that overlaps with training, with the replica as it is in this turn.

    It leaves its place in the worker's thread pool to the leases of the next mega-batch.
    """
    secede()
    seat_of(plan.run).take_snapshot(turn, order)
    return _on_loop(members_plugin().take_part(plan, order, rank))


def run_gang(
    plan: RoundPlan, order: GangOrder, rank: int, spans: Parcel, fetched: Sequence[Partition]
) -> GangResult:
    """Take part in a gang.

    It leaves its place in the worker's thread pool: rows for another worker may be fetched here.
    """
    secede()
    rows = dict(zip(spans.keys, fetched, strict=True))
    member = seat_of(plan.run).member
    programs = {rank: gang_program(member, order, rank, plan.hosts, rows)}
    addresses = plan.addresses
    if needs_server(order.scheme):
        addresses = (*addresses, addresses[0])
        if rank == 0:
            programs[len(plan.addresses)] = server_program(member, order)
    key = RoundKey(run=plan.run, number=plan.number, what=f"gang {order.gang}")
    work = members_plugin().port.perform(key, addresses, programs, GANG_PATIENCE)
    return _gang_result(_on_loop(work))


def _on_loop(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Wait, in a task's thread, for what runs on the worker's event loop."""
    return asyncio.run_coroutine_threadsafe(work, get_worker().loop.asyncio_loop).result()


def _gang_result(parts: Sequence[Performed[PartResult]]) -> GangResult:
    """Tell of a worker's own part; a server beside it adds what it sent, and its notes."""
    own = parts[0]
    return GangResult(
        loss_sum=own.result.loss_sum,
        nonzeros=own.result.nonzeros,
        busy_s=own.busy_s,
        sent_bytes=sum(part.sent_bytes for part in parts),
        notes=join_notes(part.result.notes for part in parts),
    )


def evaluate_pieces(
    run: str, order: EvaluateOrder, shards: Shares,
    test: Sequence[Partition], train: Sequence[Partition],
) -> EvaluationReport:  # fmt: skip
    """Score test rows, and training rows; ``shards`` are those fetched for it."""
    member = seat_of(run).member
    sums = member.evaluate(order.pieces, dict(zip(shards.test, test, strict=True)))
    loss = member.training_loss(order.train_pieces, dict(zip(shards.train, train, strict=True)))
    return EvaluationReport(order.order, sums, loss)


def store_local(run: str, run_dir: str, megabatch: int, number: int) -> bool:
    """Write what only this worker knows, for a checkpoint; return whether there is anything."""
    state = seat_of(run).member.local_state()
    if state:
        checkpoint.write_local(run_dir, megabatch, number, state)
    return bool(state)


def drop_local(run_dir: str, megabatch: int) -> None:
    """Remove the local states of a checkpoint that has come to nothing."""
    checkpoint.drop_local(run_dir, megabatch)


def store_checkpoint(
    run: str, run_dir: str, megabatch: int, session: dict[str, Any], keep: int
) -> str:
    """Write a checkpoint; return its path."""
    _, models = seat_of(run).member.host_models()
    return str(checkpoint.write_checkpoint(run_dir, megabatch, models, session, keep))


def store_model(run: str, run_dir: str, header: ModelHeader) -> None:
    """Write the global model where the run is."""
    parameters, label_counts = model_arrays(run)
    write_model(run_dir, header, parameters, label_counts, overwrite=True)


def model_arrays(run: str) -> tuple[dict[str, Array], Array]:
    """Return the global model's parameters by name, and the label counts."""
    member = seat_of(run).member
    flat = member.kernels.to_host(member.current)
    return member.layout.views(flat), member.label_counts
