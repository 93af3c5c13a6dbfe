"""A run from its first mega-batch to its last: strategy, ledger, history and stopping rules.

The session is the strategy's executive officer. It turns a strategy's commands (so many rows for
that worker) into orders (these rows), books every report, writes the history, and decides what no
strategy should have to: when to evaluate, to checkpoint and to stop. Like a strategy it is a pure
state machine: reports with their time in, orders out; the cluster and the simulator run the same.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from daskxml.strategies import protocol
from daskxml.strategies.protocol import Device, Measured, Strategy, WorkerJoined, WorkerLost
from daskxml.training import orders
from daskxml.training.dealing import Dealer
from daskxml.training.evaluation import EvaluationRound
from daskxml.training.history import MegabatchLog, worker_event
from daskxml.training.ledger import Ledger
from daskxml.training.limits import Limits
from daskxml.training.placement import Placement

__all__ = ["Limits", "Session"]


class Session:
    """One run.

    Parameters
    ----------
    strategy
        Who works on how many rows, and when to merge.
    limits
        When to evaluate, checkpoint and stop.
    placement
        Where the rows lie; its shards must stay the same for the whole run.
    parameters
        Number of model parameters, for the strategy's norms.
    stored
        What `plain` returned, to go on from a checkpoint.
    """

    def __init__(
        self,
        strategy: Strategy,
        limits: Limits,
        placement: Placement,
        parameters: int,
        stored: dict[str, Any] | None = None,
    ) -> None:
        self.strategy, self.limits, self.placement = strategy, limits, placement
        self.parameters, self.state = parameters, strategy.initial_state()
        self.ledger = Ledger(placement.streams())
        self.history: list[dict[str, Any]] = []
        self.workers: dict[str, None] = {}  # in order of arrival
        self.stage = "idle"
        self.closed_rows = 0
        self._evaluations = itertools.count(1)
        self._stop_reason = self._writer = ""
        self._wall_before_s = self._started_s = 0.0
        if stored is not None:
            self._restore(stored)
        self._dealer = Dealer(self.ledger, placement, stored["dealt"] if stored else 0)
        self.log = MegabatchLog(self.generation + 1, 0.0)

    @property
    def generation(self) -> int:
        """Number of merges that the global model has been through."""
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
        """Rows merged, and rows of this mega-batch that are not yet."""
        return self.rows_merged + (self.log.rows if self.stage in ("train", "merge") else 0)

    def plain(self) -> dict[str, Any]:
        """Return the session between two mega-batches as JSON values."""
        return {
            "strategy": self.strategy.plain(self.state),
            "ledger": self.ledger.plain(),
            "history": copy.deepcopy(self.history),  # this one grows while that one is kept
            "dealt": self._dealer.dealt,
            "placed": self.placement.plain(),
        }

    def _restore(self, stored: dict[str, Any]) -> None:
        self.state = self.strategy.restore(stored["strategy"])
        self.ledger = Ledger.restore(stored["ledger"])
        self.history = list(stored["history"])
        self.closed_rows = len(self.history)
        self._wall_before_s = self.history[-1]["wall_s"] if self.history else 0.0

    def speeds(self) -> dict[str, float]:
        """Rows a second of every worker; 0 while unknown."""
        view = self.strategy.view(self.state)
        return {name: view[name].rows_per_s if name in view else 0.0 for name in self.workers}

    # ----------------------------------------------------------------- events

    def start(
        self, workers: Sequence[str], now_s: float, devices: Mapping[str, Device] | None = None
    ) -> list[orders.Order]:
        """Begin, or go on, with these workers; their replicas equal the global model."""
        self.workers, self._started_s = dict.fromkeys(workers), now_s
        self._tell(protocol.Started(tuple(workers), devices or {}))
        self._stop_reason = self.limits.reached(self.history)
        if self._stop_reason:
            return self._finish()
        return ([] if self.placement.fits(workers) else self._spread()) + self._begin(now_s)

    def handle(self, report: orders.Report, now_s: float) -> list[orders.Order]:
        """Book what happened; return what is to be done."""
        match report:
            case orders.LeaseReport():
                bounded = self._hear(self._dealer.bounded(report, self.log, now_s), now_s)
                return bounded + self._hear(self._dealer.lease_done(report, self.log), now_s)
            case orders.GangReport():
                return self._hear(self._dealer.gang_done(report, self.log, now_s), now_s)
            case orders.GangBroken(gang) if self._dealer.is_open(gang):
                self._dealer.take_back_all(self.log)
                return self._hear(protocol.Undone(), now_s)
            case Measured() if report.squared_norms.keys() == self.workers.keys():
                return self._obey(self._tell(report), now_s)
            case orders.MergeReport() if self.stage == "merge":
                return self._merged(report, now_s)
            case orders.EvaluationReport() if self.stage == "evaluate":
                return self._evaluated(report, now_s)
            case orders.CheckpointReport() if self.stage == "checkpoint":
                return self._checkpointed(now_s)
            case WorkerJoined():
                return self._joined(report, now_s)
            case WorkerLost(worker) if worker in self.workers and self.stage != "over":
                return self._lost(worker, now_s)
            case orders.StopRequest(reason):
                return self._drain(reason, now_s)
        return []  # of a worker that is given up, or too late to matter

    def tick(self, now_s: float) -> list[orders.Order]:
        """Notice that the time is up; to be called every now and then."""
        if self.stage != "train" or self._stop_reason:
            return []
        is_up = self.limits.is_time_up(self.history, now_s - self.log.untold_since_s)
        return self._drain("minutes", now_s) if is_up else []

    def _tell(self, event: protocol.Event) -> tuple[protocol.Command, ...]:
        self.state, commands = self.strategy.step(self.state, event)
        return commands

    def _hear(self, event: protocol.Event | None, now_s: float) -> list[orders.Order]:
        return [] if event is None else self._obey(self._tell(event), now_s)

    def _obey(self, commands: Sequence[protocol.Command], now_s: float) -> list[orders.Order]:
        ends = any(isinstance(c, protocol.Measure | protocol.Merge) for c in commands)
        if ends and not self.log.rows:
            return self._skip_merge()
        return [self._order(command, now_s) for command in commands]

    def _order(self, command: protocol.Command, now_s: float) -> orders.Order:
        match command:
            case protocol.Lease():
                return self._dealer.lease(command)
            case protocol.Gang():
                return self._dealer.gather(command, begins=not self.log.rows, now_s=now_s)
            case protocol.Measure():
                self._end_training(now_s)
                return orders.MeasureOrder(tuple(self.workers))
            case protocol.Merge(weights, momentum, perturbed):
                self._end_training(now_s)
                shares = self.log.update_shares(weights) if self.strategy.shares_model else weights
                self.log.weigh(shares, perturbed)
                return orders.MergeOrder(self.generation + 1, dict(weights), momentum)

    def _end_training(self, now_s: float) -> None:
        if self.stage == "train":
            self.stage = "merge"
            self.log.trained(self.strategy.view(self.state), now_s)

    def _begin(self, now_s: float) -> list[orders.Order]:
        self.stage = "train"
        self.log = MegabatchLog(self.generation + 1, now_s)
        return self._obey(self._tell(protocol.Begin()), now_s)

    def _drain(self, reason: str, now_s: float) -> list[orders.Order]:
        self._stop_reason = self._stop_reason or reason
        if self.stage != "train":
            return []
        return self._obey(self._tell(protocol.Drain()), now_s)

    def _skip_merge(self) -> list[orders.Order]:
        """Stop where the last merge left the model: nothing has been done since."""
        self._tell(protocol.Merged())
        return self._checkpoint() if self.limits.can_checkpoint else self._finish()

    def _merged(self, report: orders.MergeReport, now_s: float) -> list[orders.Order]:
        self._tell(protocol.Merged())
        self.log.merged(report, now_s)
        rows = self.rows_merged + self.log.rows
        epoch = rows / sum(self.ledger.stream_rows)
        self.history.append(self.log.row(rows, epoch, self.ledger.settle()))
        self._stop_reason = self._stop_reason or self.limits.reached(self.history)
        return self._evaluate(now_s) if self._is_evaluation_due() else self._close_row(now_s)

    def _is_evaluation_due(self) -> bool:
        """At the last mega-batch always, also if a stop is asked for while it is written down."""
        has_tests, is_last = bool(sum(self.placement.test_rows)), self._is_last
        return self.limits.is_evaluation_due(self.history, has_tests=has_tests, is_last=is_last)

    @property
    def _is_last(self) -> bool:
        """Whether the run ends with the last row of the history."""
        return bool(self._stop_reason)

    def _evaluate(self, now_s: float) -> list[orders.Order]:
        self.stage = "evaluate"
        self._round = EvaluationRound(self.limits, self._evaluations, now_s)
        return [*self._round.begin(self.placement, self.speeds())]

    def _evaluated(self, report: orders.EvaluationReport, now_s: float) -> list[orders.Order]:
        self._round.book(report)
        if not self._round.is_done:
            return []
        self.history[-1] |= self._round.result(now_s)
        if self.limits.is_target_met(self.history[-1]["metrics"]):
            self._stop_reason = self._stop_reason or "target"
        return self._close_row(now_s)

    def _close_row(self, now_s: float) -> list[orders.Order]:
        self.history[-1]["wall_s"] = self._wall_before_s + now_s - self._started_s
        due = self.limits.is_checkpoint_due(len(self.history), is_last=self._is_last)
        return self._checkpoint() if due else self._checkpointed(now_s)

    def _checkpoint(self) -> list[orders.Order]:
        self.stage, self._writer = "checkpoint", next(iter(self.workers))
        return [orders.CheckpointOrder(self._writer, self.generation)]

    def _checkpointed(self, now_s: float) -> list[orders.Order]:
        if self.closed_rows < len(self.history) and self._is_evaluation_due():
            return self._evaluate(now_s)
        self.closed_rows = len(self.history)
        return self._finish() if self._stop_reason else self._begin(now_s)

    def _finish(self) -> list[orders.Order]:
        self.stage = "over"
        return [orders.StopOrder(self._stop_reason)]

    # ---------------------------------------------------------------- workers

    def _joined(self, event: WorkerJoined, now_s: float) -> list[orders.Order]:
        self.workers[event.worker] = None
        self.note(worker_event("joined", event.worker, now_s - self.log.begun_s))
        todo = self._obey(self._tell(event), now_s)
        return self._spread() + todo

    def _lost(self, worker: str, now_s: float) -> list[orders.Order]:
        del self.workers[worker]
        if not self.workers:
            self.stage = "lost"
            return [orders.RestartOrder()]
        rows = self._take_back(worker)
        self.note(worker_event("lost", worker, now_s - self.log.begun_s, rows))
        if self.stage == "merge":
            self.stage = "train"
            if self._stop_reason:  # the rows that went back are not waited for
                self._tell(protocol.Drain())
        todo = self._obey(self._tell(WorkerLost(worker)), now_s)
        return self._spread() + todo + self._redo(worker)

    def _take_back(self, worker: str) -> int:
        """Undo what is lost with a worker; return how many rows that is."""
        return self._dealer.lose(worker, self.strategy, self.state, self.log)

    def note(self, event: dict[str, Any]) -> None:
        """Tell of something in the row of the mega-batch that is not closed yet."""
        is_merged = self.closed_rows < len(self.history)
        (self.history[-1]["events"] if is_merged else self.log.events).append(event)

    def _spread(self) -> list[orders.Order]:
        if self.placement.is_replicated:
            return []
        self.placement.spread(self.speeds())
        return [orders.PlaceOrder()]

    def _redo(self, lost: str) -> list[orders.Order]:
        """Hand to others what the lost worker was evaluating or writing."""
        if self.stage == "checkpoint":
            return self._checkpoint() if lost == self._writer else []
        return [*self._round.hand_on(lost, self.speeds())] if self.stage == "evaluate" else []
