"""An executor of a session's commands on a virtual clock, with its own account of every row."""

import json
from collections import Counter
from dataclasses import dataclass, field, replace

from daskxml.config import load_run_config
from daskxml.core.work_stats import WorkStats
from daskxml.metrics import LossSum, MetricSums
from daskxml.session.commands import (
    CheckpointWritten,
    EndRun,
    Evaluate,
    EvaluationResult,
    MergeReplicas,
    MergeResult,
    Rebalance,
    Restart,
    RunWork,
    WorkResult,
    WriteCheckpoint,
)
from daskxml.session.placement import Placement
from daskxml.session.session import Session
from daskxml.session.stopping import StoppingRules
from daskxml.strategies.adaptive_sgd import AdaptiveSgd, Config
from daskxml.strategies.protocol import Measure, Measured, WorkerDevice, WorkerJoined, WorkerLost
from harness.records import audited

MEGABATCH_ROWS = 64  # 8 batches of 8
STAGES = ("train", "merge", "evaluate", "checkpoint")


def rows_of(spans):
    """Return (epoch, stream, place) of every row: the naive way to name rows."""
    return [(e, s, place) for e, s, start, stop in spans for place in range(start, stop)]


@dataclass
class Task:
    """Something under way; ``worker`` is None for what all do together."""

    command: object
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
    """Executes a session's commands; losses and arrivals come from the test.

    ``pools`` has the threads of those workers that are pools.
    """

    def __init__(self, session, speeds, now_s=100.0, good_after=10**9, pools=None):
        self.session, self.now_s, self.good_after = session, now_s, good_after
        threads = pools or {}
        self.workers = {n: Replica(s, threads=threads.get(n, 0)) for n, s in speeds.items()}
        self.shared = Counter()  # what lost workers did to a shared model since the last merge
        self.tasks: list[Task] = []
        self.log: list[object] = []  # every command
        self.merged: list[Counter] = []  # what went into each merge, by the executor's own count
        self.stored: list[dict] = []
        self.ended = ""
        devices = {name: WorkerDevice(threads.get(name, 0)) for name in speeds}
        self.execute(session.start(devices, now_s))

    # ---------------------------------------------------------------- commands

    def execute(self, commands):
        for command in commands:
            assert not self.ended, f"{command} after the end"
            self.log.append(command)
            match command:
                case RunWork(workers=(name,)) if command.is_lease:
                    replica, rows = self.workers[name], command.rows_of(0)
                    replica.free_s = max(replica.free_s, self.now_s) + rows / replica.speed
                    self._start(command, name, replica.free_s)
                case Evaluate(worker=name) | WriteCheckpoint(worker=name):
                    assert name in self.workers
                    self._start(command, name, self.now_s + 0.5)
                case RunWork(workers=names):
                    assert set(names) <= self.workers.keys()
                    assert not self.tasks, "a gang while something is under way"
                    slowest = max(command.rows_of(r) / self._speed(n) for r, n in enumerate(names))
                    self._start(command, None, self.now_s + slowest)
                case Measure(workers=names):
                    assert set(names) == self.workers.keys()
                    assert not self.tasks, "a barrier while something is under way"
                    self._start(command, None, self.now_s + 0.125)
                case MergeReplicas(weights=weights):
                    assert weights.keys() == self.workers.keys()
                    self._start(command, None, self.now_s + 0.25)
                case Restart():
                    self.ended = "restart"
                case EndRun(reason):
                    assert not self.tasks
                    self.ended = reason
                case Rebalance():
                    pass

    def _speed(self, name):
        return self.workers[name].speed

    def _start(self, command, worker, end_s):
        self.tasks.append(Task(command, worker, end_s))

    # ------------------------------------------------------------------- clock

    def advance(self, choice=None):
        """Finish the next task in time, or any other that could end next."""
        first = {}
        for task in self.tasks:  # a worker does its leases in their order
            if isinstance(task.command, RunWork):
                first.setdefault(task.worker, task)
        able = [t for t in self.tasks if not isinstance(t.command, RunWork) or first[t.worker] is t]
        assert able, f"deadlock in stage {self.session.stage}"
        ordered = sorted(able, key=lambda t: t.end_s)
        task = ordered[0 if choice is None else choice % len(ordered)]
        self.tasks.remove(task)
        self.now_s = max(self.now_s, task.end_s)
        self.handle(self._finish(task))

    def handle(self, report):
        self.execute(self.session.handle(report, self.now_s))

    def tick(self):
        self.execute(self.session.tick(self.now_s))

    def run(self, ticks=False):
        """Run to the end; return why it ended."""
        while not self.ended:
            self.advance()
            if ticks and not self.ended:
                self.tick()
        return self.ended

    def _finish(self, task):
        match task.command:
            case RunWork() as command:
                return self._work_done(command)
            case Measure(workers=names):
                return Measured(dict.fromkeys(names, 1.0), 100)
            case MergeReplicas(weights=weights):
                done = sum((self.workers[n].rows for n in weights), Counter())
                self.merged.append(done + self.shared)
                self.shared = Counter()
                for replica in self.workers.values():
                    replica.rows = Counter()
                return MergeResult(1000 * len(weights))
            case Evaluate() as command:
                return self.evaluated(command)
            case WriteCheckpoint():
                self.stored.append(json.loads(json.dumps(self.session.plain())))
                return CheckpointWritten()
        raise AssertionError(task)

    def _work_done(self, command):
        if not command.is_lease and (command.begins or command.rewinds):
            assert not any(replica.rows for replica in self.workers.values())
        results = []
        for rank, name in enumerate(command.workers):
            self.workers[name].rows.update(rows_of(s for b in command.batches[rank] for s in b))
            rows = command.rows_of(rank)
            work = WorkStats(rows, self._changes(command, rank), 0.5 * rows, 3 * rows)
            work.busy_s = rows / self._speed(name)
            work.sent_bytes = 0 if command.is_lease else 1000
            results.append(work)
        return WorkResult(command.number, tuple(results))

    def _changes(self, command, rank):
        """Return how often some work changes a model: each thread of a pool that has a row."""
        threads = max(1, self.workers[command.workers[rank]].threads)
        rows = [sum(span.rows for span in batch) for batch in command.batches[rank]]
        return sum(min(threads, count) for count in rows)

    def evaluated(self, command):
        """Return the result of a command, which may be too late."""
        sums = MetricSums.zero(self.session.rules.config.evaluation.k)
        rows = sum(stop - start for _, start, stop in command.pieces)
        hits = rows if self.session.generation >= self.good_after else 0
        sums = replace(sums, rows=rows, hits=(hits,) * len(sums.ks))
        train = [row for shard, *ends in command.train_pieces for row in range(*ends)]
        return EvaluationResult(
            command.number, sums, LossSum.of(loss_sum=sum(train), rows=len(train))
        )

    # ----------------------------------------------------------------- workers

    def lose(self, name):
        """Lose a worker and its tasks; collective work is undone for all."""
        lost = self.workers.pop(name)
        if self.session.strategy.shares_model:
            self.shared += lost.rows
        self.tasks = [t for t in self.tasks if t.worker not in (None, name)]
        if self.session.strategy.is_joint:
            for replica in self.workers.values():
                replica.rows = Counter()
        self.handle(WorkerLost(name))

    def join(self, name, speed=50.0, threads=0):
        """Let a worker join, in a stage where a backend may."""
        assert self.session.stage in ("train", "evaluate", "checkpoint")
        self.workers[name] = Replica(speed, threads=threads)
        self.handle(WorkerJoined(name, WorkerDevice(threads)))

    def until(self, stage):
        """Advance until the session is in a stage."""
        while self.session.stage != stage:
            self.advance()

    # ------------------------------------------------------------------ proofs

    def check_history(self, before=0):
        """The history's leases are exactly what was merged, each row once over the whole run."""
        history = self.session.history
        assert len(history) == before + len(self.merged)
        total = 0 if not before else history[before - 1]["rows"]
        for row, merged in zip(history[before:], self.merged, strict=True):
            counted = Counter()
            for worker in row["workers"].values():
                rows = rows_of(span for lease in worker["leases"] for span in lease)
                assert len(rows) == worker["rows"]
                counted.update(rows)
            assert counted == merged
            total += counted.total()
            assert row["rows"] == total
        every = Counter()
        for row in history:
            for worker in row["workers"].values():
                every.update(rows_of(span for lease in worker["leases"] for span in lease))
        assert all(count == 1 for count in every.values())
        self._check_trace()
        return every

    def _check_trace(self):
        """The audit of the record comes to the same, from the history alone."""
        session = self.session
        if session.history:
            audit = audited(session.history, lambda _: session.strategy)
            problems = [*map(str, audit.findings.disagreements), *audit.notes]
            assert not problems, "\n".join(problems)


