"""Drives a run that fits its model in tasks of Dask; `daskxml.session.fit_run` says which.

The pool keeps every worker's threads busy, one piece each and one waiting, prefers the worker that
is free, and leaves it to Dask to compute elsewhere what is lost with a worker. Arrays stay on the
workers; the scheduler sees keys and a few numbers.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distributed import Future, get_worker
from distributed.client import FutureCancelledError

from daskxml.cluster.detached import KEEPERS, drop_model
from daskxml.cluster.executor import HandleLost, RunFailed
from daskxml.cluster.membership import Admission
from daskxml.cluster.run_driver import MIN_WAIT_S, RunDriver
from daskxml.cluster.worker_group import (
    BackgroundTasks,
    WorkerGroup,
    WorkerHandle,
    remaining,
    result_of,
)
from daskxml.cluster.worker_info import WorkerInfo
from daskxml.cluster.worker_plugin import worker_plugin
from daskxml.cluster.worker_tasks import keep_model, store_model
from daskxml.core.arrays import Array, Partition
from daskxml.core.errors import ClusterError
from daskxml.data.rows import concatenate
from daskxml.models.fitting import FitSettings, Fitter, Member, Slot
from daskxml.models.protocol import joined_arrays
from daskxml.models.store import ModelHeader
from daskxml.models.trained import WholeModel, calibrated
from daskxml.records import checkpoint
from daskxml.session.commands import StopRequest
from daskxml.session.fit_run import FitData, FitRun, Steps
from daskxml.session.task_pool import Task, TaskPool

TICK_S = 2.0  # between looks at the rows
ABOVE_PIECES = 1  # priority of what a member waits for


@dataclass(frozen=True, slots=True)
class TaskDone:
    """A worker has ended a task; Dask may compute it once more, if that worker is lost.

    ``value`` is the task's, once that was fetched.
    """

    key: str
    address: str
    busy_s: float
    value: Any = None
    is_fetched: bool = False


@dataclass(frozen=True, slots=True)
class Admitted:
    """A worker takes part from now on."""

    worker: WorkerHandle


@dataclass(frozen=True)
class Fitters:
    """The fitter of each worker, by its address; an opaque value, which Dask does not traverse."""

    run: str
    settings: FitSettings
    slots: Mapping[str, Slot]

    def __call__(self) -> Fitter:
        """Return that of the worker on which the caller runs."""
        slot = self.slots.get(get_worker().address, Slot())
        slot = replace(slot, memory_bytes=get_worker().memory_manager.memory_limit or 0)
        fitter = self.settings.config.kind.fitter(self.settings, slot)
        return worker_plugin().fitters.setdefault(self.run, fitter)


class DaskPool(TaskPool):
    """A run's tasks on the workers of its group.

    Parameters
    ----------
    group, settings
        The workers, and what tasks have in common.
    slot_of
        Returns a worker's kernels.
    emit
        Called with events, of which `ended` takes `TaskDone`.

    Attributes
    ----------
    asked
        By key: the tasks that are under way, and those whose results are kept.
    """

    def __init__(
        self, group: WorkerGroup, settings: FitSettings, slot_of: Callable[[WorkerInfo], Slot],
        emit: Callable[[Any], None],
    ) -> None:  # fmt: skip
        super().__init__({})
        self._group, self.settings, self._slot_of, self._emit = group, settings, slot_of, emit
        self.asked: dict[str, Task] = {}
        self._fetching = BackgroundTasks(lambda work: work)
        self.update()

    def update(self) -> None:
        """Note which workers take part."""
        workers = self._group.workers.values()
        slots = {worker.address: self._slot_of(worker.info) for worker in workers}
        self.here = Fitters(self._group.run, self.settings, slots)
        self.on_gpus = any(slot.device == "cuda" for slot in slots.values())
        self.slots = {
            worker.name: 1 if slots[worker.address].device == "cuda" else worker.info.threads
            for worker in workers
        }

    @property
    def now_s(self) -> float:
        """Seconds of the machine's steady clock."""
        return time.monotonic()

    def choose(self, task: Task) -> str | None:
        """Return the worker with the most room: a task a thread, and one piece that waits."""
        loads = Counter(each.worker for each in self.under_way if each.is_piece == task.is_piece)
        waiting = sum(each.is_piece for each in self.waiting)
        extra = task.is_piece and waiting > 2 * sum(self.slots.values())
        room = {name: slots + extra - loads[name] for name, slots in self.slots.items()}
        best = max(room, key=room.__getitem__, default=None)
        return best if best is not None and room[best] > 0 else None

    def begin(self, task: Task) -> None:
        """Submit a task: to its worker, or another if that is lost."""
        worker, group = self._group.workers[task.worker], self._group
        task.result = group.submit(
            worker, task.what, task.function, *self.resolved(task.args),
            priority=0 if task.is_piece else ABOVE_PIECES, is_pinned=False,
        )  # fmt: skip
        self.asked[task.result.key] = task
        if task.is_piece:
            group.timeline.lease_given(worker.name)

    def ended(self, event: TaskDone) -> None:
        """Count a task of the run that a worker has ended, or fetch its value first."""
        workers = self._group.workers.values()
        name = next((each.name for each in workers if each.address == event.address), "")
        task = self.asked.get(event.key)
        if task is None:  # it was dropped
            self.busy_s[name] += event.busy_s
            return
        name = name or task.worker
        if event.is_fetched:
            self._withdraw(task)
            return self.done(task, name, event.busy_s, event.value)
        if not task.is_piece:
            self._group.timeline.did(task.what, name, event.busy_s)
        elif not task.is_done:
            self._group.timeline.lease_done(task.worker, event.busy_s)
        if task.is_wanted:
            self._fetching.start(self._fetch(event, task.result))
        else:
            self.done(task, name, event.busy_s)

    def failed(self, key: str) -> None:
        """Fetch the exception of a task, which ends the run."""
        if key in self.asked:
            self._fetching.start(self._fetch(TaskDone(key, "", 0.0), self.asked[key].result))

    async def _fetch(self, event: TaskDone, future: Future) -> None:
        try:
            value = await result_of(future)
        except Exception as error:
            if event.key in self.asked:  # it was not dropped meanwhile
                self._emit(RunFailed(error))
        else:
            self._emit(replace(event, value=value, is_fetched=True))

    def drop(self, tasks: Iterable[Task]) -> None:
        """Forget tasks and their results."""
        tasks = list(tasks)
        super().drop(tasks)
        for task in tasks:
            self._withdraw(task)

    def _withdraw(self, task: Task) -> None:
        if task.result is not None and self.asked.pop(task.result.key, None) is task:
            if task.is_piece and not task.is_done:
                self._group.timeline.lease_done(task.worker, 0.0)
            task.result.release()

    async def close(self) -> None:
        """Drop everything."""
        await self._fetching.cancel()
        self.drop([*self.waiting, *self.asked.values()])


