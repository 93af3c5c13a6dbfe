"""Executes a session's commands as Dask tasks and messages.

The leases of a worker are executed by one task, whose future is pinned to it. They come to it as
messages, and are reported through Dask's event log when they are done; each also commits the merge
before it. Commands for all workers together (norms, merges, gangs) are in
`daskxml.cluster.collectives`.
"""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distributed import Future

from daskxml.cluster import worker_tasks as tasks
from daskxml.cluster.collectives import Batches, Collectives
from daskxml.cluster.data_loading import LoadedData
from daskxml.cluster.worker_group import (
    BackgroundTasks,
    LostBeforeAnswer,
    WorkerGroup,
    WorkerHandle,
)
from daskxml.cluster.worker_plugin import LEASE
from daskxml.config import RunConfig
from daskxml.core.errors import ClusterError, DaskxmlError
from daskxml.records import checkpoint
from daskxml.session import commands
from daskxml.session.ledger import Span
from daskxml.session.row_loading import Shards
from daskxml.session.session import Session
from daskxml.strategies.protocol import Measure


@dataclass(frozen=True, slots=True)
class HandleLost:
    """A worker is lost, or silent; its states are in `daskxml.cluster.worker_group`."""

    worker: WorkerHandle


@dataclass(frozen=True, slots=True)
class RunFailed:
    """An exception was raised that ends the run."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class CandidateReady:
    """A worker has the global model and can join: `RunLoop.admit` follows."""


Event = commands.Result | HandleLost | RunFailed | CandidateReady


class Executor:
    """Executes the commands of one session.

    Parameters
    ----------
    group
        The workers.
    session
        Read for its placement, its strategy and its state, never changed.
    config, data
        The run file, and the partitions on the workers.
    emit
        Called with every event.
    run_dir
        Directory for checkpoints; None for none.
    stored
        The session and the path of the last checkpoint.
    """

    def __init__(
        self,
        group: WorkerGroup,
        session: Session,
        config: RunConfig,
        data: LoadedData,
        emit: Callable[[Event], None],
        run_dir: str | None = None,
        stored: tuple[dict[str, Any], str] | None = None,
    ) -> None:
        self.group, self.session, self.emit = group, session, emit
        self.config, self.data, self.stored, self._run_dir = config, data, stored, run_dir
        self._leases: dict[int, WorkerHandle] = {}
        self._to_load: set[WorkerHandle] = set()  # when what they load now is there
        self._tasks = BackgroundTasks(self._deliver)
        self._collective: asyncio.Task[None] | None = None
        leave_behind = self.leave_behind if session.strategy.quorum < 1.0 else None
        self._collectives = Collectives(group, session.parameters, self._fetch, leave_behind)
        self._has_local_state = True  # unless the first checkpoint shows that there is none
        self._is_closing = False

    def execute(self, command: commands.Command) -> None:
        """Start a command; an event reports its result."""
        match command:
            case commands.RunWork() if command.is_lease:
                self._lease(command)
            case Measure():
                self._collective = self._tasks.start(self._collectives.measure(command))
            case commands.MergeReplicas():
                self._collective = self._tasks.start(self._collectives.merge(command))
            case commands.RunWork():
                self._collective = self._tasks.start(self._collectives.work_together(command))
            case commands.Evaluate():
                self._tasks.start(self._evaluate(command))
            case commands.WriteCheckpoint():
                self._tasks.start(self._checkpoint(command))
            case commands.KeepBest():
                self._tasks.start(self._keep_best(command))
            case commands.Rebalance():
                for worker in self.group.workers.values():
                    if worker not in self._to_load:
                        self._to_load.add(worker)
                        self._tasks.start(self._reload_rows(worker))

    # ---------------------------------------------------------------- leases

    def employ(self, worker: WorkerHandle) -> None:
        """Start the task that executes a worker's leases; without one it looks idle to Dask."""
        self._start(worker, "leases", tasks.execute_leases, worker.info.process)

    def _start(self, worker: WorkerHandle, what: str, task: Any, *args: Any) -> None:
        """Start a task for leases, which ends with the worker, but not with its silence."""
        future = self.group.submit(worker, what, task, self.group.run, *args)
        patient = replace(worker, silent=asyncio.Event())
        result = self._tasks.start(self.group.result(patient, future))
        result.add_done_callback(lambda _: future.release())  # also if it was cancelled at once

    def _lease(self, command: commands.RunWork) -> None:
        worker = self.group.worker(command.workers[0])
        if worker.is_lost:  # the loss returns its rows; a later worker may be at its address
            return
        fetched = self._fetch(worker, command.batches[0])
        # Quicker than by Dask, and traversed by nobody.
        lease = pickle.dumps((worker.turns, command, self.session.generation))
        if fetched:
            self._start(worker, "rows", tasks.bring_lease, lease, fetched)
        else:
            message = {"op": LEASE, "run": self.group.run, "lease": lease}
            self.group.send(worker.address, message)
        worker.turns += 1
        worker.uncommitted, worker.squared_norm = 0, None
        self._leases[command.number] = worker
        self.group.timeline.lease_given(worker.name)

    def _fetch(self, worker: WorkerHandle, batches: Batches) -> dict[Span, Future]:
        """Fetch the rows of batches that are not resident on a worker."""
        spans = (span for batch in batches for span in batch)
        held = worker.train_shards
        return {span: self._fetch_span(span) for span in spans if span.stream not in held}

    def _fetch_span(self, span: Span) -> Future:
        run, train = self.group.run, self.data.rows.train
        key = f"daskxml-fetch-{run}-{span.epoch}-{span.stream}-{span.start}-{span.stop}"
        args = train.parts[span.stream], span, train.rows[span.stream], self.config.run.seed
        return self.group.client.submit(tasks.fetch_rows, *args, pure=False, key=key)

    def lease_ended(
        self, lease: int, busy_s: float = 0.0, squared_norm: float | None = None
    ) -> None:
        """Forget a lease; ``busy_s`` is how long it took, 0 if it was abandoned."""
        if lease in self._leases:
            worker = self._leases.pop(lease)
            worker.squared_norm = squared_norm
            self.group.timeline.lease_done(worker.name, busy_s)

    def leave_behind(self, worker: WorkerHandle) -> None:
        """Let others go on without a worker that is silent."""
        if not worker.is_away:
            worker.silent.set()
            self.emit(HandleLost(worker))

    def remove(self, worker: str) -> None:
        """Remove a lost worker and its leases."""
        lost = self.group.worker(worker)
        self.group.forget(lost)
        for lease in [n for n, worker in self._leases.items() if worker is lost]:
            self.lease_ended(lease)

    # ------------------------------------------------------------ collectives

    async def settle_collective(self) -> None:
        """Wait until the last collective is done, or undone."""
        if self._collective is not None:
            await asyncio.wait({self._collective})

    # ------------------------------------------------------- other long tasks

    async def _evaluate(self, command: commands.Evaluate) -> commands.Result:
        worker, rows = self.group.worker(command.worker), self.data.rows
        test = _missing(command.pieces, rows.test, worker.test_shards)
        train = _missing(command.train_pieces, rows.train, worker.train_shards)
        args = (self.group.run, command, test, train)
        return await self.group.ask(worker, "eval", tasks.evaluate_pieces, *args)

    async def _checkpoint(self, command: commands.WriteCheckpoint) -> commands.Result:
        run_dir, keep = self._run_dir, self.config.checkpoint.keep
        assert run_dir is not None
        worker = self.group.worker(command.worker)
        session = self.session.plain()
        try:
            session["local"] = await self._store_local(run_dir, command)
            # As text: Dask would look for futures in each row of the history.
            args = (self.group.run, run_dir, command.megabatch, json.dumps(session), keep)
            path = await self.group.ask(worker, "save", tasks.store_checkpoint, *args)
            self.stored = (session, path)
        except DaskxmlError as error:
            self.group.warn(f"no checkpoint at mega-batch {command.megabatch}: {error.message}")
            await self.group.ask(worker, "save", checkpoint.drop_local, run_dir, command.megabatch)
        return commands.CheckpointWritten()

    def current(self) -> list[WorkerHandle]:
        """Return the workers that are not late."""
        workers = self.group.workers
        return [workers[name] for name in self.session.present() if name in workers]

    async def _keep_best(self, command: commands.KeepBest) -> commands.Result:
        workers, args = self.current(), (self.group.run, command.megabatch)
        (await self.group.ask_all(workers, "save", tasks.keep_best, *args)).raise_failure()
        return commands.BestKept()

    async def _store_local(self, run_dir: str, command: commands.WriteCheckpoint) -> dict[str, int]:
        """Let every worker write its local state; return numbers by worker."""
        if not self._has_local_state:
            return {}
        workers, run = self.current(), self.group.run
        args = [(run, run_dir, command.megabatch, number) for number in range(len(workers))]
        answers = await self.group.ask_each(workers, "save", tasks.store_local, args)
        answers.raise_failure()
        self._has_local_state = answers.any_lost or any(answers.values())
        return {worker.name: n for n, worker in enumerate(workers) if answers[worker.name] is True}

    async def _reload_rows(self, worker: WorkerHandle) -> None:
        """Load a worker's rows once for all changes of the placement while it loads others."""
        async with worker.loading:
            self._to_load.discard(worker)
            await self.load_rows(worker)

    async def load_rows(self, worker: WorkerHandle) -> None:
        """Load a worker's rows onto it."""
        placement, rows = self.session.placement, self.data.rows
        train = {i: rows.train.parts[i] for i in placement.train_shards(worker.name)}
        test = {i: rows.test.parts[i] for i in placement.test_shards(worker.name)}
        args = (self.group.run, placement.is_replicated, train, test, rows.label_counts)
        await self.group.ask(worker, "load", tasks.hold_rows, *args)
        worker.train_shards.update(train)
        worker.test_shards.update(test)

    async def _deliver(self, work: Coroutine[Any, Any, commands.Result | None]) -> None:
        try:
            result = await work
        except LostBeforeAnswer:
            return  # `HandleLost` follows
        except asyncio.CancelledError:
            if self._is_closing:
                raise
            self.emit(RunFailed(ClusterError("Dask gave up a task of the run; start it again")))
        except Exception as error:
            self.emit(RunFailed(error))
        else:
            if result is not None:
                self.emit(result)

    async def close(self) -> None:
        """Stop everything under way."""
        self._is_closing = True
        await self._tasks.cancel()
        for lease in list(self._leases):
            self.lease_ended(lease)


def _missing(pieces: Sequence[commands.Piece], shards: Shards, held: set[int]) -> dict[int, Future]:
    """Return the shards of pieces that a worker does not hold."""
    return {shard: shards.parts[shard] for shard in sorted({s for s, _, _ in pieces} - held)}
