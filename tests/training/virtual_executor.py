"""An executor of a session's orders on a virtual clock, which keeps its own books of every row."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace

from daskxml.metrics import LossSum, MetricSums
from daskxml.strategies.adaptive_sgd import AdaptiveSgd, Config
from daskxml.strategies.protocol import Device, Measured, WorkerJoined, WorkerLost
from daskxml.training.orders import (
    CheckpointOrder,
    CheckpointReport,
    EvaluateOrder,
    EvaluationReport,
    GangOrder,
    GangReport,
    GangResult,
    LeaseOrder,
    LeaseReport,
    MeasureOrder,
    MergeOrder,
    MergeReport,
    PlaceOrder,
    RestartOrder,
    StopOrder,
)
from daskxml.training.placement import Placement
from daskxml.training.session import Limits, Session

MEGABATCH_ROWS = 64  # 8 batches of 8
STAGES = ("train", "merge", "evaluate", "checkpoint")


def rows_of(spans):
    """Return (epoch, stream, place) of every row."""
    return [(e, s, place) for e, s, start, stop in spans for place in range(start, stop)]


@dataclass
class Task:
    """Something under way; ``worker`` is None for what all do together."""

    order: object
    worker: str | None
    end_s: float


@dataclass
class Replica:
    """What a worker has done since the last merge."""

    speed: float
    rows: Counter = field(default_factory=Counter)
    free_s: float = 0.0
    threads: int = 0


class VirtualExecutor:
    """Carries out a session's orders; losses and arrivals come from the test.

    ``pools`` has the threads of those workers that are pools.
    """

    def __init__(self, session, speeds, now_s=100.0, good_after=10**9, pools=None):
        self.session, self.now_s, self.good_after = session, now_s, good_after
        threads = pools or {}
        self.workers = {n: Replica(s, threads=threads.get(n, 0)) for n, s in speeds.items()}
        self.shared = Counter()  # what lost workers did to a shared model since the last merge
        self.tasks: list[Task] = []
        self.log: list[object] = []  # every order
        self.merged: list[Counter] = []  # what went into each merge, by the executor's own count
        self.stored: list[dict] = []
        self.ended = ""
        devices = {name: Device(count) for name, count in threads.items()}
        self.carry_out(session.start(list(speeds), now_s, devices))

    # ------------------------------------------------------------------ orders

    def carry_out(self, orders):
        for order in orders:
            assert not self.ended, f"{order} after the end"
            self.log.append(order)
            match order:
                case LeaseOrder(worker=name):
                    replica = self.workers[name]
                    replica.free_s = max(replica.free_s, self.now_s) + order.rows / replica.speed
                    self._start(order, name, replica.free_s)
                case EvaluateOrder(worker=name) | CheckpointOrder(worker=name):
                    assert name in self.workers
                    self._start(order, name, self.now_s + 0.5)
                case GangOrder(workers=names):
                    assert set(names) <= self.workers.keys()
                    assert not self.tasks, "a gang while something is under way"
                    slowest = max(order.rows_of(r) / self._speed(n) for r, n in enumerate(names))
                    self._start(order, None, self.now_s + slowest)
                case MeasureOrder(workers=names):
                    assert set(names) == self.workers.keys()
                    assert not self.tasks, "a barrier while something is under way"
                    self._start(order, None, self.now_s + 0.125)
                case MergeOrder(weights=weights):
                    assert weights.keys() == self.workers.keys()
                    self._start(order, None, self.now_s + 0.25)
                case RestartOrder():
                    self.ended = "restart"
                case StopOrder(reason):
                    assert not self.tasks
                    self.ended = reason
                case PlaceOrder():
                    pass

    def _speed(self, name):
        return self.workers[name].speed

    def _start(self, order, worker, end_s):
        self.tasks.append(Task(order, worker, end_s))

    # ------------------------------------------------------------------- clock

    def advance(self, choice=None):
        """Finish the next task in time, or any that could be next in another world."""
        first = {}
        for task in self.tasks:  # a worker does its leases in their order
            if isinstance(task.order, LeaseOrder):
                first.setdefault(task.worker, task)
        able = [
            t for t in self.tasks if not isinstance(t.order, LeaseOrder) or first[t.worker] is t
        ]
        assert able, f"deadlock in stage {self.session.stage}"
        ordered = sorted(able, key=lambda t: t.end_s)
        task = ordered[0 if choice is None else choice % len(ordered)]
        self.tasks.remove(task)
        self.now_s = max(self.now_s, task.end_s)
        self.tell(self._finish(task))

    def tell(self, report):
        self.carry_out(self.session.handle(report, self.now_s))

    def tick(self):
        self.carry_out(self.session.tick(self.now_s))

    def run(self, ticks=False):
        """Go on to the end; return why it ended."""
        while not self.ended:
            self.advance()
            if ticks and not self.ended:
                self.tick()
        return self.ended

    def _finish(self, task):
        match task.order:
            case LeaseOrder(lease=number, worker=name) as order:
                spans = [span for batch in order.batches for span in batch]
                self.workers[name].rows.update(rows_of(spans))
                busy_s = order.rows / self.workers[name].speed
                changes = self._changes(order)
                return LeaseReport(number, 0.5 * order.rows, busy_s, 3 * order.rows, changes)
            case GangOrder() as order:
                return self._played(order)
            case MeasureOrder(workers=names):
                return Measured(dict.fromkeys(names, 1.0), 100)
            case MergeOrder(weights=weights):
                done = sum((self.workers[n].rows for n in weights), Counter())
                self.merged.append(done + self.shared)
                self.shared = Counter()
                for replica in self.workers.values():
                    replica.rows = Counter()
                return MergeReport(1000 * len(weights))
            case EvaluateOrder() as order:
                return self.evaluated(order)
            case CheckpointOrder():
                self.stored.append(json.loads(json.dumps(self.session.plain())))
                return CheckpointReport()
        raise AssertionError(task)

    def _changes(self, order):
        """Return how often a lease changes a model: each thread of a pool that has a row."""
        threads = max(1, self.workers[order.worker].threads)
        return sum(min(threads, sum(span.rows for span in batch)) for batch in order.batches)

    def _played(self, order):
        if order.begins or order.rewinds:
            assert not any(replica.rows for replica in self.workers.values())
        results = []
        for rank, name in enumerate(order.workers):
            self.workers[name].rows.update(rows_of(s for b in order.batches[rank] for s in b))
            rows = order.rows_of(rank)
            busy_s = rows / self._speed(name)
            results.append(GangResult(0.5 * rows, 3 * rows, busy_s, 1000, {}))
        return GangReport(order.gang, tuple(results))

    def evaluated(self, order):
        """Return the report on an order that is done, in time or too late."""
        sums = MetricSums.zero(self.session.limits.ks)
        rows = sum(stop - start for _, start, stop in order.pieces)
        hits = rows if self.session.generation >= self.good_after else 0
        sums = replace(sums, rows=rows, hits=(hits,) * len(sums.ks))
        train = [row for shard, *ends in order.train_pieces for row in range(*ends)]
        return EvaluationReport(order.order, sums, LossSum.of(loss_sum=sum(train), rows=len(train)))

    # ----------------------------------------------------------------- workers

    def lose(self, name):
        """Take a worker with all that it does; a barrier is undone for all."""
        lost = self.workers.pop(name)
        if self.session.strategy.shares_model:
            self.shared += lost.rows
        self.tasks = [t for t in self.tasks if t.worker not in (None, name)]
        if self.session.strategy.is_joint:
            for replica in self.workers.values():
                replica.rows = Counter()
        self.tell(WorkerLost(name))

    def join(self, name, speed=50.0, threads=0):
        """Let a worker come, where a runtime may."""
        assert self.session.stage in ("train", "evaluate", "checkpoint")
        self.workers[name] = Replica(speed, threads=threads)
        self.tell(WorkerJoined(name, Device(threads)))

    def until(self, stage):
        """Go on until the session is in a stage."""
        while self.session.stage != stage:
            self.advance()

    # ------------------------------------------------------------------ proofs

    def check_history(self, before=0):
        """The history's leases are exactly what was merged, each row once over the whole run."""
        history = self.session.history
        assert len(history) == before + len(self.merged)
        total = 0 if not before else history[before - 1]["rows"]
        for row, merged in zip(history[before:], self.merged, strict=True):
            told = Counter()
            for worker in row["workers"].values():
                rows = rows_of(span for lease in worker["leases"] for span in lease)
                assert len(rows) == worker["rows"]
                told.update(rows)
            assert told == merged
            total += told.total()
            assert row["rows"] == total
        every = Counter()
        for row in history:
            for worker in row["workers"].values():
                every.update(rows_of(span for lease in worker["leases"] for span in lease))
        assert all(count == 1 for count in every.values())
        return every


def new_session(stored=None, *, test_rows=(20, 10), is_replicated=True, strategy=None, **limits):
    """200 training rows in two parts."""
    where = Placement(is_replicated, (120, 80), test_rows)
    machine = strategy or AdaptiveSgd(Config(batch_max=8, megabatch_batches=8))
    return Session(machine, Limits(**{"ks": (1,), **limits}), where, 100, stored)


def executor(session=None, good_after=10**9, **limits):
    session = session or new_session(**limits)
    return VirtualExecutor(session, {"a": 40.0, "b": 20.0}, good_after=good_after)


def mean_training_loss(is_replicated=True):
    """Return what an evaluation of all training rows finds: a row's loss is its number."""
    rows = [*range(200)] if is_replicated else [*range(120), *range(80)]
    return sum(rows) / len(rows)


def kinds(log, kind):
    return [order for order in log if isinstance(order, kind)]
