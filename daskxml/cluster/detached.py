"""A detached run: workers write its history, and keep its model when it is over.

The scheduler has one worker write the run's directory. That worker locks it, so that it has one
owner at any time. If the worker is lost, so is its lock, and another worker locks the directory;
what the first had begun to write is written again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from daskxml.cluster.event_log import EventLog
from daskxml.cluster.worker_group import LostBeforeAnswer, WorkerGroup, WorkerHandle, remaining
from daskxml.cluster.worker_info import WorkerInfo
from daskxml.cluster.worker_plugin import worker_plugin
from daskxml.cluster.worker_tasks import finished_model, keep_model
from daskxml.config import RunConfig
from daskxml.core.errors import ClusterError, ModelError
from daskxml.models.store import ModelHeader
from daskxml.models.trained import WholeModel
from daskxml.records.run_dir import HISTORY_FILE, OF_STARTS, RUN_FILE, RunDir, extend_history

KEEPERS = 2  # workers that keep the model of a run without a directory
WORKER_TIMEOUT_S = 60.0  # for a worker to arrive
LOCK_TIMEOUT_S = 10.0  # for the previous process to unlock the directory
RETRY_S = 0.25
READ_TIMEOUT_S = 3600.0  # the log is read on this event loop: waiting costs nothing


class HistoryWriter:
    """Writes a run's directory from its event log.

    Parameters
    ----------
    group
        The run's workers and its client.
    event_log
        The events to write.
    config, run_dir, checkpoint
        The run file, the directory, and the checkpoint that the run resumes from.
    infos
        Returns the workers of the cluster.
    on_error
        Called with an exception that ends the writing.
    """

    def __init__(
        self,
        group: WorkerGroup,
        event_log: EventLog,
        config: RunConfig,
        run_dir: str,
        checkpoint: str | None,
        infos: Callable[[], Sequence[WorkerInfo]],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._group, self._event_log, self._config = group, event_log, config
        self._run_dir, self._checkpoint = run_dir, checkpoint
        self._infos, self._on_error = infos, on_error
        self._worker: WorkerHandle | None = None
        self._locking: asyncio.Task[None] | None = None
        self._asked: dict[str, WorkerHandle] = {}  # to lock the directory; by address
        self._refused = 0  # attempts at locking the directory
        self._ends: list[int] = []  # of each row, in bytes
        self._written = 0  # events
        self._error: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    def worker_removed(self, address: str) -> None:
        """Note that a worker was lost."""
        if address in self._asked:
            self._asked[address].lost.set()

    async def open(self) -> WorkerHandle:
        """Return the worker that has locked the directory, once the client has unlocked it.

        Raises
        ------
        ModelError
            If another process has locked it, or it cannot be written to.
        ClusterError
            If there is no worker.
        """
        deadline_s = time.monotonic() + LOCK_TIMEOUT_S
        while self._worker is None or self._worker.is_lost:
            try:
                self._worker = await self._lock()
            except LostBeforeAnswer:
                continue
            except ModelError:
                # The client, or the previous worker, has not unlocked it yet. Or another worker has
                # it for this run: Dask gave it what one was asked that died at its address.
                if time.monotonic() > deadline_s:
                    raise
                self._refused += 1
                await asyncio.sleep(RETRY_S)
        return self._worker

    def start(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Write every event from now on; ``history`` is that of a resumed run."""
        self._task = asyncio.create_task(self._write(list(history)))

    async def close(self, has_failed: bool) -> None:
        """Write the remaining events, and unlock the directory.

        Raises
        ------
        Exception
            What ended the writing, of a run that has not failed: it has no other way to know.
        """
        if self._task is not None:
            while not self._task.done() and self._written < len(self._event_log.events):
                await asyncio.wait({self._task}, timeout=RETRY_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._locking is not None:  # `open` may have been cancelled
            await asyncio.wait({self._locking})
        await self._release(has_failed)
        self._worker, error, self._error = None, self._error, None
        if error is not None and not has_failed:
            raise error

    async def _release(self, has_failed: bool) -> None:
        """Unlock the directory, also where Dask let the next worker at an address lock it."""
        for info in self._infos():
            if info.address in self._asked and self._asked[info.address].is_lost:
                self._asked[info.address] = WorkerHandle(info)
        owners = [worker for worker in self._asked.values() if not worker.is_lost]
        # Nothing is raised: a lock ends with its process.
        await self._group.ask_all(owners, "write", release_directory, self._group.run, has_failed)
        self._asked = {}

    def cancel(self) -> None:
        """Stop writing, as the scheduler ends."""
        for task in (self._task, self._locking):
            if task is not None:
                task.cancel()

    async def _write(self, history: list[Mapping[str, Any]]) -> None:
        try:
            if history:
                self._ends = await self._ask(begin_directory, self._config, history)
            while True:
                new = await self._event_log.read(self._written, None, READ_TIMEOUT_S)
                for event in new["events"]:
                    await self._write_event(event)
                    self._written += 1
        except Exception as error:
            self._error = error
            self._on_error(error)

    async def _write_event(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "rewound":
            del self._ends[event["megabatch"] :]
            await self._write_rows([])
        elif event["kind"] == "megabatch":
            await self._write_rows([event["row"]])
        elif event["kind"] in OF_STARTS:
            await self._ask(record_event, event)

    async def _write_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        offset = self._ends[-1] if self._ends else 0
        self._ends += await self._ask(write_rows, offset, rows)

    async def _ask(self, task: Callable[..., Any], *args: Any) -> Any:
        """Run a task on the worker that owns the directory; if it is lost, on the next owner."""
        while True:
            worker = await self.open()
            with contextlib.suppress(LostBeforeAnswer):
                return await self._group.ask(worker, "write", task, self._group.run, *args)

    async def _lock(self) -> WorkerHandle:
        """Let some worker lock the directory."""
        worker = self._worker = WorkerHandle(await self._next_worker())
        self._asked[worker.address] = worker
        args = (self._group.run, self._run_dir, self._checkpoint)
        ask = self._group.ask(worker, "write", lock_directory, *args)
        self._locking = asyncio.create_task(ask)
        try:
            await asyncio.shield(self._locking)
        except Exception:
            self._worker = None
            raise
        return worker

    async def _next_worker(self) -> WorkerInfo:
        deadline_s = time.monotonic() + WORKER_TIMEOUT_S
        while not (infos := self._infos()):
            if time.monotonic() > deadline_s:
                raise ClusterError("no worker is there to write the run's history")
            await asyncio.sleep(RETRY_S)
        return infos[self._refused % len(infos)]


class ModelKeepers:
    """Workers that keep the model of a detached run without a directory, once that is over.

    Parameters
    ----------
    group
        The run's workers.
    header
        Returns the header of its model, once it is over.
    """

    def __init__(self, group: WorkerGroup, header: Callable[[], ModelHeader]) -> None:
        self._group, self._header = group, header
        self._keepers: list[WorkerHandle] = []

    def worker_removed(self, address: str) -> None:
        """Note that a worker was lost."""
        for keeper in self._keepers:
            if keeper.address == address:
                keeper.lost.set()

    async def close(self, has_failed: bool) -> None:
        """Let workers keep the model, of a run that has not failed."""
        if not has_failed and not self._keepers:
            handles = list(self._group.workers.values())[:KEEPERS]
            run = self._group.run  # before its `TrainingWorker` is removed
            args = run, finished_model, run, self._header()
            answers = await self._group.ask_all(handles, "model", keep_model, *args)
            self._keepers = [handle for handle in handles if answers[handle.name] is None]

    @property
    def keepers(self) -> list[WorkerHandle]:
        """The workers that keep the model."""
        return remaining(self._keepers)

    async def forget(self) -> None:
        """Let workers drop the model."""
        await self._group.ask_all(self.keepers, "end", drop_model, self._group.run)
        self._keepers = []


# ----------------------------------------------------------------- tasks on workers


def lock_directory(run: str, run_dir: str, checkpoint: str | None) -> None:
    """Lock a run's directory for this worker.

    Raises
    ------
    ModelError
        If another process has locked it.
    ClusterError
        If this worker does not see it.
    """
    directories = worker_plugin().directories
    if run not in directories:
        if not (Path(run_dir) / RUN_FILE).exists():
            raise ClusterError(f"not all workers see {run_dir}: choose a folder that they share")
        directory = RunDir(Path(run_dir), checkpoint)
        directory.lock()
        directories[run] = directory


def begin_directory(run: str, config: RunConfig, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Write the run file, and the history so far; return the end of each row in bytes."""
    _directory(run).begin(config)
    return write_rows(run, 0, rows)


def record_event(run: str, event: Mapping[str, Any]) -> None:
    """Record an event of `OF_STARTS` in the directory that this worker owns."""
    _directory(run).record(event)


def write_rows(run: str, offset: int, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Continue the history after ``offset`` bytes; return the end of each row in bytes."""
    path = _directory(run).path
    assert path is not None
    return extend_history(path / HISTORY_FILE, offset, rows)


def release_directory(run: str, has_failed: bool) -> None:
    """Unlock the directory; a run that failed before its first merge leaves nothing behind."""
    directory = worker_plugin().directories.pop(run, None)
    if directory is not None:
        directory.release(has_failed)


def model_of(run: str, header: ModelHeader) -> WholeModel:
    """Return the model of a run that is over."""
    return worker_plugin().models.get(run) or finished_model(run, header)


def drop_model(run: str) -> None:
    """Drop what is kept of a run that is over."""
    worker_plugin().models.pop(run, None)


def _directory(run: str) -> RunDir:
    directories = worker_plugin().directories
    if run not in directories:
        raise ClusterError(f"the directory of run {run} is not kept by this worker")
    return directories[run]