def new_session(stored=None, *, test_rows=(20, 10), is_replicated=True, strategy=None, **limits):
    """200 training rows in two parts."""
    placement = Placement(is_replicated, (120, 80), test_rows)
    strategy = strategy or AdaptiveSgd(Config(batch_max=8, megabatch_batches=8))
    return Session(strategy, rules(**limits), placement, 100, stored)


def rules(*, can_checkpoint=False, train_s=0.0, **settings):
    """Rules of a run file with these settings, which are named as in [training] or below."""
    values = {"evaluation": {"k": [1]}, "checkpoint": {}, "training": {"minutes": train_s / 60.0}}
    places = {
        "checkpoint_every": ("checkpoint", "every"), "evaluate_every": ("evaluation", "every"),
        "evaluation_rows": ("evaluation", "batch_rows"),
        "training_loss": ("evaluation", "training_loss"),
    }  # fmt: skip
    for name, value in settings.items():
        section, key = places.get(name, ("training", name))
        values[section][key] = value
    if not any(values["training"].values()):
        values["training"]["megabatches"] = 10**9  # as good as none
    return StoppingRules(load_run_config(values), can_checkpoint)


def executor(session=None, good_after=10**9, **limits):
    session = session or new_session(**limits)
    return VirtualExecutor(session, {"a": 40.0, "b": 20.0}, good_after=good_after)


def mean_training_loss(is_replicated=True):
    """Return what an evaluation of all training rows finds: a row's loss is its number."""
    rows = [*range(200)] if is_replicated else [*range(120), *range(80)]
    return sum(rows) / len(rows)


def kinds(log, kind):
    return [command for command in log if isinstance(command, kind)]
