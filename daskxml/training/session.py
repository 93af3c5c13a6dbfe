"""A run from its first mega-batch to its last: strategy, ledger, history and stopping rules.

The session is the strategy's executive officer. It turns a strategy's commands (so many rows for
that worker) into orders (these rows), books every report, writes the history, and decides what no
strategy should have to: when to evaluate, to checkpoint and to stop. Like a strategy it is a pure
state machine: reports with their time in, orders out; the cluster and the simulator run the same.

A mega-batch passes through the stages train, merge, evaluate and checkpoint; the workers' rows are
in the ledger until the merge and in the history afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from daskxml.metrics import MetricSums
from daskxml.strategies import protocol
from daskxml.strategies.protocol import Measured, Strategy, WorkerJoined, WorkerLost
from daskxml.training.history import MegabatchLog, worker_event
from daskxml.training.ledger import Ledger, cut_batches
from daskxml.training.orders import (
    CheckpointOrder,
    CheckpointReport,
    EvaluateOrder,
    EvaluationReport,
    LeaseOrder,
    LeaseReport,
    MeasureOrder,
    MergeOrder,
    MergeReport,
    Order,
    Piece,
    PlaceOrder,
    Report,
    RestartOrder,
    StopOrder,
    StopRequest,
)
from daskxml.training.placement import Placement, split_pieces


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When a run ends (zero is no limit), and how often it evaluates and checkpoints.

    Attributes
    ----------
    megabatches, epochs, train_s
        The run ends at the first merge at or after one of these.
    target_metric, target
        The run ends once an evaluation gives at least ``target``.
    evaluate_every, checkpoint_every
        In mega-batches. The last one is always evaluated and checkpointed.
    ks
        Ranks of the metrics.
    can_checkpoint
        There is a place to write to.
    """

    megabatches: int = 0
    epochs: float = 0.0
    train_s: float = 0.0
    target_metric: str = "P@1"
    target: float = 0.0
    evaluate_every: int = 1
    checkpoint_every: int = 10
    ks: tuple[int, ...] = (1, 3, 5)
    can_checkpoint: bool = False


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
        self.parameters = parameters
        self.ledger = Ledger(placement.streams())
        self.state = strategy.initial_state()
        self.history: list[dict[str, Any]] = []
        self.workers: dict[str, None] = {}  # in order of arrival
        self.stage = "idle"
        self.lease_count = self.order_count = self.closed_rows = 0
        self._open_leases: dict[int, LeaseOrder] = {}
        self._open_pieces: dict[int, tuple[str, tuple[Piece, ...]]] = {}
        self._stop_reason = ""
        self._wall_before_s = self._started_s = 0.0
        if stored is not None:
            self._restore(stored)
        self.log = self._new_log(0.0)

    # ------------------------------------------------------------------ state

    @property
    def generation(self) -> int:
        """Number of merges that the global model has been through."""
        return len(self.history)

    @property
    def rows_merged(self) -> int:
        """Rows counted in the global model."""
        return int(self.history[-1]["rows"]) if self.history else 0

    def plain(self) -> dict[str, Any]:
        """Return the session between two mega-batches as JSON values."""
        return {
            "strategy": self.strategy.plain(self.state),
            "ledger": self.ledger.plain(),
            "history": self.history,
            "lease_count": self.lease_count,
            "placed": {
                "is_replicated": self.placement.is_replicated,
                "parts": len(self.placement.train_rows),
            },
        }

    def _restore(self, stored: dict[str, Any]) -> None:
        self.state = self.strategy.restore(stored["strategy"])
        self.ledger = Ledger.restore(stored["ledger"])
        self.history = list(stored["history"])
        self.lease_count = stored["lease_count"]
        self.closed_rows = len(self.history)
        self._wall_before_s = self.history[-1]["wall_s"] if self.history else 0.0

    def speeds(self) -> dict[str, float]:
        """Rows a second of every worker; 0 while unknown."""
        view = self.strategy.view(self.state)
        return {name: view[name].rows_per_s if name in view else 0.0 for name in self.workers}

    # ----------------------------------------------------------------- events

    def start(self, workers: Sequence[str], now_s: float) -> list[Order]:
        """Begin, or go on, with these workers; their replicas equal the global model."""
        self.workers = dict.fromkeys(workers)
        self._started_s = now_s
        self._tell(protocol.Started(tuple(workers)))
        self._stop_reason = self._limit_reached()
        return self._finish() if self._stop_reason else self._begin(now_s)

    def handle(self, report: Report, now_s: float) -> list[Order]:
        """Book what happened; return what is to be done."""
        match report:
            case LeaseReport():
                return self._lease_done(report, now_s)
            case Measured():
                return self._obey(self._tell(report), now_s) if self.stage == "merge" else []
            case MergeReport():
                return self._merged(report, now_s)
            case EvaluationReport():
                return self._evaluated(report, now_s)
            case CheckpointReport():
                return self._checkpointed(now_s)
            case WorkerJoined(worker):
                return self._joined(worker, now_s)
            case WorkerLost(worker):
                return self._lost(worker, now_s)
            case StopRequest(reason):
                return self._drain(reason, now_s)

    def tick(self, now_s: float) -> list[Order]:
        """Notice that the time is up; to be called every now and then."""
        limit = self.limits.train_s
        if self.stage != "train" or not limit or self._stop_reason:
            return []
        is_over = self._trained_s() + now_s - self.log.begun_s >= limit
        return self._drain("minutes", now_s) if is_over else []

    def _tell(self, event: protocol.Event) -> tuple[protocol.Command, ...]:
        self.state, commands = self.strategy.step(self.state, event)
        return commands

    def _obey(self, commands: Sequence[protocol.Command], now_s: float) -> list[Order]:
        return [self._order(command, now_s) for command in commands]

    def _order(self, command: protocol.Command, now_s: float) -> Order:
        match command:
            case protocol.Lease():
                return self._lease(command)
            case protocol.Measure():
                self.stage = "merge"
                self.log.trained(self.strategy.view(self.state), now_s)
                return MeasureOrder(tuple(self.workers))
            case protocol.Merge(weights, momentum, perturbed):
                self.log.weigh(weights, perturbed)
                return MergeOrder(self.generation + 1, dict(weights), momentum)

    # ------------------------------------------------------------------ train

    def _begin(self, now_s: float) -> list[Order]:
        self.stage = "train"
        self.log = self._new_log(now_s)
        return self._obey(self._tell(protocol.Begin()), now_s)

    def _new_log(self, now_s: float) -> MegabatchLog:
        return MegabatchLog(self.generation + 1, now_s)

    def _lease(self, lease: protocol.Lease) -> LeaseOrder:
        preferred = (
            () if self.placement.is_replicated else self.placement.train_shards(lease.worker)
        )
        spans = self.ledger.take(lease.worker, lease.rows, preferred)
        self.lease_count += 1
        batches = cut_batches(spans, lease.batch_rows)
        order = LeaseOrder(self.lease_count, lease.worker, batches, lease.lr)
        self._open_leases[order.lease] = order
        return order

    def _lease_done(self, report: LeaseReport, now_s: float) -> list[Order]:
        order = self._open_leases.pop(report.lease, None)
        if order is None:  # of a worker that is given up
            return []
        updates = len(order.batches)
        self.log.count(order.worker, order.rows, updates, report.busy_s, report.loss_sum)
        event = protocol.LeaseDone(order.worker, order.rows, updates, report.busy_s)
        return self._obey(self._tell(event), now_s)

    def _drain(self, reason: str, now_s: float) -> list[Order]:
        self._stop_reason = self._stop_reason or reason
        if self.stage != "train":
            return []
        if not self._open_leases and not self.log.rows:
            return self._close_row(now_s) if self.history else self._finish()
        return self._obey(self._tell(protocol.Drain()), now_s)

    # ------------------------------------------------------- merge and after

    def _merged(self, report: MergeReport, now_s: float) -> list[Order]:
        self._tell(protocol.Merged())
        rows = self.rows_merged + self.log.rows
        row = self.log.row(rows, rows / sum(self.ledger.stream_rows), self.ledger.settle())
        row |= {"merged_bytes": report.sent_bytes, "merge_s": now_s - self.log.trained_s}
        self.history.append(row)
        self._stop_reason = self._stop_reason or self._limit_reached()
        due = len(self.history) % self.limits.evaluate_every == 0
        if self.placement.test_rows and (due or self._stop_reason):
            return self._evaluate(now_s)
        return self._close_row(now_s)

    def _evaluate(self, now_s: float) -> list[Order]:
        self.stage, self._eval_begun_s = "evaluate", now_s
        self._sums = MetricSums.zero(self.limits.ks)
        return self._hand_out(self.placement.split_test(self.speeds()))

    def _hand_out(self, pieces: dict[str, list[Piece]]) -> list[Order]:
        orders: list[Order] = []
        for worker, mine in pieces.items():
            if mine:
                self.order_count += 1
                self._open_pieces[self.order_count] = (worker, tuple(mine))
                orders.append(EvaluateOrder(self.order_count, worker, tuple(mine)))
        return orders

    def _evaluated(self, report: EvaluationReport, now_s: float) -> list[Order]:
        if self._open_pieces.pop(report.order, None) is None:
            return []
        self._sums += report.sums
        if self._open_pieces:
            return []
        metrics = self._sums.result()
        self.history[-1] |= {"metrics": metrics, "eval_s": now_s - self._eval_begun_s}
        target = self.limits.target
        if target and metrics[self.limits.target_metric] >= target:
            self._stop_reason = self._stop_reason or "target"
        return self._close_row(now_s)

    def _close_row(self, now_s: float) -> list[Order]:
        self.history[-1]["wall_s"] = self._wall_before_s + now_s - self._started_s
        every = self.limits.checkpoint_every
        due = every and len(self.history) % every == 0
        if self.limits.can_checkpoint and (due or self._stop_reason):
            self.stage = "checkpoint"
            return [CheckpointOrder(next(iter(self.workers)), self.generation)]
        return self._checkpointed(now_s)

    def _checkpointed(self, now_s: float) -> list[Order]:
        self.closed_rows = len(self.history)
        return self._finish() if self._stop_reason else self._begin(now_s)

    def _finish(self) -> list[Order]:
        self.stage = "over"
        return [StopOrder(self._stop_reason)]

    def _limit_reached(self) -> str:
        limits, epochs = self.limits, self.rows_merged / sum(self.ledger.stream_rows)
        if limits.megabatches and self.generation >= limits.megabatches:
            return "megabatches"
        if limits.epochs and epochs >= limits.epochs:
            return "epochs"
        if limits.train_s and self._trained_s() >= limits.train_s:
            return "minutes"
        return ""

    def _trained_s(self) -> float:
        return float(sum(row["train_s"] + row["merge_s"] for row in self.history))

    # ---------------------------------------------------------------- workers

    def _joined(self, worker: str, now_s: float) -> list[Order]:
        self.workers[worker] = None
        self.log.event(worker_event("joined", worker, now_s - self.log.begun_s))
        orders = self._obey(self._tell(WorkerJoined(worker)), now_s)
        return self._spread() + orders

    def _lost(self, worker: str, now_s: float) -> list[Order]:
        if worker not in self.workers:
            return []
        del self.workers[worker]
        if not self.workers:
            self.stage = "lost"
            return [RestartOrder()]
        rows = self.ledger.give_back(worker)
        self._open_leases = {n: o for n, o in self._open_leases.items() if o.worker != worker}
        self.log.drop(worker)
        event = worker_event("lost", worker, now_s - self.log.begun_s, rows)
        self.log.event(event)
        if self.stage in ("evaluate", "checkpoint"):  # this mega-batch's row is written already
            self.history[-1]["events"].append(event)
        if self.stage == "merge":
            self.stage = "train"
        orders = self._obey(self._tell(WorkerLost(worker)), now_s)
        return self._spread() + orders + self._redo(worker)

    def _spread(self) -> list[Order]:
        if self.placement.is_replicated:
            return []
        self.placement.spread(self.speeds())
        return [PlaceOrder()]

    def _redo(self, lost: str) -> list[Order]:
        """Hand to others what the lost worker was evaluating or writing."""
        if self.stage == "checkpoint":
            return [CheckpointOrder(next(iter(self.workers)), self.generation)]
        pieces = [p for worker, mine in self._open_pieces.values() if worker == lost for p in mine]
        self._open_pieces = {n: w for n, w in self._open_pieces.items() if w[0] != lost}
        return self._hand_out(split_pieces(pieces, self.speeds())) if pieces else []
