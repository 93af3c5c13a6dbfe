"""A run that fits a model in tasks, from its first plan to its end: rows of the history, stopping.

For each member of the model, as a label tree::

    plan ─▶ fit its pieces ─▶ put together ─▶ rank the test rows ─▶ store ─▶ its row is closed

It is written once, as generators that submit tasks to a `daskxml.session.task_pool.TaskPool` and
wait for them: on a cluster the tasks are Dask's, in a process they run on threads, and in the
simulator on virtual clocks. Members are closed in their order. The next one is planned as soon as
this one is, and its pieces begin once none of this one waits, so that nobody waits for the slowest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from daskxml.config import RunConfig
from daskxml.core.errors import TrainingError
from daskxml.metrics import MetricSums
from daskxml.models.fitting import FitSettings, by_fitter, stored_member, stored_row
from daskxml.session.commands import STOP
from daskxml.session.setup import check_untested
from daskxml.session.stopping import StoppingRules, spent_s
from daskxml.session.task_pool import HERE, PIECE, Task, TaskPool
from daskxml.strategies.batches import apportion

AHEAD = 2  # members that are not closed, at most
AT_ONCE = ("minutes", STOP.value, "client gone")  # others end the run with the member under way
BLOCKS = 4  # of test rows, for each task at a time
LEAST_BLOCK_ROWS = 64

Steps = Generator[float]  # yields until when to wait; to go on after whatever happens before


@dataclass(frozen=True)
class FitData:
    """The rows of a run, or what stands for them in a task's arguments.

    Attributes
    ----------
    train, counts, prepared
        All training rows; ``(labels,)``, how many of them have each label; and what else `prepare`
        of the model's kind has returned.
    test, test_rows
        Partitions, and how many rows each has.
    """

    train: Any
    counts: Any
    prepared: Any
    test: Sequence[Any]
    test_rows: Sequence[int]


@dataclass
class _Member:
    """A member that is not closed."""

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


class FitRun:
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
        A function that writes a member, and the run's directory; None: they are not stored.
    before
        Members that the run's are added to; they are ranked with, and no part of its history.

    Attributes
    ----------
    history
        The rows of closed members.
    members
        What stands for those that are put together.
    stage, member
        What the run does, as a state for the user, and what it calls a member.
    """

    def __init__(
        self, settings: FitSettings, data: FitData, pool: TaskPool, publish: Callable[..., Any],
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
        self.members: list[Any] = []
        self.stage, self.stop_reason, self.member = "training", "", settings.config.kind.member
        self._open: list[_Member] = []
        self._events: list[dict[str, Any]] = []  # since the last row
        self._begun_s, self._last_fitted_s, self._wall_before_s = 0.0, -math.inf, 0.0
        limits = config.training  # on the members, of which one is given
        self._first, self._last = 0, limits.trees or math.ceil(limits.epochs)
        pool.changed = self._worker_changed

    # ------------------------------------------------------------------ progress

    @property
    def epoch(self) -> float:
        """Members so far, and the share that is fitted of those under way."""
        return len(self.history) + sum(each.share for each in self._open)

    @property
    def best(self) -> int:
        """How many members rank best, where the best model is kept; 0: all are kept."""
        return self.rules.best_megabatch(self.history) if self.rules.config.keeps_best else 0

    def model_members(self) -> list[Any]:
        """Return what stands for those of the model: all, or the first ones that rank best.

        Raises
        ------
        TrainingError
            If the run has none of its own, saying what to do.
        """
        if not self.members:
            first = f"the run ended before its first {self.member} was complete"
            raise TrainingError(f"{first}: give it more minutes")
        return [*self._before, *self.members[: self.best or len(self.history)]]

    def _worker_changed(self, kind: str, worker: str) -> None:
        """Note in the history that a worker "joined" or was "lost"."""
        now_s, begun_s = self._pool.now_s, self._begun_s
        if self._open:
            begun_s = min(self._open[0].begun_s, now_s)
        self._publish("worker", event=kind, worker=worker)
        self._events.append(
            {"kind": kind, "worker": worker, "rows_returned": 0, "after_s": now_s - begun_s}
        )

    def _time_left_s(self, member: _Member) -> float:
        """Return how long the run may still fit; infinite where nothing limits it."""
        now_s = self._pool.now_s
        begun_s = min(now_s, max(member.begun_s, self._last_fitted_s))
        return self.rules.time_left_s(spent_s(self.history)) - (now_s - begun_s)

    # ------------------------------------------------------------------- the run

    def stop(self, reason: str) -> None:
        """End the run, with the member under way unless the reason is one of `AT_ONCE`."""
        self.stop_reason = self.stop_reason or reason
        self._drop(self._open[1:])

    def load(self, files: Iterable[Any], read: Callable[[Any], Any]) -> Steps:
        """Take the stored members of a run that goes on."""
        submit, settings = self._pool.submit, self._settings
        stored = [submit("read", read, str(file)) for file in files]
        rows = [submit("row", stored_row, settings, each, is_wanted=True) for each in stored]
        members = [submit("member", stored_member, each) for each in stored]
        yield from self._until([*rows, *members])
        self._pool.drop(stored)
        self.history = [row.value for row in rows]
        self.members = [member.result for member in members]

    def fit(self) -> Steps:
        """Fit members until a rule or a stop ends the run: ``stop_reason``."""
        self._begun_s, self._first = self._pool.now_s, len(self.history)
        self._wall_before_s = self.history[-1]["wall_s"] if self.history else 0.0
        self.stop_reason = self.stop_reason or self.rules.reached(
            self.history, spent_s(self.history)
        )
        while not self.stop_reason:
            member = self._open[0] if self._open else self._plan()
            if (yield from self._is_fitted(member)):
                yield from self._close(member)
        self._drop(self._open)

    def _plan(self) -> _Member:
        """Plan the next member; its pieces are submitted once it is planned."""
        number, pool = len(self.history) + len(self._open), self._pool
        slots, of_model = max(1, sum(pool.slots.values())), number + len(self._before)
        data = self._data
        order = pool.submit("order", by_fitter, HERE, "order", data.prepared, of_model)
        args = HERE, "plan", data.train, data.counts, order, slots, pool.on_gpus
        plan = pool.submit("plan", by_fitter, *args, then=lambda _: self._submit_pieces(member))
        member = _Member(number, order, plan)
        self._open.append(member)
        return member

    def _submit_pieces(self, member: _Member) -> None:
        pool, order = self._pool, member.order
        number, plan = member.number + len(self._before), member.plan.value
        if member.number == self._first:
            self._publish("memory", text=plan.needs)
        args = HERE, "fit", self._data.train, self._data.counts, order, number
        member.pieces = [
            pool.submit(PIECE, by_fitter, *args, piece, work=piece.work) for piece in plan.pieces
        ]
        member.together = pool.submit(
            "member", by_fitter, HERE, "put_together", order, plan, member.pieces
        )

    def _is_fitted(self, member: _Member) -> Generator[float, None, bool]:
        """Wait until a member is put together; return False where the run ends before."""
        while member.together is None or not member.together.is_done:
            left_s = math.inf
            if member.fitted_s == math.inf:
                left_s = self._time_left_s(member)
                if left_s <= 0.0:
                    self.stop_reason = self.stop_reason or "minutes"
                if self.stop_reason in AT_ONCE:
                    return False
            is_ahead = len(self._open) == AHEAD or member.number + len(self._open) == self._last
            if member.together is not None and not (is_ahead or self.stop_reason):
                self._plan()
            yield self._pool.now_s + left_s
        return True

    def _close(self, member: _Member) -> Steps:
        """Evaluate and store a member that is put together, and close its row."""
        assert member.together is not None
        row = self._row(member, member.together.end_s)
        self.members.append(member.together.result)
        self._pool.drop([member.order, *member.pieces])
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
            yield from self._write(member.number, row)
        self._open.remove(member)
        self._last_fitted_s, self.stage = member.fitted_s, "training"
        self.history.append(row)
        if self._publish("megabatch", row=row) is STOP:
            self.stop(STOP.value)

    def _evaluate(self, row: dict[str, Any]) -> Steps:
        self.stage, begun_s, counts = "evaluating", self._pool.now_s, self._data.counts
        args = HERE, "rank", [*self._before, *self.members], counts
        blocks = [
            self._pool.submit("eval", by_fitter, *args, *block, is_wanted=True)
            for block in self._blocks()
        ]
        yield from self._until(blocks)
        self._pool.drop(blocks)
        none = MetricSums.zero(self.rules.config.evaluation.k)
        sums = sum((block.value for block in blocks), none)
        row["metrics"] = sums.result() if sums.rows else {}
        row["eval_s"] = self._pool.now_s - begun_s
        if reason := self.rules.reached_in_evaluation([*self.history, row]):
            self.stop(reason)

    def _blocks(self) -> Iterable[tuple[int, Any, int, int]]:
        """Yield blocks of the test rows: shard, partition, first row, row after the last."""
        data, slots = self._data, max(1, sum(self._pool.slots.values()))
        size = max(LEAST_BLOCK_ROWS, -(-sum(data.test_rows) // (BLOCKS * slots)))
        for shard, (part, rows) in enumerate(zip(data.test, data.test_rows, strict=True)):
            for start in range(0, rows, size):
                yield shard, part, start, min(start + size, rows)

    def _write(self, number: int, row: dict[str, Any]) -> Steps:
        """Store a member with its row; a full disk does not end the run."""
        assert self._store is not None
        (store, run_dir), self.stage = self._store, f"writing a {self.member}"
        args = run_dir, number, self.members[number], row
        task = self._pool.submit("save", store, *args, is_wanted=True)
        yield from self._until([task])
        if task.value:
            self._publish("warning", text=f"{self.member} {number + 1} is not stored: {task.value}")

    def _until(self, tasks: Sequence[Task]) -> Steps:
        while not all(task.is_done for task in tasks):
            yield math.inf

    def _drop(self, members: Sequence[_Member]) -> None:
        """Forget members that are not to be closed."""
        for member in list(members):
            self._pool.drop(member.tasks())
            self._open.remove(member)

    # ----------------------------------------------------------------- the record

    def _row(self, member: _Member, now_s: float) -> dict[str, Any]:
        """Return the row of a member; what is measured later is filled in later."""
        fitted_s, begun_s = member.fitted_s, max(member.begun_s, self._last_fitted_s)
        train_s, waited_s = max(0.0, fitted_s - begun_s), now_s - fitted_s
        is_beside = any(each.begun_s < now_s for each in self._open if each is not member)
        return {
            "megabatch": member.number + 1,
            "rows": self._settings.rows * (member.number + 1),
            "epoch": float(member.number + 1),
            "wall_s": 0.0,
            "train_s": train_s,
            "merge_s": 0.0 if is_beside else waited_s,
            "eval_s": 0.0,
            "metrics": {},
            "pieces": len(member.pieces),
            "workers": self._shares(member.pieces, train_s),
            "perturbed": False,
            "merged_bytes": 0,
            "moved_bytes": 0,
            "notes": {},
            "events": [],
        }

    def _shares(self, pieces: Sequence[Task], train_s: float) -> dict[str, dict[str, Any]]:
        """Return what each worker did of a member; rows are shared by its pieces' work."""
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