class FitDriver(RunDriver):
    """Drives one run."""

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        self.pool: DaskPool | None = None
        self._admission = Admission(
            self.group, self.config, lambda worker: self.events.put_nowait(Admitted(worker))
        )

    # ---------------------------------------------- called by the scheduler plugin

    def task_ended(self, key: str, address: str, busy_s: float, has_failed: bool) -> None:
        """Note that a task of the run is done, or raised an exception."""
        if self.pool is None or f"-{self.run}-" not in key:
            return
        if not has_failed:
            self.events.put_nowait(TaskDone(key, address, busy_s))
        else:
            self.pool.failed(key)

    # ------------------------------------------------------------------ the run

    async def _read_stored(self) -> None:
        """Read nothing yet: the members of a run that goes on are read once the rows are there."""

    async def _train(self) -> str:
        await self._admit()
        rows = self.data.rows
        settings = FitSettings(self.data.spec, rows.training_rows, self.config)
        emit = self.events.put_nowait
        pool = self.pool = DaskPool(self.group, settings, self._slot_of, emit)
        parts = rows.train.parts
        train = parts[0] if len(parts) == 1 else pool.submit("rows", concatenate, parts)
        tests = rows.test.parts, rows.test.rows
        data = FitData(train, rows.label_counts, self.data.prepared, *tests)
        store = None if self.run_dir is None else (store_member, self.run_dir)
        run = self.session = FitRun(settings, data, pool, self.event_log.event, store)
        if self.checkpoint is not None:
            files = await self._on_some_worker(checkpoint.stored_members, self.checkpoint)
            await self._follow(run, pool, run.load(files, checkpoint.read_member))
        self._publish_ready([*run.history])
        await self._follow(run, pool, run.fit())
        await self._store_result(run)
        return run.stop_reason

    async def _admit(self) -> None:
        """Let all workers take part that can, and later ones once that is known of them."""
        self.event_log.state("preparing workers")
        admission = self._admission
        fit = await admission.fit_workers(self._infos)
        self.group.workers = {worker.name: worker for worker in remaining(fit)}
        admission.publish_hardware(fit)
        self.membership = admission
        for info in [each for each in self._infos if self.group.at(each.address) is None]:
            admission.prepare(info, self._infos)

    def _slot_of(self, info: WorkerInfo) -> Slot:
        return Slot(*self._admission.kernels_of(info, self._infos))

    async def _follow(self, run: FitRun, pool: DaskPool, steps: Steps) -> None:
        """Execute tasks until no step is left."""
        for until_s in steps:
            pool.fill()
            if self._is_ready:
                members, epoch = len(run.history), run.epoch
                rows = round(pool.settings.rows * epoch)
                self.event_log.state(run.stage, megabatch=members + 1, rows=rows, epoch=epoch)
            try:
                left_s = until_s - pool.now_s
                async with asyncio.timeout(max(min(left_s, TICK_S), MIN_WAIT_S)):
                    event = await self.events.get()
            except TimeoutError:
                if not self.data.rows.is_intact:
                    raise FutureCancelledError(self.run, "its rows are gone") from None
            else:
                await self._take(event, run, pool)

    async def _take(self, event: Any, run: FitRun, pool: DaskPool) -> None:
        match event:
            case TaskDone():
                pool.ended(event)
            case RunFailed(error):
                raise error
            case StopRequest(reason):
                run.stop(reason)
            case Admitted(worker):
                self._join(worker, pool)
            case HandleLost(worker):
                took_part = self.group.workers.get(worker.name) is worker
                self.group.forget(worker)
                pool.update()
                if took_part:
                    pool.changed("lost", worker.name)

    def _join(self, worker: WorkerHandle, pool: DaskPool) -> None:
        self.group.candidates.pop(worker.address, None)
        if worker.is_lost:
            return
        self.group.workers[worker.name] = worker
        self._admission.publish_hardware([worker])
        pool.update()
        pool.changed("joined", worker.name)

    # ------------------------------------------------------------------- result

    async def _store_result(self, run: FitRun) -> None:
        """Let a worker write the model, or some keep it."""
        rows = self.data.rows
        members = run.model_members()
        self.event_log.state("writing the model")
        model = self.header(run.stop_reason), rows.label_counts, members, run.member
        args = finished_model, *model, rows.test.parts
        if self.run_dir is not None:
            return await self._on_some_worker(store_model, self.run_dir, *args)
        workers = list(self.group.workers.values())[:KEEPERS]
        answers = await self.group.ask_all(workers, "model", keep_model, self.run, *args)
        self.group.workers = {each.name: each for each in workers if answers[each.name] is None}
        if not self.group.workers:
            raise answers.failure or ClusterError(
                "every worker was lost before the model was kept; start the run again"
            )

    async def _remove_from_workers(self) -> None:
        if self.pool is not None:
            await self.pool.close()
            if isinstance(self.data.prepared, Future):
                self.data.prepared.release()
            self.pool = None
        if not self.is_detached:
            await self.group.ask_all(self.group.workers.values(), "end", drop_model, self.run)
        for info in self._infos:  # Dask may also have asked a worker that takes no part yet
            if self.group.at(info.address) is None:
                self.group.candidates[info.address] = WorkerHandle(info)
        await super()._remove_from_workers()


def finished_model(
    header: ModelHeader, counts: Array, members: Sequence[Member], what: str,
    held_out: Sequence[Partition],
) -> WholeModel:  # fmt: skip
    """Return the model of these members, calibrated where rows were held out."""
    return calibrated(header, joined_arrays(members, what), counts, held_out)


def store_member(run_dir: str, number: int, arrays: Member, row: Mapping[str, Any]) -> str:
    """Write a member; return why it could not be written, "" if it was."""
    with worker_plugin().writing(run_dir):
        return checkpoint.store_member(run_dir, number, arrays, row)
