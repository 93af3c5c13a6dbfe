"""Drives a run of label trees: a graph of Dask tasks, submitted in a bounded window.

::

    vectors ─▶ order ─▶ plan ─▶ pieces ─▶ tree ─▶ sums of the test rows' metrics
                          rows ──▲                 └▶ file

The driver decides nothing (`daskxml.session.tree_run.TreeRun` does). It keeps every worker's
threads busy, one piece each and one waiting, prefers the worker that is free, and leaves it to
Dask to compute elsewhere what is lost with a worker. A piece of a worker that has gone silent is
submitted to another as well; the first result counts. Arrays stay on the workers; the scheduler
sees keys and a few numbers.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distributed import Future, get_worker, wait

from daskxml.cluster.detached import KEEPERS, drop_model, keep_arrays
from daskxml.cluster.executor import HandleLost, RunFailed, TaskErred
from daskxml.cluster.membership import Admission
from daskxml.cluster.run_driver import MIN_WAIT_S, RunDriver
from daskxml.cluster.worker_group import BackgroundTasks, LostBeforeAnswer, WorkerHandle, result_of
from daskxml.cluster.worker_info import Capabilities, WorkerInfo, kernel_device, kernel_threads
from daskxml.cluster.worker_plugin import worker_plugin
from daskxml.core.arrays import Array, Partition
from daskxml.core.errors import ClusterError, DaskxmlError, ModelError
from daskxml.data.rows import concatenate
from daskxml.metrics import MetricSums
from daskxml.models.store import ModelHeader, write_model
from daskxml.models.trees.clustering import order_of_tree
from daskxml.models.trees.fitting import (
    FitSettings,
    Slot,
    Tree,
    TreeFitter,
    check_any,
    check_stored,
    named_trees,
    plan_tree,
    put_together,
    works_of,
)
from daskxml.models.trees.nodes import Plan
from daskxml.records.checkpoint import read_tree, stored_trees, write_tree
from daskxml.session.commands import EndRun, StopRequest
from daskxml.session.setup import model_header
from daskxml.session.tree_run import (
    Done,
    FitPiece,
    Fitted,
    Planned,
    PlanTree,
    PutTogether,
    Ranked,
    RankRows,
    Result,
    Step,
    StoreTree,
    TreeRun,
    announce_trees,
    fit_settings,
)
from daskxml.strategies.protocol import natural_order

SILENT_S = 15.0  # without a heartbeat: what a worker was asked, another is asked as well
TICK_S = 2.0  # between looks at silent workers
READ_AT_ONCE = 64  # trees of a run that goes on
BLOCKS = 4  # of test rows, for each task at a time
LEAST_BLOCK_ROWS = 64
ABOVE_PIECES = 1  # priority of what a tree waits for


@dataclass(frozen=True, slots=True)
class TaskDone:
    """A worker has ended a task; Dask may compute it once more, if that worker is lost."""

    key: str
    address: str
    busy_s: float


@dataclass(frozen=True, slots=True)
class Admitted:
    """A worker takes part from now on."""

    worker: WorkerHandle


@dataclass(eq=False)
class _Piece:
    """A piece under way or fitted, its future, and the worker that was asked."""

    piece: FitPiece
    future: Future
    worker: WorkerHandle
    is_done: bool = False


@dataclass(frozen=True)
class _Parts:
    """Of a tree: its futures."""

    order: Future
    plan: Future


class TreeDriver(RunDriver):
    """Drives one run of label trees."""

    tree_run: TreeRun

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        self._admission = Admission(self.group, self.config, self.event_log.event, self._warn)
        self._working = BackgroundTasks(self._deliver)
        self._trees: dict[int, Future] = {}  # the later of two may be there first
        self._parts: dict[int, _Parts] = {}
        self._of_rows: list[Future] = []  # what this run alone has made of the rows
        self._pieces: dict[str, _Piece] = {}  # by key: of trees that are not put together
        self._numbers = itertools.count()
        self._holders_of_model: list[WorkerHandle] = []
        self._is_training = False

    # ---------------------------------------------- called by the scheduler plugin

    def worker_added(self, info: WorkerInfo) -> None:
        """Note an arrival; the worker takes part once it is probed."""
        self._present[info.address] = info
        self._arrived.set()
        if self._is_training:
            self._working.start(self._admit_late(WorkerHandle(info)))

    def task_failed(self, key: str) -> None:
        """Note that a task raised an exception, if it is a piece."""
        if key in self._pieces:
            self.events.put_nowait(TaskErred(self._pieces[key].future))

    def task_done(self, key: str, address: str, busy_s: float) -> None:
        """Note that a task of the run is done."""
        if self._is_training and f"-{self.run}-" in key:
            self.events.put_nowait(TaskDone(key, address, busy_s))

    def model_holder(self) -> WorkerHandle | None:
        """Return a worker that holds the model of a run that is over."""
        return next((worker for worker in self._holders_of_model if not worker.is_lost), None)

    def worker_removed(self, address: str) -> None:
        """Note the loss of a worker."""
        super().worker_removed(address)
        for worker in self._holders_of_model:
            if worker.address == address:
                worker.lost.set()

    # ------------------------------------------------------------------ the run

    async def _read_stored(self) -> None:
        """Read nothing yet: the trees of a run that goes on are read once the rows are there."""

    async def _train(self) -> str:
        spec, rows = self.data.spec, self.data.rows
        self._settings = fit_settings(self.config, spec, sum(rows.train.rows))
        self._part = self._whole_part()
        assert self.data.label_vectors is not None
        self._of_rows.append(self.data.label_vectors)
        self.event_log.state("preparing workers")
        workers = [WorkerHandle(info) for info in self._infos]
        await self._admit(sorted(workers, key=lambda worker: natural_order(worker.name)))
        history = await self._load_trees()
        self._is_training = True
        self.tree_run = run = TreeRun.of(
            self.config,
            self._settings.rows,
            has_tests=bool(sum(rows.test.rows)),
            can_store=self.run_dir is not None,
            history=history,
        )
        self._publish_ready(history)
        self.event_log.event("memory", text=announce_trees(spec))
        if self._stop_reason:
            self.events.put_nowait(StopRequest(self._stop_reason))
        for info in [each for each in self._infos if self.group.at(each.address) is None]:
            self._working.start(self._admit_late(WorkerHandle(info)))
        reason = await self._run_steps(run)
        self._is_training = False
        await self._working.cancel()
        self._drop_pieces()
        await self._store_trees(run, reason)
        return reason

    def _whole_part(self) -> Future:
        """Return the future of all training rows as one partition."""
        parts = self.data.rows.train.futures
        if len(parts) == 1:
            return parts[0]
        self._of_rows.append(self._submit("rows", concatenate, parts))
        return self._of_rows[-1]

    async def _load_trees(self) -> list[dict[str, Any]]:
        """Read the trees of a run that goes on; return their rows of the history."""
        if self.checkpoint is None:
            return []
        paths = await self._on_some_worker(stored_trees, self.checkpoint)
        history: list[dict[str, Any]] = []
        for at in range(0, len(paths), READ_AT_ONCE):
            read = [
                self._submit("read", read_tree, str(path)) for path in paths[at : at + READ_AT_ONCE]
            ]
            rows = [self._submit("row", stored_row, self._settings, each) for each in read]
            history += [await _result_once(row) for row in rows]
            for each in read:
                self._trees[len(self._trees)] = self._submit("tree", _first, each)
        return history

    async def _run_steps(self, run: TreeRun) -> str:
        """Execute the run's steps as events come; return why it ended."""
        steps: Sequence[Step] = run.begin(self._slots(), time.monotonic())
        published = len(run.history)
        while True:
            for row in run.history[published:]:
                self.event_log.event("megabatch", row=row)
            published = len(run.history)
            for step in steps:
                if isinstance(step, EndRun):
                    return step.reason
                self._working.start(self._do(step))
            self._fill(run)
            rows, epoch = round(run.rows * run.epoch), run.epoch
            self.event_log.state(run.stage, megabatch=published + 1, rows=rows, epoch=epoch)
            steps = await self._next_steps(run)

    async def _next_steps(self, run: TreeRun) -> Sequence[Step]:
        """Wait for an event, for the next look at the workers, or for the run's time limit."""
        left_s = run.time_left_s(time.monotonic())
        if left_s <= 0.0:
            return run.stop("minutes", time.monotonic())
        try:
            async with asyncio.timeout(max(min(left_s, TICK_S), MIN_WAIT_S)):
                event = await self.events.get()
        except TimeoutError:
            self._look_at_workers(run)
            return []
        return await self._steps_after(event, run)

    async def _steps_after(self, event: Any, run: TreeRun) -> Sequence[Step]:
        now_s = time.monotonic()
        match event:
            case TaskDone():
                return self._task_done(event, run)
            case TaskErred(future):
                if any(task.future is future for task in self._pieces.values()):
                    raise await future.exception()
            case RunFailed(error):
                raise error
            case StopRequest(reason):
                return run.stop(reason, now_s)
            case HandleLost(worker):
                self._note_loss(worker, run)
            case Admitted(worker):
                self._join(worker, run)
            case Planned() | Done() | Ranked():
                return run.handle(event, now_s)
        return []

    # ------------------------------------------------------------------ workers

    def _slot_of(self, info: WorkerInfo) -> Slot:
        own = self.group.capabilities.get(info.address, Capabilities())
        threads = kernel_threads(self.config, info, self._infos, self.group.capabilities)
        return Slot(kernel_device(self.config, info, own), threads)

    def _places(self) -> Places:
        return Places(
            {worker.address: self._slot_of(worker.info) for worker in self.group.workers.values()}
        )

    def _slots(self) -> dict[str, int]:
        """Return how many tasks each worker computes at a time."""
        return {
            name: 1 if self._slot_of(worker.info).device == "cuda" else worker.info.threads
            for name, worker in self.group.workers.items()
        }

    async def _admit(self, workers: Sequence[WorkerHandle]) -> None:
        candidates = self.group.candidates = {worker.address: worker for worker in workers}
        fit = await self._admission.fit_workers(workers, self._infos)
        self.group.workers = {worker.name: worker for worker in fit if not worker.is_lost}
        for worker in workers:
            candidates.pop(worker.address, None)
        self._admission.publish_hardware(fit)

    async def _admit_late(self, worker: WorkerHandle) -> None:
        self.group.candidates[worker.address] = worker
        try:
            if worker.address not in self.group.capabilities:
                await self._admission.probe(worker)
            if problem := self._admission.problem(worker, self._infos):
                raise problem
        except (DaskxmlError, OSError) as error:
            self._warn(f"a worker cannot join: {error}")
            return
        self.events.put_nowait(Admitted(worker))

    def _join(self, worker: WorkerHandle, run: TreeRun) -> None:
        self.group.candidates.pop(worker.address, None)
        if worker.is_lost:
            return
        self.group.workers[worker.name] = worker
        self._admission.publish_hardware([worker])
        self.event_log.event("worker", event="joined", worker=worker.name)
        run.slots = self._slots()
        run.change_worker("joined", worker.name, time.monotonic())

    def _note_loss(self, worker: WorkerHandle, run: TreeRun) -> None:
        """Note a loss; Dask computes elsewhere what the worker alone had."""
        was_there = self.group.workers.get(worker.name) is worker
        self.group.forget(worker)
        if not was_there:
            return
        self.event_log.event("worker", event="lost", worker=worker.name)
        run.slots = self._slots()
        run.change_worker("lost", worker.name, time.monotonic())

    def _look_at_workers(self, run: TreeRun) -> None:
        """Ask others for the pieces of silent workers, once for each piece."""
        if self._part.status == "cancelled":
            raise ClusterError(
                "the run's tasks were cancelled, as client.restart() does; start it again, or go "
                "on from its last tree by --resume"
            )
        workers = self.group.workers.values()
        heard = [worker for worker in workers if self.silence_s(worker.address) < SILENT_S]
        if not heard or len(heard) == len(workers):
            return
        asked = Counter((task.piece.tree, task.piece.number) for task in self._pieces.values())
        for task in list(self._pieces.values()):
            is_silent = task.worker not in heard and not task.is_done
            if is_silent and asked[task.piece.tree, task.piece.number] == 1:
                free = min(heard, key=self._load)
                self._fit(task.piece, free, [worker.address for worker in heard])

    # ------------------------------------------------------------------- pieces

    def _load(self, worker: WorkerHandle) -> float:
        """Return how many pieces a worker was asked for, for each of its threads."""
        asked = sum(task.worker is worker and not task.is_done for task in self._pieces.values())
        return asked / self.tree_run.slots.get(worker.name, 1)

    def _fill(self, run: TreeRun) -> None:
        """Submit pieces until every thread has one, and each worker one more that waits."""
        loads = Counter(task.worker for task in self._pieces.values() if not task.is_done)
        slots = run.slots

        def room(worker: WorkerHandle) -> float:
            is_silent = self.silence_s(worker.address) >= SILENT_S
            return 0 if is_silent else slots[worker.name] + is_plenty - loads[worker]

        while True:
            is_plenty = run.has_pending() > 2 * sum(slots.values())
            free = max(self.group.workers.values(), key=room, default=None)
            if free is None or room(free) <= 0:
                return
            piece = run.take(time.monotonic())
            if piece is None:
                return
            self._fit(piece, free)
            loads[free] += 1

    def _fit(self, piece: FitPiece, worker: WorkerHandle, only: Sequence[str] = ()) -> None:
        """Submit a piece: to this worker, or another if it is lost; ``only`` to some of them."""
        parts = self._parts[piece.tree]
        needs_first = piece.tree > 0 and self._settings.spec.hard_negatives > 0
        first = self._trees[0] if needs_first else None
        key = f"daskxml-piece-{self.run}-{piece.tree}-{piece.number}-{next(self._numbers)}"
        future = self.client.submit(
            fit_piece, self.run, self._settings, self._places(), self._part,
            self.data.rows.label_counts, parts.order, parts.plan, piece, first,
            key=key, workers=list(only) or [worker.address], allow_other_workers=not only,
            pure=False,
        )  # fmt: skip
        self._pieces[key] = _Piece(piece, future, worker)
        self.group.timeline.lease_given(worker.name)

    def _task_done(self, event: TaskDone, run: TreeRun) -> Sequence[Step]:
        done = self._pieces.get(event.key)
        by = next(
            (worker for worker in self.group.workers.values() if worker.address == event.address),
            None,
        )
        if done is None:  # no piece; or another was first, or its tree was dropped
            if by is not None:
                run.worked(by.name, event.busy_s)
            return []
        name = (by or done.worker).name
        if not done.is_done:
            self.group.timeline.lease_done(done.worker.name, event.busy_s)
        done.is_done = True
        piece = done.piece
        self._drop_pieces(lambda task: task.piece == piece and task is not done)
        fitted = Fitted(piece.tree, piece.number, name, event.busy_s)
        return run.handle(fitted, time.monotonic())

    def _drop_pieces(self, is_dropped: Any = lambda task: True) -> None:
        for key, task in list(self._pieces.items()):
            if is_dropped(task):
                if not task.is_done:
                    self.group.timeline.lease_done(task.worker.name, 0.0)
                task.future.release()
                del self._pieces[key]

    # -------------------------------------------------------------------- steps

    def _submit(self, what: str, task: Any, *args: Any, **values: Any) -> Future:
        key = f"daskxml-{what}-{self.run}-{next(self._numbers)}"
        return self.client.submit(task, *args, key=key, pure=False, **values)

    async def _do(self, step: Step) -> Result:
        match step:
            case PlanTree(tree):
                return await self._plan(tree)
            case PutTogether(tree):
                await self._put_together(tree)
                return Done(step)
            case RankRows(trees):
                return Ranked(trees, await self._rank(trees))
            case StoreTree(tree, row):
                await self._store(tree, row)
                return Done(step)
        raise AssertionError(step)

    async def _plan(self, tree: int) -> Planned:
        settings, counts = self._settings, self.data.rows.label_counts
        slots = max(1, sum(self._slots().values()))
        on_gpus = any(slot.device == "cuda" for slot in self._places().slots.values())

        def submit(worker: WorkerHandle) -> Future:
            ordered = self.data.label_vectors, settings.spec, settings.seed, tree
            order = self._submit_to(worker, "order", order_of_tree, *ordered)
            args = settings, counts, order
            plan = self._submit_to(worker, "plan", plan_tree, *args, slots, on_gpus)
            self._parts[tree] = _Parts(order, plan)
            return self._submit_to(worker, "works", works_of, *args, plan)

        return Planned(tree, await _result_once(await self._computed(submit)))

    async def _put_together(self, tree: int) -> None:
        parts = self._parts[tree]
        done = {
            task.piece.number: task.future
            for task in self._pieces.values()
            if task.piece.tree == tree
        }
        pieces = [future for _, future in sorted(done.items())]

        def submit(worker: WorkerHandle) -> Future:
            args = self._settings, parts.order, parts.plan, pieces
            self._trees[tree] = self._submit_to(worker, "tree", put_together, *args)
            return self._trees[tree]

        await self._computed(submit)
        self._drop_pieces(lambda task: task.piece.tree == tree)
        _release(parts.order, parts.plan)
        del self._parts[tree]

    async def _rank(self, trees: int) -> MetricSums:
        """Rank all test rows, block by block: whoever is free takes the next one."""
        left = deque(self._blocks())
        found = [MetricSums.zero(self._settings.ks)]

        async def work(worker: WorkerHandle) -> None:
            while left:
                shard, start, stop = block = left.popleft()
                task = self._submit_to(
                    worker, "eval", rank_block, self.run, self._settings, self._places(),
                    self._first(trees), self.data.rows.label_counts, shard,
                    self.data.rows.test.futures[shard], start, stop,
                )  # fmt: skip
                try:
                    with self.group.timeline.doing("eval", worker.name):
                        if not await self._is_done(task, worker):
                            return left.append(block)
                        found.append(await result_of(task))
                finally:
                    task.release()

        while left:
            slots = self._slots()
            heard = [worker for worker in await self._heard() for _ in range(slots[worker.name])]
            await asyncio.gather(*map(work, heard))
        return sum(found[1:], found[0])

    async def _heard(self) -> list[WorkerHandle]:
        """Return the workers that take part and have not gone silent; wait until there is one."""
        while True:
            workers = self.group.workers.values()
            heard = [worker for worker in workers if self.silence_s(worker.address) < SILENT_S]
            if heard:
                return heard
            await asyncio.sleep(TICK_S)

    def _submit_to(self, worker: WorkerHandle, what: str, task: Any, *args: Any) -> Future:
        """Submit a task for which a tree waits to this worker, or another if it is lost."""
        values = {"workers": [worker.address], "allow_other_workers": True}
        return self._submit(what, task, *args, priority=ABOVE_PIECES, **values)

    async def _computed(self, submit: Callable[[WorkerHandle], Future]) -> Future:
        """Submit a task to some worker, to another if that goes silent; return it once it is done.

        Raises
        ------
        Exception
            That of the task.
        """
        while True:
            worker = min(await self._heard(), key=self._load)
            future, is_done = submit(worker), False
            try:
                if is_done := await self._is_done(future, worker):
                    return future
            finally:
                if not is_done:
                    future.release()

    async def _is_done(self, future: Future, worker: WorkerHandle) -> bool:
        """Wait until a task is done; return False if its worker goes silent first."""
        done = asyncio.ensure_future(_await(future))
        try:
            while not (await asyncio.wait({done}, timeout=TICK_S))[0]:
                if self.silence_s(worker.address) >= SILENT_S:
                    return False
            done.result()
            return True
        finally:
            done.cancel()

    def _first(self, trees: int) -> list[Future]:
        return [self._trees[tree] for tree in range(trees)]

    def _blocks(self) -> Iterator[tuple[int, int, int]]:
        rows = self.data.rows.test.rows
        share = -(-sum(rows) // (BLOCKS * max(1, sum(self._slots().values()))))
        size = max(LEAST_BLOCK_ROWS, share)
        for shard, count in enumerate(rows):
            for start in range(0, count, size):
                yield shard, start, min(start + size, count)

    async def _store(self, tree: int, row: Mapping[str, Any]) -> None:
        """Write a tree; a full disk does not end the run."""
        task = self._submit("save", store_tree, self.run_dir, tree, self._trees[tree], row)
        try:
            await _result_once(task)
        except ModelError as error:
            self._warn(f"tree {tree + 1} is not stored: {error.message}")

    async def _deliver(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            result = await work
        except LostBeforeAnswer:
            return
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.events.put_nowait(RunFailed(error))
        else:
            if result is not None:
                self.events.put_nowait(result)

    # ------------------------------------------------------------------- result

    async def _store_trees(self, run: TreeRun, reason: str) -> None:
        """Let a worker write the model, or some keep it."""
        trees = self._first(run.best or len(run.history))
        check_any(trees)
        self.event_log.state("writing the model")
        self._reason = reason
        counts = self.data.rows.label_counts
        if self.run_dir is not None:
            header = self.header(reason)
            args = self.run_dir, header, counts, trees
            return await _result_once(self._submit("model", store_model, *args))
        workers = list(self.group.workers.values())[:KEEPERS]
        answers = await self.group.ask_all(workers, "model", keep_trees, self.run, counts, trees)
        self._holders_of_model = [worker for worker in workers if answers[worker.name] is None]
        if not self._holders_of_model:
            failed = next(
                (each for each in answers.values() if not isinstance(each, LostBeforeAnswer)), None
            )
            raise failed or ClusterError(
                "every worker was lost before the model was kept; start the run again"
            )

    def header(self, reason: str) -> ModelHeader:
        """Return the header of the model's files."""
        run, rows = self.tree_run, self.data.rows
        return model_header(
            self.config,
            self._settings.spec,
            training_rows=self._settings.rows,
            feature_base=rows.facts.feature_base,
            ended=reason,
            megabatches=len(run.history),
            best=run.rules.best_megabatch(run.history) if run.rules.keeps_best else 0,
            names=self._names,
        )

    async def close(self) -> None:
        """Release everything."""
        await super().close()
        await self.group.ask_all(self._holders_of_model, "end", drop_model, self.run)
        self._holders_of_model = []

    async def _remove_from_workers(self) -> None:
        self._is_training = False
        await self._working.cancel()
        self._drop_pieces()
        _release(*self._trees.values(), *self._of_rows)
        for parts in self._parts.values():
            _release(parts.order, parts.plan)
        self._parts, self._trees = {}, {}
        for info in self._infos:  # Dask may also have asked a worker that takes no part yet
            if self.group.at(info.address) is None:
                self.group.candidates[info.address] = WorkerHandle(info)
        await super()._remove_from_workers()


async def _result_once(future: Future) -> Any:
    """Wait for the result of a task that nothing else needs, and release it."""
    try:
        return await result_of(future)
    finally:
        future.release()


def _release(*futures: Future) -> None:
    for future in futures:
        future.release()


async def _await(future: Future) -> None:
    """Wait until a task is done, without fetching its result.

    Raises
    ------
    Exception
        That of the task.
    """
    await wait([future])
    if future.status == "error":
        raise await future.exception()


# ------------------------------------------------------------------- tasks on workers


@dataclass(frozen=True)
class Places:
    """The kernels of each worker by its address; an opaque value, which Dask does not traverse."""

    slots: Mapping[str, Slot]

    def here(self) -> Slot:
        """Return that of the worker on which the caller runs."""
        return self.slots.get(get_worker().address, Slot())


def _fitter(run: str, settings: FitSettings) -> TreeFitter:
    return worker_plugin().fitters.setdefault(run, TreeFitter(settings))


def fit_piece(
    run: str, settings: FitSettings, places: Places, part: Partition, counts: Array, order: Array,
    plan: Plan, piece: FitPiece, first: Tree | None,
) -> Array:  # fmt: skip
    """Return a fitted piece, packed."""
    work = counts, order, plan, piece.tree, piece.number, first
    return _fitter(run, settings).fit(places.here(), part, *work)


def rank_block(
    run: str, settings: FitSettings, places: Places, trees: Sequence[Tree], counts: Array,
    shard: int, part: Partition, start: int, stop: int,
) -> MetricSums:  # fmt: skip
    """Return the sums of some test rows' metrics."""
    fitter = _fitter(run, settings)
    return fitter.rank(places.here(), trees, counts, shard, part, start, stop)


def stored_row(settings: FitSettings, read: tuple[Tree, dict[str, Any]]) -> dict[str, Any]:
    """Return the row of the history of a tree that was stored, which must be of these rows."""
    check_stored(settings, *read)
    return read[1]


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def store_tree(run_dir: str, tree: int, arrays: Tree, row: Mapping[str, Any]) -> None:
    """Write a tree, and its row of the history."""
    write_tree(run_dir, tree, arrays, row)


def store_model(
    run_dir: str, header: ModelHeader, counts: Array, trees: Sequence[Tree]
) -> None:  # fmt: skip
    """Write the model."""
    write_model(run_dir, header, named_trees(trees), counts, overwrite=True)


def keep_trees(run: str, counts: Array, trees: Sequence[Tree]) -> None:
    """Keep the model until the run is forgotten."""
    keep_arrays(run, named_trees(trees), counts)
