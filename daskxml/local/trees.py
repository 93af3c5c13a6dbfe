"""Label trees in this process: the tasks of a `TreeRun` on threads, or on virtual clocks.

Both execute the same functions on the same rows, so the trees are the same, bit for bit. On virtual
clocks a piece takes what its products cost, divided by its worker's speed; whoever is free takes
the next piece, and what a lost worker had is fitted again.
"""

from __future__ import annotations

import heapq
import itertools
import math
import queue
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

from daskxml.core.arrays import Array
from daskxml.core.errors import ClusterError, ModelError
from daskxml.core.signals import defer_signals
from daskxml.local.cost import Devices, jitter_factor, whole_ticks
from daskxml.local.driver import Arrival, Change, Loss, Script
from daskxml.local.rows import Rows
from daskxml.metrics import MetricSums
from daskxml.models.trees.clustering import order_of_tree
from daskxml.models.trees.fitting import (
    FitSettings,
    Slot,
    Tree,
    TreeFitter,
    check_stored,
    plan_tree,
    put_together,
    works_of,
)
from daskxml.models.trees.nodes import Plan
from daskxml.records.checkpoint import read_tree, stored_trees, write_tree
from daskxml.session.commands import STOP, EndRun
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
)

_PRODUCTS_S = 5e8  # of a tree's weights with features, each used twice, on one core
Publish = Callable[..., Any]


class TreeTasks:
    """The tasks of a run, and what they have made.

    Parameters
    ----------
    settings, rows
        Of the run.
    slots
        Tasks at a time, for the number of pieces.
    slot
        The kernels.
    run_dir
        Where trees are stored; None: nowhere.
    warn
        Called with one line for the user.

    Attributes
    ----------
    trees
        Those that are put together, by number: the later of two may be there first.
    """

    def __init__(
        self, settings: FitSettings, rows: Rows, slots: int, slot: Slot, run_dir: Any = None,
        warn: Callable[[str], Any] = lambda text: None,
    ) -> None:  # fmt: skip
        self.settings, self.rows, self.slots, self.slot = settings, rows, slots, slot
        self.trees: dict[int, Tree] = {}
        self._run_dir, self._warn = run_dir, warn
        self._fitter = TreeFitter(settings)
        self._made: dict[int, tuple[Array, Plan]] = {}  # orders and plans
        self._pieces: dict[tuple[int, int], Array] = {}

    def load(self, checkpoint: str) -> list[dict[str, Any]]:
        """Take the trees of a run that goes on; return their rows of the history."""
        rows: list[dict[str, Any]] = []
        for path in stored_trees(checkpoint):
            tree, row = read_tree(path)
            check_stored(self.settings, tree, row)
            self.trees[len(rows)] = tree
            rows.append(row)
        return rows

    def do(self, step: Step | FitPiece) -> Result:
        """Execute a step."""
        match step:
            case PlanTree(tree):
                return self._plan(tree)
            case FitPiece():
                return self._fit(step)
            case PutTogether(tree):
                order, plan = self._made.pop(tree)
                pieces = [self._pieces.pop((tree, number)) for number in range(len(plan))]
                self.trees[tree] = put_together(self.settings, order, plan, pieces)
                return Done(step)
            case RankRows(trees):
                return Ranked(trees, self._rank(trees))
            case StoreTree(tree, row):
                self._store(tree, row)
                return Done(step)
            case EndRun():
                raise AssertionError("the end of a run is no task")

    def _plan(self, tree: int) -> Planned:
        settings, counts = self.settings, self.rows.label_counts
        vectors = self.rows.label_vectors
        assert vectors is not None
        order = order_of_tree(vectors, settings.spec, settings.seed, tree)
        plan = plan_tree(settings, counts, order, self.slots, self.slot.device == "cuda")
        self._made[tree] = order, plan
        return Planned(tree, works_of(settings, counts, order, plan))

    def _fit(self, piece: FitPiece) -> Fitted:
        (part,), (order, plan) = self.rows.train, self._made[piece.tree]
        begun_s = time.perf_counter()
        needs_first = piece.tree > 0 and self.settings.spec.hard_negatives > 0
        self._pieces[piece.tree, piece.number] = self._fitter.fit(
            self.slot, part, self.rows.label_counts, order, plan, piece.tree, piece.number,
            self.trees[0] if needs_first else None,
        )  # fmt: skip
        return Fitted(piece.tree, piece.number, "", time.perf_counter() - begun_s)

    def _rank(self, trees: int) -> MetricSums:
        sums = MetricSums.zero(self.settings.ks)
        for shard, part in enumerate(self.rows.test):
            counts, chosen = self.rows.label_counts, self.first(trees)
            sums += self._fitter.rank(self.slot, chosen, counts, shard, part, 0, part.rows)
        return sums

    def first(self, trees: int) -> list[Tree]:
        """Return the first trees, so many."""
        return [self.trees[tree] for tree in range(trees)]

    def _store(self, tree: int, row: Mapping[str, Any]) -> None:
        """Write a tree; a full disk does not end the run."""
        try:
            write_tree(self._run_dir, tree, self.trees[tree], row)
        except ModelError as error:
            self._warn(f"tree {tree + 1} is not stored: {error.message}")


