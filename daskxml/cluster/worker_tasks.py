"""The Dask tasks of a run: module-level functions that find their `TrainingWorker` by its name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from distributed import get_worker, secede

from daskxml.cluster.worker_group import Created
from daskxml.cluster.worker_plugin import LeaseQueue, queue_of, run_worker, worker_plugin
from daskxml.core.arrays import Array, Partition
from daskxml.core.errors import ClusterError
from daskxml.core.work_stats import WorkStats, sum_stats
from daskxml.data.rows import take_rows
from daskxml.models.store import ModelHeader, write_model
from daskxml.models.trained import WholeModel, calibrated
from daskxml.records import checkpoint
from daskxml.session.commands import Evaluate, EvaluationResult, RunWork
from daskxml.session.ledger import Span
from daskxml.transport.channels.shm_arrays import shared_zeros
from daskxml.transport.communicator import ProcessGroup, Timeouts
from daskxml.worker.batch_runner import warm_up
from daskxml.worker.evaluation import evaluate, training_loss
from daskxml.worker.gang_programs import gang_program, needs_server, rank_stats, server_program
from daskxml.worker.resident_rows import Fetched, span_rows
from daskxml.worker.settings import WorkerSettings
from daskxml.worker.shared_model import SharedHandle, SharedModel
from daskxml.worker.training_worker import TrainingWorker

QUICK_FLOATS = 1 << 20  # size of a model whose norm takes less than a hundredth of a lease
GANG_TIMEOUTS = Timeouts(idle_s=600.0)  # a batch may take long


def create_worker(
    run: str, settings: WorkerSettings, handles: Sequence[SharedHandle | None]
) -> Created:
    """Create this process's `TrainingWorker`.

    Parameters
    ----------
    handles
        Of the shared model, from the workers that have it in memory; without one, a shared model is
        created here.

    Returns
    -------
    tuple
        Its speed in rows a second, its memory plan in words, and the handle of the shared model
        here, if others can open it.

    Raises
    ------
    ClusterError
        If the process that was asked is lost: Dask lets the next one at its address answer. That
        may not take part, or is asked as well.
    """
    if settings.slot.process != get_worker().id:
        raise ClusterError("the process that was to take part is lost")
    plugin = worker_plugin()
    removal = plugin.removal(run)
    limit = get_worker().memory_manager.memory_limit or 0
    settings = replace(settings, slot=replace(settings.slot, memory_bytes=limit))
    shared = open_shared(handles) if settings.strategy.shares_model and handles else None
    zeros = shared_zeros if settings.slot.device == "cpu" else None
    worker = TrainingWorker(settings, shared, zeros=zeros)
    speed = warm_up(worker.replica, worker.settings)
    worker.initialize()
    plugin.add_queue(run, LeaseQueue(worker), removal)
    handle = None
    with suppress(ClusterError):  # a worker alone can do without
        handle = None if worker.shared is None else worker.shared.handle
    return speed, worker.memory.announce(), handle


def open_shared(handles: Sequence[SharedHandle | None]) -> SharedModel:
    """Open the model that the run's workers on this machine share.

    Raises
    ------
    ClusterError
        If that is not possible by any of its handles.
    """
    problem = "there is no memory without a name (memfd_create, Linux 3.17)"
    for handle in filter(None, handles):
        try:
            return SharedModel.open(handle)
        except ClusterError as error:  # the worker was lost, or is closing
            problem = error.message
    raise ClusterError(f"the shared model of this machine cannot be opened: {problem}")


async def remove_worker(run: str, run_dir: str | None) -> None:
    """Remove a run from this process, abort what it still does here, and let it end writing."""
    plugin = worker_plugin()
    plugin.remove_queue(run)
    plugin.fitters.pop(run, None)
    await plugin.communicator.forget(run)
    await asyncio.to_thread(plugin.await_writing, run_dir)


def hold_rows(
    run: str, are_all: bool, train: Mapping[int, Partition], test: Mapping[int, Partition],
    label_counts: Array,
) -> None:  # fmt: skip
    """Add shards to those on this worker, or hold these, which are all rows."""
    worker = run_worker(run)
    if are_all:
        worker.rows.hold_all([*train.values()], [*test.values()])
    else:
        worker.rows.hold(train, test)
    worker.count_labels(label_counts)


def load_checkpoint(run: str, path: str, generation: int, number: int | None) -> None:
    """Start from a checkpoint's model, and from the local state ``number`` if it has one."""
    models, session = checkpoint.read_checkpoint(path)
    worker = run_worker(run)
    worker.set_models(models, generation, session.get("best", 0))
    if number is not None:
        worker.set_local_state(checkpoint.read_local(path, number))


def read_session(path: str) -> dict[str, Any]:
    """Return the session that a checkpoint holds."""
    return checkpoint.read_checkpoint(path)[1]


