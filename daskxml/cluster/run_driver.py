"""Drives a run on the scheduler's event loop: loads data, prepares workers, runs sessions.

The driver owns the futures and the events of a run, which so does not depend on the client that
started it. It only handles arrivals and losses of workers; the session decides everything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import asdict, replace
from typing import Any

from distributed import Client, Future

from daskxml.cluster import worker_tasks as tasks
from daskxml.cluster.data_loading import ScatteredKeys, SharedRows, load
from daskxml.cluster.detached import HistoryWriter, ModelKeepers
from daskxml.cluster.event_log import EventLog, explained
from daskxml.cluster.executor import CandidateReady, Event, Executor, HandleLost, RunFailed
from daskxml.cluster.membership import Admission, Membership
from daskxml.cluster.worker_group import (
    LostBeforeAnswer,
    WorkerGroup,
    WorkerHandle,
    heard,
    remaining,
    result_of,
)
from daskxml.cluster.worker_info import RunWorkers, WorkerInfo
from daskxml.config import RunConfig
from daskxml.core.errors import ClusterError, DaskxmlError
from daskxml.kernels.registry import TEXT
from daskxml.models.store import ModelHeader
from daskxml.records.run_dir import check_rows
from daskxml.session import setup
from daskxml.session.commands import Command, EndRun, RunWork, StopRequest, WorkResult
from daskxml.session.fit_run import FitRun
from daskxml.session.row_loading import DataLayout
from daskxml.session.run_loop import RESTART, RunLoop
from daskxml.session.session import Session
from daskxml.strategies.protocol import WorkerSilent

BEST_LOST = "the best model, of mega-batch {}, was lost; the last one is stored"
ARRIVAL_TIMEOUT_S = 60.0  # for the first worker of a cluster
MIN_WAIT_S = 0.001  # for a deadline that rounding has put slightly too early


class RunDriver:
    """Drives one run.

    Parameters
    ----------
    client
        Asynchronous client on the scheduler's loop.
    run
        Name of the run.
    config
        The resolved run file, with paths that the workers can read.
    scattered
        Keys of rows that the client has put on the workers, instead of files.
    run_dir
        Directory for checkpoints and the model; None for none.
    checkpoint
        Path of the checkpoint to resume from.
    is_detached
        No client follows the run: workers write its directory, or keep its model.
    shared
        The rows of all runs of the scheduler.
    stages
        Records of what was done with the rows before.
    """

    def __init__(
        self,
        client: Client,
        run: str,
        config: RunConfig,
        scattered: ScatteredKeys,
        run_dir: str | None = None,
        checkpoint: str | None = None,
        is_detached: bool = False,
        shared: SharedRows | None = None,
        stages: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.client, self.run, self.config, self.run_dir = client, run, config, run_dir
        self.checkpoint, self._scattered = checkpoint, scattered
        self._shared, self._stages_before = shared or SharedRows(), stages
        self._names = setup.NO_NAMES
        self.event_log = EventLog()
        self.group = WorkerGroup(client, run, self.event_log.event)
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.stored: tuple[dict[str, Any], str] | None = None
        self.executor: Executor | None = None
        self.membership: Admission | None = None
        self._ending: list[Admission | Executor] = []  # of a session that is over
        self._turn = asyncio.Lock()  # one cleans up at a time
        self.is_loading, self._is_ready = True, False
        self.session: Session | FitRun
        self._stop_reason = ""
        self._published = 0  # mega-batches in the event log
        self._attempt = 0  # of the last session: each has a higher one, see `Session.attempt`
        self._present: dict[str, WorkerInfo] = {}  # by address: all workers of the cluster
        self._arrived = asyncio.Event()
        self._by_quorum: Session | None = None  # under way, and merges by one
        self.is_detached = is_detached
        self.keepers = ModelKeepers(self.group, lambda: self.header(""))
        self.writer = self._new_history_writer(run_dir) if is_detached and run_dir else None

    # ---------------------------------------------- called by the scheduler plugin

    def worker_added(self, info: WorkerInfo) -> None:
        """Note an arrival; the worker is prepared to join if a session is under way."""
        self._present[info.address] = info
        self._arrived.set()
        if self.membership is not None:
            self.membership.prepare(info, self._infos)

    def worker_removed(self, address: str) -> None:
        """Note the loss of a worker."""
        self._present.pop(address, None)
        worker = self.group.at(address)
        if worker is not None and not worker.is_lost:
            worker.lost.set()
            self.events.put_nowait(HandleLost(worker))
        self.group.capabilities.pop(address, None)
        self.keepers.worker_removed(address)
        if self.writer is not None:
            self.writer.worker_removed(address)

    def task_ended(self, key: str, address: str, busy_s: float, has_failed: bool) -> None:
        """Note that a task is done, or raised an exception; who waits for it learns of that."""

    def model_holder(self) -> WorkerHandle | None:
        """Return a worker that holds the model of a run that is over."""
        workers = remaining(self.group.workers.values())
        return next(iter([*workers, *self.keepers.keepers]), None)

    def lease_reported(self, result: WorkResult) -> None:
        """Note that a lease is done."""
        self.events.put_nowait(result)

    def compiling(self) -> None:
        """Tell, once, that the run waits for kernels to be compiled."""
        is_told = any(event["kind"] == "compiling" for event in self.event_log.events)
        if not (is_told or self.event_log.is_over):
            self.event_log.event("compiling", text=TEXT)

    def summary(self) -> dict[str, Any]:
        """Return the fields of a `daskxml.api.runs.RunHandle`."""
        return {
            "run": self.run,
            "name": self.config.run.name,
            "strategy": self.config.algorithm,
            "is_detached": self.is_detached,
            "out": self.run_dir or "",
            **self.event_log.summary(),
        }

    def stop(self, reason: str) -> None:
        """End the run at the next merge."""
        self._stop_reason = self._stop_reason or reason
        self.events.put_nowait(StopRequest(reason))

    # ------------------------------------------------------------- life cycle

    async def drive(self) -> None:
        """Execute the run; the event log says how it ended."""
        try:
            await self._drive()
        except DaskxmlError as error:
            self.event_log.end_badly(error)
        except Exception as error:
            known = explained(error)
            self.event_log.end_badly(known or error, "" if known else traceback.format_exc())

    async def _drive(self) -> None:
        await self._await_workers()
        workers = RunWorkers(self.config, self._infos, self.group.capabilities)
        workers.check()
        for text in workers.crowded_gpus():
            self.group.warn(text)
        await self._check_run_dir()
        if self.writer is not None:
            await self.writer.open()
        await self._read_stored()
        self.event_log.state("loading")
        self._names = await self._read_names()
        self.config = self._names.sized(self.config)
        placed = DataLayout(**self.stored[0]["placed"]) if self.stored else None
        self.data = await load(
            self.client, self.config, self.run, len(self._present), self._scattered, placed,
            self._shared,
        )  # fmt: skip
        self.is_loading = False
        if self.checkpoint:
            await self._on_some_worker(check_rows, self.run_dir, self.data.rows.checksums)
        self._names.check(self.data.spec)
        devices = {info.name: info.device for info in sorted(self._infos, key=lambda i: i.name)}
        placement = self.data.rows.placement()
        described = setup.describe_run(self.config, self.data.spec, placement, devices)
        self.event_log.event("started", run=self.run, **described)
        await self._await_workers()
        reason = await self._train()
        if self.run_dir is not None:
            await self._remove_from_workers()
        if self.is_detached:
            await self.clean_up()
        self.event_log.end_well(reason, run_dir=self.run_dir)

    async def _read_stored(self) -> None:
        if self.checkpoint:
            session = await self._on_some_worker(tasks.read_session, self.checkpoint)
            self.stored = (session, self.checkpoint)

    async def _train(self) -> str:
        """Run sessions until one ends; return why."""
        while (reason := await self._run_session()) == RESTART:
            await self._remove_from_workers()
            await self._await_workers()
        return reason

    async def _read_names(self) -> setup.ColumnNames:
        """Return the names of columns: those that came with the rows, or those in files."""
        data, given, names = self.config.data, self._scattered.get("names"), setup.NO_NAMES
        if data.feature_names or data.label_names:
            names = await self._on_some_worker(setup.ColumnNames.read, data)
        if given:
            # Through a task: a future that is made of a key does not learn that it is finished.
            found = await self._on_some_worker(copy, Future(given[0], client=self.client))
            names = replace(found, labels=found.labels or names.labels)
        return names

    async def _await_workers(self) -> None:
        """Wait until the cluster has a worker.

        A task waits as well: without one an adaptive cluster (``cluster.adapt``) would start none.
        """
        if self._present:
            return
        self.event_log.state("waiting for workers")
        demand = self.client.submit(bool, pure=False)
        try:
            async with asyncio.timeout(ARRIVAL_TIMEOUT_S):
                while not self._present:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise ClusterError(
                f"no worker came within {ARRIVAL_TIMEOUT_S:.0f} s; start some with 'dask worker'"
            ) from None
        finally:
            demand.release()

    @property
    def _infos(self) -> list[WorkerInfo]:
        return list(self._present.values())

    async def _on_some_worker(self, task: Any, *args: Any) -> Any:
        """Run a small task on a worker that Dask chooses."""
        return await result_of(self.client.submit(task, *args, pure=False))

    async def _check_run_dir(self) -> None:
        if self.run_dir is None:
            return
        path = f"{self.run_dir}/run.toml"
        if not await self._on_some_worker(os.path.exists, path):
            raise ClusterError(
                f"the workers do not see {path}: choose a folder that they share with this machine"
            )

    # ---------------------------------------------------------------- session

    async def _run_session(self) -> str:
        """Run a session from the last checkpoint, if there is one; return why it ended."""
        session = self.session = self._new_session()
        emit = self.events.put_nowait
        executor = self.executor = Executor(
            self.group, session, self.config, self.data, emit, self.run_dir, self.stored
        )
        membership = Membership(executor)
        self.event_log.state("preparing workers")
        workers = await membership.create_first(self._infos)
        self.membership = membership
        if not workers:
            return RESTART
        self._publish_ready(self.stored[0]["history"] if self.stored else [])
        for text in dict.fromkeys(worker.memory for worker in workers):
            self.event_log.event("memory", text=text)
        # Those that arrived while the first were prepared.
        known = {worker.address for worker in workers}
        for info in [each for each in self._infos if each.address not in known]:
            membership.prepare(info, self._infos)
        if self._stop_reason:
            self.events.put_nowait(StopRequest(self._stop_reason))
        loop = RunLoop(session, executor, membership, self.event_log.event, self.event_log.state)
        self._by_quorum = session if session.strategy.quorum < 1.0 else None
        try:
            reason = await self._run_loop(loop, membership)
        finally:
            self._by_quorum = None
            for worker in self.group.workers.values():
                worker.silent.clear()
        self._published, self.stored = loop.published, executor.stored
        self._set_late_aside(session)
        if reason == RESTART:
            lost = "every worker with the model" if self.group.workers else "every worker"
            self.group.warn(f"{lost} was lost; going back to the last checkpoint")
        else:
            await self._restore_best(session)
            await self._store_model(reason)
        return reason

    def _set_late_aside(self, session: Session) -> None:
        """Keep workers without the last model apart: they have no part in the result."""
        workers, present = self.group.workers, session.present()
        late = [name for name in workers if name not in present]
        self.group.candidates |= {workers[n].address: workers.pop(n) for n in late}

    async def _restore_best(self, session: Session) -> None:
        """Let the best model be the result, where it is kept; workers without it come last."""
        best, workers = session.best, self.group.workers
        if best in (0, session.generation):
            return
        args = (self.run, best)
        answers = await self.group.ask_all(workers.values(), "model", tasks.restore_best, *args)
        having = [name for name, answer in answers.items() if answer is True]
        if not having:
            self.group.warn(BEST_LOST.format(best))
            session.best = 0
        ordered = [*having, *(name for name in workers if name not in having)]
        self.group.workers = {name: workers[name] for name in ordered}

    @property
    def needs_all(self) -> bool:
        """Whether a silent worker holds the run up: not where it merges by a quorum."""
        return self._by_quorum is None and not (self.is_detached and self.event_log.is_over)

    def note_silent(self, silent: Collection[str]) -> None:
        """Note who has gone silent, by address, where others need not wait, and who is back."""
        session, executor, workers = self._by_quorum, self.executor, self.group.workers
        if session is None or executor is None:
            return
        here = {name: workers[name] for name in session.present() if name in workers}
        names = session.strategy.merging(session.state) or here
        present = [here[name] for name in names if name in here]
        for worker in present:  # one that is alone in a merge as well
            if len(heard(here.values())) > 1 and worker.address in silent:
                executor.leave_behind(worker)
        for worker in workers.values():
            if worker not in present and worker.address not in silent:
                worker.silent.clear()

    async def _run_loop(self, loop: RunLoop, membership: Membership) -> str:
        """Pass events to the loop as they come; return why the session ended."""
        workers = self.group.workers
        membership.publish_hardware(workers.values())
        commands = loop.start(workers, time.monotonic())
        while True:
            has_work = any(isinstance(command, RunWork) for command in commands)
            if has_work and loop.session.may_join:  # so no merge can begin now
                await membership.catch_up(loop.session.generation)
                commands = [*commands, *loop.admit(time.monotonic())]
            if reason := loop.execute(commands):
                return reason
            commands = [*await self._next_commands(loop), *loop.admit(time.monotonic())]

    async def _next_commands(self, loop: RunLoop) -> list[Command]:
        """Wait for an event, or for the run's time limit; return the commands that follow."""
        now_s, session = time.monotonic(), loop.session
        if commands := session.tick(now_s):
            return commands
        left_s = session.deadline_s() - now_s
        try:
            async with asyncio.timeout(max(left_s, MIN_WAIT_S) if left_s < math.inf else None):
                event = await self.events.get()
        except TimeoutError:
            return []
        if isinstance(event, HandleLost):
            return await self._lose(event.worker, loop)
        return await self._handle(event, loop)

    async def _handle(self, event: Event, loop: RunLoop) -> list[Command]:
        match event:
            case RunFailed(error):
                raise error
            case CandidateReady():
                return []
            case WorkResult() if self.executor is not None:
                busy_s = event.ranks[0].busy_s
                self.executor.lease_ended(event.number, busy_s, event.squared_norm)
        assert not isinstance(event, HandleLost | RunFailed | CandidateReady)
        return loop.session.handle(event, time.monotonic())

    async def _lose(self, worker: WorkerHandle, loop: RunLoop) -> list[Command]:
        """Return the commands that follow from a loss, or from a worker's silence."""
        executor = self.executor
        if executor is None or self.group.workers.get(worker.name) is not worker:
            if worker.is_lost:
                self.group.forget(worker)  # it had not joined yet
            return []
        ends = await self._settle(executor, loop)
        now_s = time.monotonic()
        if worker.is_lost:
            commands = loop.lose(worker.name, now_s)
        else:
            commands = loop.session.handle(WorkerSilent(worker.name), now_s)
        return ends or commands

    async def _settle(self, executor: Executor, loop: RunLoop) -> list[Command]:
        """Handle what came before a loss; return the run's end, if that follows.

        A merge or a gang that is under way ends first: with a result, which stands although a
        worker is lost, or undone. Then reports, and what follows from them, until nothing more
        comes: a merge may follow, but no gang, which the loss would undo. Other losses wait.
        """
        losses: list[HandleLost] = []
        ends: list[Command] = []
        await executor.settle_collective()
        while not self.events.empty():
            event = self.events.get_nowait()
            if isinstance(event, HandleLost):
                losses.append(event)
                continue
            for command in await self._handle(event, loop):
                if isinstance(command, EndRun):
                    ends.append(command)
                elif not isinstance(command, RunWork) or command.is_lease:
                    executor.execute(command)
            await executor.settle_collective()
        for loss in losses:
            self.events.put_nowait(loss)
        return ends

    def _publish_ready(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Allow changes of a resumed run's directory: its workers have read the checkpoint."""
        if not self._is_ready:
            self._is_ready = True
            self.event_log.event("ready", history=history)
            stages = [asdict(stage) for stage in self.data.stages()]
            self.event_log.event(
                "stages", stages=[*self._stages_before, *stages], rows=self.data.rows.checksums
            )
            if self.writer is not None:
                self.writer.start(history)

    def _new_history_writer(self, run_dir: str) -> HistoryWriter:
        return HistoryWriter(
            self.group, self.event_log, self.config, run_dir, self.checkpoint,
            infos=lambda: self._infos,
            on_error=lambda error: self.events.put_nowait(RunFailed(error)),
        )  # fmt: skip

    def _new_session(self) -> Session:
        session = setup.make_session(
            self.config,
            self.data.spec,
            self.data.rows.placement(),
            can_checkpoint=self.run_dir is not None,
            stored=self.stored[0] if self.stored else None,
        )
        if self._published > session.generation:
            self.event_log.event("rewound", megabatch=session.generation)
        self._published = session.generation
        self._attempt = session.attempt = max(session.attempt, self._attempt + 1)
        return session

    # ----------------------------------------------------------------- result

    async def _store_model(self, reason: str) -> None:
        """Let the first worker that is not lost write the model."""
        if self.run_dir is None:
            return
        self.event_log.state("writing the model")
        header = self.header(reason)
        for worker in list(self.group.workers.values()):
            with contextlib.suppress(LostBeforeAnswer):
                args = (self.run_dir, tasks.finished_model, self.run, header)
                return await self.group.ask(worker, "model", tasks.store_model, *args)
        raise ClusterError("every worker was lost before the model was written; resume the run")

    def header(self, reason: str) -> ModelHeader:
        """Return the header of the model's files."""
        of_run, session = (self.config, self.data.spec, self.data.rows), self.session
        return setup.model_header(*of_run, reason, len(session.history), session.best, self._names)

    async def clean_up(self) -> None:
        """Release what a run that is over does not need any more; model and record stay."""
        async with self._turn:
            if self.is_detached:
                await self._end_detached(self.event_log.has_failed)
                self._shared.release(self.run)
            await self._remove_from_workers()

    async def close(self) -> None:
        """Release everything."""
        async with self._turn:  # a user may stop the run meanwhile, who must hear of losses, too
            if self.is_detached:
                # What could not be written is no error any more: the run has failed, or is given up
                await self._end_detached(self.event_log.has_failed or not self.event_log.is_over)
                await self.keepers.forget()
            await self._remove_from_workers()
            self._shared.release(self.run)

    async def _end_detached(self, has_failed: bool) -> None:
        await (self.writer or self.keepers).close(has_failed)

    async def _remove_from_workers(self) -> None:
        """Stop the session, and remove the run from its workers."""
        self._ending += [each for each in (self.membership, self.executor) if each is not None]
        self.membership = self.executor = None  # new workers are for the next session
        while self._ending:  # it stays there if this is cancelled, and is closed by the next call
            await self._ending[0].close()
            del self._ending[0]
        workers = [*self.group.workers.values(), *self.group.candidates.values()]
        await self.group.call_all(workers, "daskxml_close")  # ends leases that wait
        await self.group.ask_all(workers, "end", tasks.remove_worker, self.run, self.run_dir)
        self.group.workers, self.group.candidates = {}, {}
        while not self.events.empty():
            self.events.get_nowait()
