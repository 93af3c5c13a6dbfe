"""A run of label trees, from its first plan to its end: tasks, rows of the history, stopping.

For each tree::

    plan ─▶ fit its pieces ─▶ put together ─▶ rank the test rows ─▶ store ─▶ its row is closed

It is written once, as generators that submit tasks to a `daskxml.session.task_pool.TaskPool` and
wait for them: on a cluster the tasks are Dask's, in a process they run on threads, and in the
simulator on virtual clocks. Trees are closed in their order. The next tree is planned as soon as
this one is, and its pieces begin once none of this one waits, so that nobody waits for the slowest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from daskxml.config import RunConfig
from daskxml.metrics import MetricSums
from daskxml.models.trees.fitting import (
    FitSettings,
    fit_piece,
    order_tree,
    plan_tree,
    put_together,
    rank_block,
    stored_row,
    stored_tree,
)
from daskxml.session.commands import STOP
from daskxml.session.history import worker_event
from daskxml.session.setup import check_untested
from daskxml.session.stopping import StoppingRules, spent_s
from daskxml.session.task_pool import HERE, PIECE, Task, TaskPool
from daskxml.strategies.batches import apportion

AHEAD = 2  # trees that are not closed, at most
AT_ONCE = ("minutes", STOP.value, "client gone")  # others end the run with the tree under way
BLOCKS = 4  # of test rows, for each task at a time
LEAST_BLOCK_ROWS = 64

Steps = Generator[float]  # yields until when to wait; to go on after whatever happens before


@dataclass(frozen=True)
class TreeData:
    """The rows of a run, or what stands for them in a task's arguments.

    Attributes
    ----------
    train, counts, vectors
        All training rows; ``(labels,)``, how many of them have each label; the labels' vectors.
    test, test_rows
        Partitions, and how many rows each has.
    """

    train: Any
    counts: Any
    vectors: Any
    test: Sequence[Any]
    test_rows: Sequence[int]


@dataclass
class _Tree:
    """A tree that is not closed."""

    number: int
    order: Task
    plan: Task
    pieces: list[Task] = field(default_factory=list)
    together: Task | None = None  # once it is planned

    @property
    def begun_s(self) -> float:
        return min((piece.begun_s for piece in self.pieces), default=math.inf)

    @property
    def fitted_s(self) -> float:
        """When the last piece was fitted; infinite before."""
        ends = (piece.end_s if piece.is_done else math.inf for piece in self.pieces)
        return max(ends, default=math.inf)

    @property
    def share(self) -> float:
        """How much of it is fitted."""
        done = sum(piece.work for piece in self.pieces if piece.is_done)
        return done / max(1.0, sum(piece.work for piece in self.pieces))

    def tasks(self) -> list[Task]:
        rest = [] if self.together is None else [self.together]
        return [self.order, self.plan, *self.pieces, *rest]


class TreeRun:
    """One run.

    Parameters
    ----------
    settings, data
        What the tasks have in common, and the rows.
    pool
        Computes the tasks.
    publish
        Called with the kind and the values of every event for the user; may return `STOP`.
    store
        A function that writes a tree, and the run's directory; None: trees are not stored.
    before
        Trees that the run's are added to; they are ranked with, and no part of its history.

    Attributes
    ----------
    history
        The rows of closed trees.
    trees
        What stands for the trees that are put together.
    stage
        What the run does, as a state for the user.
    """

    def __init__(
        self, settings: FitSettings, data: TreeData, pool: TaskPool, publish: Callable[..., Any],
        store: tuple[Callable[..., str], str] | None = None, before: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        config: RunConfig = settings.config
        self._settings, self._data, self._pool = settings, data, pool
        self._publish, self._store, self._before = publish, store, before
        self._has_tests = bool(sum(data.test_rows))
        if not self._has_tests:
            check_untested(config)
        self.rules = StoppingRules(config, can_checkpoint=store is not None)
        self.history: list[dict[str, Any]] = []
        self.trees: list[Any] = []
        self.stage, self.stop_reason = "training", ""
        self._open: list[_Tree] = []
        self._events: list[dict[str, Any]] = []  # since the last row
        self._begun_s, self._last_fitted_s, self._wall_before_s = 0.0, -math.inf, 0.0
        self._first, self._last = 0, config.training.trees  # trees: where it goes on and ends
        pool.changed = self._worker_changed

    # ------------------------------------------------------------------ progress

    @property
    def epoch(self) -> float:
        """Trees so far, and the share that is fitted of those under way."""
        return len(self.history) + sum(tree.share for tree in self._open)

    @property
    def best(self) -> int:
        """How many trees rank best, where the best model is kept; 0: all are kept."""
        return self.rules.best_megabatch(self.history) if self.rules.config.keeps_best else 0

    def model_trees(self) -> list[Any]:
        """Return what stands for the trees of the model: all, or the first ones that rank best."""
        return [*self._before, *self.trees[: self.best or len(self.history)]]

    def _worker_changed(self, kind: str, worker: str) -> None:
        """Note in the history that a worker "joined" or was "lost"."""
        now_s, begun_s = self._pool.now_s, self._begun_s
        if self._open:
            begun_s = min(self._open[0].begun_s, now_s)
        self._publish("worker", event=kind, worker=worker)
        self._events.append(worker_event(kind, worker, now_s - begun_s))

    def _time_left_s(self, tree: _Tree) -> float:
        """Return how long the run may still fit; infinite where nothing limits it."""
        now_s = self._pool.now_s
        begun_s = min(now_s, max(tree.begun_s, self._last_fitted_s))
        return self.rules.time_left_s(spent_s(self.history)) - (now_s - begun_s)

    # ------------------------------------------------------------------- the run

    def stop(self, reason: str) -> None:
        """End the run, with the tree under way unless the reason is one of `AT_ONCE`."""
        self.stop_reason = self.stop_reason or reason
        self._drop(self._open[1:])

    def load(self, files: Iterable[Any], read: Callable[[Any], Any]) -> Steps:
        """Take the stored trees of a run that goes on."""
        submit, settings = self._pool.submit, self._settings
        stored = [submit("read", read, str(file)) for file in files]
        rows = [submit("row", stored_row, settings, each, is_wanted=True) for each in stored]
        trees = [submit("tree", stored_tree, each) for each in stored]
        yield from self._until([*rows, *trees])
        self._pool.drop(stored)
        self.history = [row.value for row in rows]
        self.trees = [tree.result for tree in trees]

    def fit(self) -> Steps:
        """Fit trees until a rule or a stop ends the run: ``stop_reason``."""
        self._begun_s, self._first = self._pool.now_s, len(self.history)
        self._wall_before_s = self.history[-1]["wall_s"] if self.history else 0.0
        self.stop_reason = self.stop_reason or self.rules.reached(
            self.history, spent_s(self.history)
        )
        while not self.stop_reason:
            tree = self._open[0] if self._open else self._plan()
            if (yield from self._is_fitted(tree)):
                yield from self._close(tree)
        self._drop(self._open)

    def _plan(self) -> _Tree:
        """Plan the next tree; its pieces are submitted once it is planned."""
        number, pool = len(self.history) + len(self._open), self._pool
        slots, of_model = max(1, sum(pool.slots.values())), number + len(self._before)
        data = self._data
        order = pool.submit("order", order_tree, self._settings, data.vectors, of_model)
        args = HERE, data.train, data.counts, order, slots, pool.on_gpus
        plan = pool.submit("plan", plan_tree, *args, then=lambda _: self._submit_pieces(tree))
        tree = _Tree(number, order, plan)
        self._open.append(tree)
        return tree

    def _submit_pieces(self, tree: _Tree) -> None:
        pool = self._pool
        number, plan = tree.number + len(self._before), tree.plan.value
        if tree.number == self._first:
            self._publish("memory", text=plan.needs)
        args = HERE, self._data.train, self._data.counts, tree.order, number
        tree.pieces = [
            pool.submit(PIECE, fit_piece, *args, piece, work=piece.work) for piece in plan.pieces
        ]
        tree.together = pool.submit("tree", put_together, tree.order, plan, tree.pieces)

    def _is_fitted(self, tree: _Tree) -> Generator[float, None, bool]:
        """Wait until a tree is put together; return False where the run ends before."""
        while tree.together is None or not tree.together.is_done:
            left_s = math.inf
            if tree.fitted_s == math.inf:
                left_s = self._time_left_s(tree)
                if left_s <= 0.0:
                    self.stop_reason = self.stop_reason or "minutes"
                if self.stop_reason in AT_ONCE:
                    return False
            is_ahead = len(self._open) == AHEAD or tree.number + len(self._open) == self._last
            if tree.together is not None and not (is_ahead or self.stop_reason):
                self._plan()
            yield self._pool.now_s + left_s
        return True

    def _close(self, tree: _Tree) -> Steps:
        """Evaluate and store a tree that is put together, and close its row."""
        assert tree.together is not None
        row = self._row(tree, tree.together.end_s)
        self.trees.append(tree.together.result)
        self._pool.drop([tree.order, *tree.pieces])
        history = [*self.history, row]
        if reason := self.stop_reason or self.rules.reached(history, spent_s(history)):
            self.stop(reason)
        if self.rules.is_evaluation_due(
            history, has_tests=self._has_tests, is_last=bool(self.stop_reason)
        ):
            yield from self._evaluate(row)
        row["wall_s"] = self._wall_before_s + self._pool.now_s - self._begun_s
        row["events"], self._events = self._events, []
        if self._store is not None:
            yield from self._write(tree.number, row)
        self._open.remove(tree)
        self._last_fitted_s, self.stage = tree.fitted_s, "training"
        self.history.append(row)
        if self._publish("megabatch", row=row) is STOP:
            self.stop(STOP.value)

    def _evaluate(self, row: dict[str, Any]) -> Steps:
        self.stage, begun_s, counts = "evaluating", self._pool.now_s, self._data.counts
        trees = [*self._before, *self.trees]
        blocks = [
            self._pool.submit("eval", rank_block, HERE, trees, counts, *block, is_wanted=True)
            for block in self._blocks()
        ]  # fmt: skip
        yield from self._until(blocks)
        self._pool.drop(blocks)
        sums = sum((block.value for block in blocks), MetricSums.zero(self._settings.ks))
        metrics = row["metrics"] = sums.result() if sums.rows else {}
        row["eval_s"] = self._pool.now_s - begun_s
        if metrics and self.rules.is_target_met(metrics):
            self.stop("target")
        if self.rules.is_patience_over([*self.history, row]):
            self.stop("patience")

    def _blocks(self) -> Iterable[tuple[int, Any, int, int]]:
        """Yield blocks of the test rows: shard, partition, first row, row after the last."""
        data, slots = self._data, max(1, sum(self._pool.slots.values()))
        size = max(LEAST_BLOCK_ROWS, -(-sum(data.test_rows) // (BLOCKS * slots)))
        for shard, (part, rows) in enumerate(zip(data.test, data.test_rows, strict=True)):
            for start in range(0, rows, size):
                yield shard, part, start, min(start + size, rows)

    def _write(self, number: int, row: dict[str, Any]) -> Steps:
        """Store a tree with its row; a full disk does not end the run."""
        assert self._store is not None
        (store, run_dir), self.stage = self._store, "writing a tree"
        args = run_dir, number, self.trees[number], row
        task = self._pool.submit("save", store, *args, is_wanted=True)
        yield from self._until([task])
        if task.value:
            self._publish("warning", text=f"tree {number + 1} is not stored: {task.value}")

    def _until(self, tasks: Sequence[Task]) -> Steps:
        while not all(task.is_done for task in tasks):
            yield math.inf

    def _drop(self, trees: Sequence[_Tree]) -> None:
        """Forget trees that are not to be closed."""
        for tree in list(trees):
            self._pool.drop(tree.tasks())
            self._open.remove(tree)

    # ----------------------------------------------------------------- the record

    def _row(self, tree: _Tree, now_s: float) -> dict[str, Any]:
        """Return the row of a tree; what is measured later is filled in later."""
        fitted_s, begun_s = tree.fitted_s, max(tree.begun_s, self._last_fitted_s)
        train_s, waited_s = max(0.0, fitted_s - begun_s), now_s - fitted_s
        is_beside = any(each.begun_s < now_s for each in self._open if each is not tree)
        return {
            "megabatch": tree.number + 1,
            "rows": self._settings.rows * (tree.number + 1),
            "epoch": float(tree.number + 1),
            "wall_s": 0.0,
            "train_s": train_s,
            "merge_s": 0.0 if is_beside else waited_s,
            "overlapped_s": waited_s if is_beside else 0.0,
            "eval_s": 0.0,
            "metrics": {},
            "pieces": len(tree.pieces),
            "workers": self._shares(tree.pieces, train_s),
            "perturbed": False,
            "merged_bytes": 0,
            "moved_bytes": 0,
            "notes": {},
            "events": [],
        }

    def _shares(self, pieces: Sequence[Task], train_s: float) -> dict[str, dict[str, Any]]:
        """Return what each worker did of a tree; rows are shared out by the work of its pieces."""
        slots, beside_s = self._pool.slots, self._pool.busy_s
        done: dict[str, list[int]] = {
            name: [] for name in (*slots, *(piece.worker for piece in pieces))
        }
        for number, piece in enumerate(pieces):
            done[piece.worker].append(number)
        works = {name: sum(pieces[each].work for each in own) for name, own in done.items()}
        rows, shares = apportion(self._settings.rows, works), {}
        for name, own in done.items():
            busy_s = sum(pieces[each].busy_s for each in own) + beside_s.pop(name, 0.0)
            busy_s = min(busy_s / slots.get(name, 1), train_s)  # some was before or after
            shares[name] = {
                "updates": len(own),
                "rows": rows[name],
                "batch_rows": 0,
                "lr": 0.0,
                "weight": works[name] / sum(works.values()),
                "busy_s": busy_s,
                "idle_s": max(0.0, train_s - busy_s),
                "leases": [],
                "pieces": own,
            }
        return shares