async def copy_model(run: str, donor: str, rebases: bool) -> tuple[int, bool]:
    """Copy the global model from another worker, or rebase the replica on it.

    Returns
    -------
    tuple
        The model's generation, -1 if the donor has none, and whether the change was kept.
    """
    models = await get_worker().rpc(donor).daskxml_models(run=run)
    generation, keeps_change = int(models.pop("generation")), True
    if generation >= 0:
        worker, best = run_worker(run), models.pop("best_megabatch")
        if rebases:
            keeps_change = worker.rebase(models, generation, best)
        else:
            worker.set_models(models, generation, best)
    return generation, keeps_change


def execute_leases(run: str, process: str) -> None:
    """Execute the leases of a worker as they come, and report each, until the run is over there.

    Raises
    ------
    ClusterError
        If the process is lost: Dask gives this to the next one at its address.
    """
    if process != get_worker().id:
        raise ClusterError("the process that was to execute leases is lost")
    queue = queue_of(run)
    secede()
    while (taken := queue.take()) is not None:
        (_, command, generation), rows = taken
        queue.worker.commit(generation)
        work = sum_stats(queue.worker.lease(some, lr, rows) for some, lr in command.rated)
        message = {"run": run, "lease": command.number, "squared_norm": quick_norm(queue.worker)}
        queue.report(message | {"work": asdict(work)})


def bring_lease(run: str, lease: bytes, fetched: Fetched) -> None:
    """Add a lease with rows that this worker does not hold."""
    worker_plugin().add_lease(run, lease, fetched)


def quick_norm(worker: TrainingWorker) -> float | None:
    """Return the replica's squared norm if computing it is quicker than a message; else None."""
    if worker.settings.strategy.shares_model or worker.layout.size > QUICK_FLOATS:
        return None
    return worker.squared_norm()


def fetch_rows(partition: Partition, span: Span, stream_rows: int, seed: int) -> Partition:
    """Return a span's rows, in its order, for a worker that does not hold its shard."""
    return take_rows(partition, span_rows(span, stream_rows, seed))


def run_gang(peers: ProcessGroup, command: RunWork, rank: int, fetched: Fetched) -> WorkStats:
    """Take part in a gang.

    The task leaves its slot in the thread pool: rows for another worker may be fetched here.
    """
    secede()
    worker = run_worker(peers.id.run)
    programs = {rank: gang_program(worker, command, rank, peers.hosts, fetched)}
    if needs_server(command.pattern):
        if rank == 0:
            programs[len(peers.addresses)] = server_program(worker, command)
        peers = replace(peers, addresses=(*peers.addresses, peers.addresses[0]))
    work = worker_plugin().communicator.run_programs(peers, programs, GANG_TIMEOUTS)
    done = asyncio.run_coroutine_threadsafe(work, get_worker().loop.asyncio_loop)
    return rank_stats(done.result())


def evaluate_pieces(
    run: str, command: Evaluate, test: Mapping[int, Partition], train: Mapping[int, Partition]
) -> EvaluationResult:
    """Score test rows, and sum the loss of training rows; these shards were fetched for it."""
    worker = run_worker(run)
    with queue_of(run).evaluation:
        sums = evaluate(worker, command.pieces, test)
        loss = training_loss(worker, command.train_pieces, train)
    return EvaluationResult(command.number, sums, loss)


def store_local(run: str, run_dir: str, megabatch: int, number: int) -> bool:
    """Write this worker's local state for a checkpoint; return whether it has any."""
    with worker_plugin().writing(run_dir):
        if state := run_worker(run).local_state():
            checkpoint.write_local(run_dir, megabatch, number, state)
    return bool(state)


def store_checkpoint(run: str, run_dir: str, megabatch: int, session: str, keep: int) -> str:
    """Write a checkpoint; return its path."""
    with worker_plugin().writing(run_dir):
        _, models = run_worker(run).host_models()
        return str(checkpoint.write_checkpoint(run_dir, megabatch, models, session, keep))


def keep_best(run: str, megabatch: int) -> None:
    """Keep the global model as the best one so far."""
    run_worker(run).keep_best(megabatch)


def restore_best(run: str, megabatch: int) -> bool:
    """Make the best model the global one; return whether this worker has it."""
    return run_worker(run).restore_best(megabatch)


def store_model(run_dir: str, make: Callable[..., WholeModel], *args: Any) -> None:
    """Write the model that a function returns into the run's directory."""
    with worker_plugin().writing(run_dir):
        write_model(run_dir, *make(*args), overwrite=True)


def keep_model(run: str, make: Callable[..., WholeModel], *args: Any) -> None:
    """Keep the model that a function returns, until the run is forgotten, unless one is kept."""
    if run not in worker_plugin().models:
        worker_plugin().models[run] = make(*args)


def finished_model(run: str, header: ModelHeader) -> WholeModel:
    """Return the global model, calibrated where this worker has rows that were held out."""
    worker = run_worker(run)
    held_out = [worker.kernels.to_host(part) for part in worker.rows.tests.values()]
    return calibrated(header, worker.model_arrays(), worker.label_counts, held_out)