class Pool(Protocol):
    """Executes steps, on threads or on virtual clocks."""

    @property
    def slots(self) -> Mapping[str, int]:
        """Tasks that each worker computes at a time."""

    @property
    def now_s(self) -> float:
        """The time."""

    def has_room(self) -> bool:
        """Whether a piece could begin now."""

    def start(self, step: Step | FitPiece) -> None:
        """Start a step."""

    def next(self, run: TreeRun, left_s: float) -> list[Step]:
        """Wait for the next result, ``left_s`` at most; return the steps that follow."""


def fit_trees(run: TreeRun, pool: Pool, publish: Publish) -> str:
    """Execute a run to its end; return why it ended."""
    steps, published = run.begin(pool.slots, pool.now_s), len(run.history)
    while True:
        while published < len(run.history):
            published += 1
            if publish("megabatch", row=run.history[published - 1]) is STOP:
                steps = [*steps, *run.stop(STOP.value, pool.now_s)]
        for step in steps:
            if isinstance(step, EndRun):
                return step.reason
            pool.start(step)
        while pool.has_room() and (piece := run.take(pool.now_s)):
            pool.start(piece)
        steps = pool.next(run, run.time_left_s(pool.now_s))
        if run.time_left_s(pool.now_s) <= 0.0:
            steps = [*steps, *run.stop("minutes", pool.now_s)]


class Threads:
    """A pool of threads in this process; a context that is left when the run ends.

    ``name`` is that of the process in the history.
    """

    def __init__(self, name: str, tasks: TreeTasks, threads: int) -> None:
        self._name, self._tasks, self._threads = name, tasks, threads
        self.slots = {name: threads}
        self._executor = ThreadPoolExecutor(threads, "daskxml-tree")
        self._results: queue.SimpleQueue[tuple[Result | BaseException, float]] = queue.SimpleQueue()
        self._under_way = 0

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *error: object) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    @property
    def now_s(self) -> float:
        """The time."""
        return time.monotonic()

    def has_room(self) -> bool:
        """Whether a thread is free."""
        return self._under_way < self._threads

    def start(self, step: Step | FitPiece) -> None:
        """Start a step."""
        self._under_way += 1
        self._executor.submit(self._do, step)

    def _do(self, step: Step | FitPiece) -> None:
        begun_s = time.perf_counter()
        try:
            result = self._tasks.do(step)
        except BaseException as error:
            self._results.put((error, 0.0))
        else:
            self._results.put((result, time.perf_counter() - begun_s))

    def next(self, run: TreeRun, left_s: float) -> list[Step]:
        """Wait for the next result."""
        try:
            result, busy_s = self._results.get(timeout=left_s if left_s < math.inf else None)
        except queue.Empty:
            return []
        self._under_way -= 1
        if isinstance(result, BaseException):
            raise result
        if isinstance(result, Fitted):
            result = replace(result, worker=self._name)
        else:
            run.worked(self._name, busy_s)
        return run.handle(result, self.now_s)


@dataclass
class _Worker:
    """A virtual worker, and when it is free."""

    name: str
    speed: float
    free_s: float


