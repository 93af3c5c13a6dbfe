"""A run from its first mega-batch to its last: strategy, ledger, history and stopping rules.

The session turns a strategy's decisions ("so many rows for that worker") into commands with these
rows, counts every result, records the history, and decides when to evaluate, to checkpoint and to
stop. Like a strategy it is a pure state machine: results with their times in, commands out. The
cluster and the simulator run the same.

Its stages::

    idle        before `start`
    train       work is under way
    merge       norms are measured, replicas are merged
    evaluate    pieces of the test rows are scored
    keep        the workers copy the best model so far
    checkpoint  a checkpoint is written; then `train` again, or `over`
    lost        every worker with the model was lost: the backend restarts from the last checkpoint
    over        the run has ended
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from daskxml.core.errors import ModelError, TrainingError
from daskxml.core.work_stats import WorkStats
from daskxml.session.allocator import EvaluationRound, WorkAllocator
from daskxml.session.commands import (
    BestKept,
    CheckpointWritten,
    Command,
    EndRun,
    EvaluationResult,
    KeepBest,
    MergeReplicas,
    MergeResult,
    Rebalance,
    Restart,
    Result,
    StopRequest,
    WorkFailed,
    WorkResult,
    WriteCheckpoint,
)
from daskxml.session.grace import Grace
from daskxml.session.history import MegabatchLog
from daskxml.session.ledger import Ledger
from daskxml.session.placement import Placement
from daskxml.session.stopping import StoppingRules, spent_s
from daskxml.session.trace import FORMAT, Setup, plain_entry
from daskxml.strategies import protocol
from daskxml.strategies.megabatch import Strategy


class Session:
    """One run.

    Parameters
    ----------
    strategy
        Decides how many rows each worker is leased, and when to merge.
    rules
        When to evaluate, checkpoint and stop.
    placement
        Where the rows are; its shards stay the same for the whole run.
    parameters
        Number of model parameters, for the strategy's norms.
    stored
        The value of `plain`, to continue from a checkpoint.
    settings
        The strategy's name and settings, for the trace.
    grace_s
        How long a quorum waits for others; None: see `daskxml.session.grace`.
    """

    def __init__(
        self,
        strategy: Strategy,
        rules: StoppingRules,
        placement: Placement,
        parameters: int,
        stored: dict[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        grace_s: float | None = None,
    ) -> None:
        self.strategy, self.rules, self.placement = strategy, rules, placement
        self.parameters, self.state = parameters, strategy.initial_state()
        self.ledger = Ledger(placement.streams())
        self.history: list[dict[str, Any]] = []
        self.workers: dict[str, None] = {}  # in order of arrival
        self.stage, self.stop_reason = "idle", ""
        self.best = 0  # the mega-batch whose model the workers keep
        self.closed_rows = 0  # rows of the history that will not change any more
        self.attempt = 1  # grows whenever the run goes back to a checkpoint
        self._evaluations = itertools.count(1)
        self._writer, self._strategy_name = "", (settings or {}).get("name", "")
        self._wall_before_s = self._started_s = self._spent_s = 0.0
        self._grace = Grace(grace_s)
        self._measured: set[str] = set()  # whose norms the strategy has asked for
        self._trace: list[Any] = []  # entries that are in no row of the history yet
        if stored is not None:
            self._restore(stored)
        self._allocator = WorkAllocator(self.ledger, placement, stored["dealt"] if stored else 0)
        self.log = MegabatchLog(self.generation + 1, 0.0)
        setup = Setup(
            FORMAT,
            settings or {},
            self.ledger.stream_rows,
            parameters,
            strategy.quorum,
            None if stored is None else stored["strategy"],
        )
        self._trace.append(plain_entry(setup))

    @property
    def generation(self) -> int:
        """Number of merges that the global model includes."""
        return len(self.history)

    @property
    def rows_merged(self) -> int:
        """Rows counted in the global model."""
        return int(self.history[-1]["rows"]) if self.history else 0

    @property
    def may_join(self) -> bool:
        """Whether a worker that has the global model may join now."""
        return self.stage in ("train", "evaluate", "checkpoint")

    @property
    def rows_done(self) -> int:
        """Rows of all mega-batches, merged or not."""
        return self.rows_merged + (self.log.rows if self.stage in ("train", "merge") else 0)

    @property
    def epoch(self) -> float:
        """Passes over the training rows so far."""
        return self.rows_done / sum(self.ledger.stream_rows)

    def plain(self) -> dict[str, Any]:
        """Return the session between two mega-batches as JSON values."""
        closed = self.history[: self.closed_rows]  # the others change while the copy is written
        return {
            "strategy": self.strategy.plain(self.state),
            "strategy_name": self._strategy_name,
            "attempt": self.attempt,
            "ledger": self.ledger.plain(),
            "history": [*closed, *copy.deepcopy(self.history[self.closed_rows :])],
            "trace": list(self._trace),
            "dealt": self._allocator.allocated,
            "placed": self.placement.plain(),
            **({"best": self.best} if self.best else {}),
        }

    def _restore(self, stored: dict[str, Any]) -> None:
        try:
            self.state = self.strategy.restore(stored["strategy"])
            self.ledger = Ledger.restore(stored["ledger"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ModelError(
                f"the checkpoint's session is damaged, or of another strategy ({error!r}); delete "
                "the checkpoint to resume from the one before"
            ) from error
        self.history, self.best = list(stored["history"]), stored.get("best", 0)
        self.closed_rows, self.attempt = len(self.history), stored.get("attempt", 0) + 1
        self._wall_before_s = self.history[-1]["wall_s"] if self.history else 0.0
        self._spent_s = spent_s(self.history)
        self._trace = list(stored.get("trace", []))  # older checkpoints have none

    def speeds(self, names: Iterable[str] | None = None) -> dict[str, float]:
        """Return the rows a second of these workers, by default of all; 0 while unknown."""
        view = self.strategy.view(self.state)
        names = self.workers if names is None else names
        return {name: view[name].rows_per_s if name in view else 0.0 for name in names}

    def present(self) -> list[str]:
        """Return the workers that have the global model, in order of arrival."""
        late = self.strategy.late(self.state)
        return [name for name in self.workers if name not in late]

    # ----------------------------------------------------------------- results

    def start(self, devices: Mapping[str, protocol.WorkerDevice], now_s: float) -> list[Command]:
        """Begin, or continue, with these workers; their replicas equal the global model."""
        self.workers, self._started_s = dict.fromkeys(devices), now_s
        self.inform(protocol.Started(tuple(devices), devices), now_s)
        self.stop_reason = self.rules.reached(self.history, self._spent_s)
        if self.stop_reason:
            return self._end_run()
        commands = [] if self.placement.fits(devices) else self._rebalance()
        return commands + self.begin_megabatch(now_s)

    def handle(self, result: Result, now_s: float) -> list[Command]:
        """Count a result; return the commands that follow from it."""
        match result:
            case WorkResult():
                return self._work_finished(result, now_s)
            case WorkFailed(number) if self._allocator.is_under_way(number):
                self._allocator.roll_back()
                return self._decide(protocol.WorkRolledBack(), now_s)
            case protocol.Measured() if result.squared_norms.keys() == self._measured:
                if not all(map(math.isfinite, result.squared_norms.values())):
                    raise TrainingError("the weights are not finite any more: lower strategy.lr")
                return self._decide(result, now_s)
            case MergeResult():
                return self._finish_merge(result, now_s)
            case EvaluationResult() if self.stage == "evaluate":
                return self._pieces_evaluated(result, now_s)
            case BestKept() if self.stage == "keep":
                return self._close_row(now_s)
            case CheckpointWritten() if self.stage == "checkpoint":
                return self._checkpoint_written(now_s)
            case protocol.WorkerJoined():
                return self._worker_joined(result, now_s)
            case protocol.WorkerLost(worker) if worker in self.workers and self.stage != "over":
                return self._worker_lost(worker, now_s)
            case protocol.WorkerSilent(worker) if worker in self.present() and self.stage != "over":
                return self._worker_silent(worker, now_s)
            case StopRequest(reason):
                return self.drain(reason, now_s)
        return []  # results of lost workers, and those that come too late, are ignored

    def tick(self, now_s: float) -> list[Command]:
        """Return the commands that follow if the run's time is up, or the grace of late workers."""
        if now_s >= self._training_ends_s():
            return self.drain("minutes", now_s)
        if now_s >= self._grace.until_s:
            self._grace.until_s = math.inf
            return self._decide(protocol.GraceOver(), now_s)
        return []

    def deadline_s(self) -> float:
        """Return when `tick` is to be called next; infinite where nothing is waited for."""
        return min(self._training_ends_s(), self._grace.until_s)

    def _training_ends_s(self) -> float:
        """Return when the run's time is up; infinite without a limit."""
        if self.stage != "train" or self.stop_reason:
            return math.inf
        return self.log.begun_s + self.rules.time_left_s(self._spent_s)

    # -------------------------------------------------------------- mega-batches

    def begin_megabatch(self, now_s: float) -> list[Command]:
        """Begin the next mega-batch."""
        self.stage = "train"
        self.log.megabatch, self.log.begun_s = self.generation + 1, now_s
        return self._decide(protocol.Begin(self._rows_left()), now_s)

    def _rows_left(self) -> int | None:
        """Return how many rows the run's epochs still have; None where nothing limits them."""
        limit = self.rules.rows_in_all(sum(self.ledger.stream_rows))
        if limit is None:
            return None
        held = self.ledger.held_rows  # by late workers
        return max(0 if held else 1, limit - self.rows_merged - held)

    def inform(
        self, event: protocol.Event, now_s: float, work: Mapping[str, WorkStats] | None = None
    ) -> tuple[protocol.Command, ...]:
        """Pass an event, and the work of each worker that it reports, on; return the decisions."""
        before = self.state
        self.state, decisions = self.strategy.step(before, event)
        self._trace.append(plain_entry(event, decisions))
        self.log.take(self.strategy, (before, self.state), event, decisions, work, now_s)
        return decisions

    def _decide(
        self, event: protocol.Event | None, now_s: float,
        work: Mapping[str, WorkStats] | None = None,
    ) -> list[Command]:  # fmt: skip
        """Return the commands for the strategy's decisions on an event, if there is one."""
        return [] if event is None else self.execute(self.inform(event, now_s, work), now_s)

    def execute(self, decisions: Sequence[protocol.Command], now_s: float) -> list[Command]:
        """Turn decisions into commands; a mega-batch without any work is not merged."""
        if (merged := to_merge(decisions)) and not self._has_rows(merged):
            self._merged(now_s)
            return self._checkpoint() if self.rules.can_checkpoint else self._end_run()
        commands = [self._command(decision, now_s) for decision in decisions]
        return [command for command in commands if command is not None]

    def _has_rows(self, merged: Collection[str]) -> bool:
        """Whether these workers, or lost ones whose work stays in a shared model, did anything."""
        names = [n for n in self.log.work if n in merged or n not in self.workers]
        return any(self.log.work[name].rows for name in names)

    def _command(self, decision: protocol.Command, now_s: float) -> Command | None:
        match decision:
            case protocol.Work():
                return self._allocator.allocate(
                    decision, begins=not self.log.rows, now_s=now_s,
                    scales_parts=self.strategy.scales_parts,
                )  # fmt: skip
            case protocol.Measure(workers):
                self._end_training(now_s)
                self._measured = set(workers)
                return decision
            case protocol.Merge(weights, momentum):
                self._end_training(now_s)
                return MergeReplicas(self.generation + 1, dict(weights), momentum)
            case protocol.Wait(waits_for):
                leases = {name: self._allocator.leases(name) for name in self.present()}
                self._grace.wait(waits_for, self.log.begun_s, now_s, leases, self.speeds(leases))
            case protocol.GiveUp(worker):
                self._allocator.give_up(worker)
            case protocol.Rebase():
                return decision
        return None

    def _work_finished(self, result: WorkResult, now_s: float) -> list[Command]:
        commands: list[Command] = []
        for limited in self._allocator.bounds(result):
            commands += self._decide(limited, now_s)
        done = self._allocator.done(result, now_s)
        if done is not None and self.strategy.quorum < 1.0:
            self._grace.report(done, self.speeds(done.rows), self.strategy.late(self.state), now_s)
        work = None
        if done is not None and any(done.rows.values()):  # else others do its rows
            work = dict(zip(done.rows, result.ranks, strict=True))
        return commands + self._decide(done, now_s, work)

    def drain(self, reason: str, now_s: float) -> list[Command]:
        """End the run with this mega-batch, for which nothing more is leased."""
        self.stop_reason = self.stop_reason or reason
        return self._decide(protocol.Drain(), now_s) if self.stage == "train" else []

    def _end_training(self, now_s: float) -> None:
        """Record when the mega-batch was over for those that are merged."""
        if self.stage == "train":
            missing = {*self.present()} - {*self.strategy.merging(self.state)}
            self._grace.end(missing, self.log.begun_s, now_s)
            self.stage = "merge"
            self.log.trained_s = now_s

    def _merged(self, now_s: float) -> MegabatchLog:
        """Tell the strategy of a merge; return the log of its mega-batch."""
        self.inform(protocol.Merged(now_s - self.log.begun_s), now_s)
        log, self.log = self.log, self.log.following()
        return log

    def _finish_merge(self, result: MergeResult, now_s: float) -> list[Command]:
        """Add the row of a merged mega-batch to the history."""
        if self.stage != "merge":
            return []
        log = self._merged(now_s)
        log.trace, self._trace = self._trace, []
        log.merged(result, now_s)
        rows = self.rows_merged + log.rows
        spans = self.ledger.settle(log.late)
        self.history.append(log.row(rows, rows / sum(self.ledger.stream_rows), spans))
        self._spent_s += spent_s(self.history[-1:])
        return self._complete_row(now_s)

    # ------------------------------------------------ evaluation and checkpoint

    def _complete_row(self, now_s: float) -> list[Command]:
        """Evaluate and checkpoint after the merge that was recorded last, as far as that is due."""
        self.stop_reason = self.stop_reason or self.rules.reached(self.history, self._spent_s)
        return self._evaluate(now_s) if self._is_evaluation_due() else self._close_row(now_s)

    def _is_evaluation_due(self) -> bool:
        has_tests, is_last = bool(sum(self.placement.test_rows)), bool(self.stop_reason)
        return self.rules.is_evaluation_due(self.history, has_tests=has_tests, is_last=is_last)

    def _evaluate(self, now_s: float) -> list[Command]:
        self.stage = "evaluate"
        self._round = EvaluationRound(self.rules.config.evaluation, self._evaluations, now_s)
        return [*self._round.begin(self.placement, self.speeds(self.present()))]

    def _pieces_evaluated(self, result: EvaluationResult, now_s: float) -> list[Command]:
        self._round.count(result)
        if not self._round.is_done:
            return []
        self.history[-1] |= self._round.result(now_s)
        self.stop_reason = self.stop_reason or self.rules.reached_in_evaluation(self.history)
        best = self.rules.best_megabatch(self.history)
        if not self.rules.config.keeps_best or best != self.generation:
            return self._close_row(now_s)
        self.stage, self.best = "keep", best
        return [KeepBest(best)]

    def _close_row(self, now_s: float) -> list[Command]:
        self.history[-1]["wall_s"] = self._wall_before_s + now_s - self._started_s
        due = self.rules.is_checkpoint_due(len(self.history), is_last=bool(self.stop_reason))
        return self._checkpoint() if due else self._checkpoint_written(now_s)

    def _checkpoint(self) -> list[Command]:
        self.stage, self._writer = "checkpoint", self.present()[0]
        return [WriteCheckpoint(self._writer, self.generation)]

    def _checkpoint_written(self, now_s: float) -> list[Command]:
        """Continue after a checkpoint, or where none was due."""
        if self.closed_rows < len(self.history) and self._is_evaluation_due():
            return self._evaluate(now_s)  # a stop was requested while the checkpoint was written
        self.closed_rows = len(self.history)
        return self._end_run() if self.stop_reason else self.begin_megabatch(now_s)

    def _end_run(self) -> list[Command]:
        self.stage = "over"
        return [EndRun(self.stop_reason)]

    # ----------------------------------------------------------------- workers

    def _worker_joined(self, event: protocol.WorkerJoined, now_s: float) -> list[Command]:
        is_new = event.worker not in self.workers
        if event.keeps_change and event.worker in self._allocator.given_up:
            return []  # it is rebased once more
        self.workers[event.worker] = None
        if not event.keeps_change:
            self._allocator.rejoined(event.worker)
        after_s = now_s - self.log.begun_s if self.stage == "train" else 0.0
        commands = self._decide(replace(event, after_s=after_s), now_s)
        return self._rebalance() + commands if is_new else commands

    def _worker_lost(self, worker: str, now_s: float) -> list[Command]:
        del self.workers[worker]
        if not self.present():
            return self._restart()
        self._allocator.lose(worker, self.strategy)
        if worker in self.strategy.merging(self.state):
            self.stage = "train"
            if self.stop_reason:  # the run ends without the returned rows
                self.inform(protocol.Drain(), now_s)
        commands = self._decide(protocol.WorkerLost(worker), now_s)
        return self._rebalance() + commands + self._reassign(worker)

    def _restart(self) -> list[Command]:
        """Go back to the last checkpoint: nobody that is heard has the model."""
        self.stage = "lost"
        return [Restart()]

    def _worker_silent(self, worker: str, now_s: float) -> list[Command]:
        if self.present() == [worker]:
            return self._restart()
        if worker in self.strategy.merging(self.state):
            self.stage = "train"
        return self._decide(protocol.WorkerSilent(worker), now_s) + self._reassign(worker)

    def _rebalance(self) -> list[Command]:
        if self.placement.is_replicated:
            return []
        self.placement.spread(self.speeds())
        return [Rebalance()]

    def _reassign(self, lost: str) -> list[Command]:
        """Let other workers evaluate or write what a lost worker has not finished."""
        if self.stage == "checkpoint":
            return self._checkpoint() if lost == self._writer else []
        if self.stage != "evaluate":
            return []
        return [*self._round.reassign(lost, self.speeds(self.present()))]


def to_merge(decisions: Sequence[protocol.Command]) -> Collection[str]:
    """Return the workers that a strategy's decisions merge; none if they do not end it."""
    for decision in decisions:
        if isinstance(decision, protocol.Measure):
            return decision.workers
        if isinstance(decision, protocol.Merge):
            return decision.weights
    return ()