class Clocks:
    """Workers of some speeds on virtual clocks.

    Parameters
    ----------
    tasks
        Of the run.
    speeds, devices, changes
        Of the simulation.
    publish
        Called with events.
    """

    def __init__(
        self, tasks: TreeTasks, speeds: Mapping[str, float], devices: Devices,
        changes: Iterable[Change], publish: Publish,
    ) -> None:  # fmt: skip
        assert devices.cost is not None
        self._tasks, self._cost, self._publish = tasks, devices.cost, publish
        self._script = Script(tuple(changes))
        self._workers = {name: _Worker(name, speed, 0.0) for name, speed in speeds.items()}
        self._ends: list[tuple[float, int, str, Step | FitPiece, float]] = []
        self._numbers = itertools.count()
        self._message_s = whole_ticks(devices.network.message_s)
        self.now_s, self._is_interrupted = 0.0, False
        self._share_s = 0.0  # of an evaluation, for each worker

    @property
    def slots(self) -> Mapping[str, int]:
        """One task each."""
        return dict.fromkeys(self._workers, 1)

    def has_room(self) -> bool:
        """Whether a worker is free."""
        return any(worker.free_s <= self.now_s for worker in self._workers.values())

    def start(self, step: Step | FitPiece) -> None:
        """Start a step; what it computes is computed when it ends."""
        name, begun_s, busy_s = "", self.now_s + self._message_s, 0.0
        match step:
            case FitPiece():
                free = [worker for worker in self._workers.values() if worker.free_s <= self.now_s]
                worker = min(free, key=lambda each: each.free_s)
                name, busy_s = worker.name, self._piece_s(step, worker)
                worker.free_s = begun_s + busy_s + self._message_s
            case RankRows():
                busy_s = self._rank_s()
            case StoreTree(tree):
                nbytes = sum(int(array.nbytes) for array in self._tasks.trees[tree].values())
                busy_s = whole_ticks(nbytes / self._cost.storage_bytes_s)
        end_s = begun_s + busy_s + self._message_s
        heapq.heappush(self._ends, (end_s, next(self._numbers), name, step, busy_s))

    def _piece_s(self, piece: FitPiece, worker: _Worker) -> float:
        """Return how long a piece takes: a product for each feature, child and pass."""
        settings, facts = self._tasks.settings, self._tasks.rows.facts
        nonzeros = max(1, facts.nonzeros // facts.rows)
        products = piece.work * nonzeros * settings.spec.fit.passes
        place = worker.name, piece.tree, piece.number
        factor = jitter_factor(self._cost.jitter, settings.seed, *place)
        return whole_ticks(products / _PRODUCTS_S / worker.speed * factor)

    def _rank_s(self) -> float:
        """Return how long all workers take for the test rows, each for its share by speed.

        A worker does its share before its next piece.
        """
        cost = self._cost
        rows = sum(part.rows for part in self._tasks.rows.test)
        nonzeros = sum(part.features.nonzeros for part in self._tasks.rows.test)
        seconds = cost.batch_s(rows, nonzeros) * cost.evaluation_share
        if not self._workers:
            return whole_ticks(seconds)
        share_s = whole_ticks(seconds / sum(worker.speed for worker in self._workers.values()))
        self._share_s = share_s
        for worker in self._workers.values():
            worker.free_s = max(worker.free_s, self.now_s) + share_s
        return max(worker.free_s for worker in self._workers.values()) - self.now_s

    def next(self, run: TreeRun, left_s: float) -> list[Step]:
        """Advance to the next result or change of workers.

        Ctrl-C ends the run; a second one interrupts it.
        """
        steps: list[Step] = []
        try:
            with defer_signals():
                steps = self._advance(run, left_s)
        except KeyboardInterrupt:
            if self._is_interrupted:
                raise
            self._is_interrupted = True
            steps = [*steps, *run.stop("interrupt", self.now_s)]
        return steps

    def _advance(self, run: TreeRun, left_s: float) -> list[Step]:
        ends_s = self._ends[0][0] if self._ends else math.inf
        free_s = [worker.free_s for worker in self._workers.values() if worker.free_s > self.now_s]
        wakes_s = min(free_s, default=math.inf) if run.has_pending() else math.inf
        at_s = min(ends_s, self._script.next_s, wakes_s, self.now_s + left_s)
        if at_s == math.inf:
            raise ClusterError(
                "every worker was lost, and no other comes; let one arrive, or lose less"
            )
        self.now_s = max(self.now_s, at_s)
        if ends_s <= at_s:
            return self._finish(run)
        if self._script.next_s <= at_s:
            self._change(self._script.pop(), run)
        return []

    def _finish(self, run: TreeRun) -> list[Step]:
        *_, name, step, busy_s = heapq.heappop(self._ends)
        if isinstance(step, FitPiece) and not run.wants(step.tree):
            return []
        result = self._tasks.do(step)
        if isinstance(result, Fitted):
            result = replace(result, worker=name, busy_s=busy_s)
        elif isinstance(result, Ranked):
            for worker in self._workers:
                run.worked(worker, self._share_s)
        return run.handle(result, self.now_s)

    def _change(self, change: Change, run: TreeRun) -> None:
        name = change.worker
        if isinstance(change, Arrival):
            self._workers[name] = _Worker(name, change.speed, self.now_s)
        elif isinstance(change, Loss) and name in self._workers:
            del self._workers[name]
            run.lose(name)
            lost = [end for end in self._ends if end[2] == name]
            self._ends = [end for end in self._ends if end[2] != name]
            heapq.heapify(self._ends)
            for _, _, _, step, _ in lost:
                assert isinstance(step, FitPiece)
                run.give_back(step)
        kind = "joined" if isinstance(change, Arrival) else "lost"
        run.slots = dict(self.slots)
        run.change_worker(kind, name, self.now_s)
        self._publish("worker", event=kind, worker=name, at_s=self.now_s)
