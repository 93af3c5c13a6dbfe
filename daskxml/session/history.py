"""The record of a run: a row a mega-batch, which `daskxml.records.run_dir` writes as JSON.

What a row says of decisions and of work is folded from the trace, event by event
(`MegabatchLog.take`): by the session while it runs, and by `daskxml.records.audit` from the stored
trace. Times, losses, bytes and spans are added by the session.

==================================  ================================================================
key                                 meaning
==================================  ================================================================
``megabatch``, ``rows``, ``epoch``  number, from 1; rows and epochs since the run began
``wall_s``                          seconds since the run began, evaluation included
``train_s``, ``merge_s``,           seconds of this mega-batch: training, what the workers waited
``eval_s``                          for the merge, evaluation
``loss``                            mean loss of its rows, each by the replica of its time
``metrics``, ``training_loss``      of the merged model, where measured: on the test rows, on all
                                    training rows
``workers``                         every worker whose replica was merged; see below
``perturbed``                       whether the merging weights were perturbed
``regularized``                     whether the norms were small enough for that, where a strategy
                                    compares them
``momentum``                        gamma of the merge, where there is one
``late``, ``given_up``              the workers that the merge began without; rows of late workers
                                    that were given to others, by worker
``merged_bytes``, ``moved_bytes``   bytes between workers: in the merge; in the exchanges of gangs
``notes``                           means that an algorithm reports: ``orthogonality/LAYER``
                                    (Adasum), ``staleness`` in batches (asynchronous), ``active``
                                    (sampled output layer: share of the labels scored),
                                    ``memory rows`` (see the event ``memory``)
``events``                          ``joined`` (a late worker is back, too), ``late``, ``given up``,
                                    ``lost`` (these with the rows returned to the ledger),
                                    ``memory`` (the device's memory holds batches of so many rows
                                    only); what happens between two mega-batches is of the second,
                                    with ``after_s`` below 0, and after the last one of none
``trace``                           every event that the strategy received since the last row, and
                                    what it decided: see `daskxml.session.trace`
==================================  ================================================================

Each of ``workers`` has its ``updates``, ``rows``, ``nonzeros``, ``batch_rows``, ``lr`` (before the
schedule), merging ``weight``, ``pool_threads`` (0: not a pool; updates and rate of a pool are those
of single threads), ``busy_s``, ``idle_s`` and its ``leases`` as lists of ``[epoch, stream, start,
stop]``: together they are the rows of the mega-batch, each once. Where all update one shared model,
a lost worker is listed with what it had done, and weights are shares of the updates. Under Adaptive
SGD each has its real ``batch_size``, the updates that weigh it (``counted``) and the ``norm`` of
its replica before the merge."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from daskxml.core.work_stats import Means, WorkStats, merge_means, sum_stats
from daskxml.session.commands import MergeResult
from daskxml.session.ledger import Span
from daskxml.strategies import protocol
from daskxml.strategies.megabatch import Strategy


class MegabatchLog:
    """Collects the values of one row of the history.

    Attributes
    ----------
    begun_s, trained_s
        Times at which the mega-batch began and its training ended.
    work
        Each worker's work.
    open, done
        The parts in it that are under way, and those that are done, in order.
    views
        What the strategy said of each worker when training ended.
    weights, decided
        Of the workers that are merged, and the strategy's merge.
    squared_norms
        Of the replicas before it, where they were measured.
    departed
        Lost workers whose work stays in a shared model.
    late
        The workers that the merge began without.
    events
        When something happened to a worker, and what.
    trace
        The strategy's events and decisions, up to the merge.
    """

    def __init__(self, megabatch: int, begun_s: float) -> None:
        self.megabatch, self.begun_s, self.trained_s = megabatch, begun_s, begun_s
        self.work: dict[str, WorkStats] = {}
        self.open: dict[str, list[protocol.Part]] = {}
        self.done: dict[str, list[protocol.Part]] = {}
        self.views: Mapping[str, protocol.WorkerView] = {}
        self.departed: dict[str, protocol.WorkerView] = {}
        self.late: list[str] = []
        self.given_up: dict[str, int] = {}
        self.weights: Mapping[str, float] = {}
        self.decided = protocol.Merge({}, 0.0, perturbed=False)
        self.squared_norms: Mapping[str, float] = {}
        self.events: list[tuple[float, dict[str, Any]]] = []
        self.means: Means = {}
        self.moved_bytes = self.merged_bytes = 0
        self.merge_s = 0.0
        self.trace: list[Any] = []
        self._is_trained, self._known_late = False, set[str]()

    @property
    def rows(self) -> int:
        """Rows done so far that are in no merge, or in this one once it is decided."""
        return sum(work.rows for name, work in self.work.items() if name not in self.late)

    @property
    def held_rows(self) -> int:
        """Rows done and under way."""
        held = (*self.open.values(), *self.done.values())
        return sum(part.rows for parts in held for part in parts)

    def following(self) -> MegabatchLog:
        """Return the log of the next mega-batch, with what late workers have done and hold."""
        log = MegabatchLog(self.megabatch, self.begun_s)
        log.work = {name: work for name, work in self.work.items() if name in self.late}
        log.open = {name: parts for name, parts in self.open.items() if name in self.late}
        log.done = {name: parts for name, parts in self.done.items() if name in self.late}
        log._known_late = {*self.late}
        return log

    # ------------------------------------------------------------- from the trace

    def take(
        self, strategy: Strategy, states: tuple[Any, Any], event: protocol.Event,
        commands: Sequence[protocol.Command], work: Mapping[str, WorkStats] | None = None,
        now_s: float = 0.0,
    ) -> None:  # fmt: skip
        """Count an event and what the strategy decided on it, from its state before and after.

        ``work`` is the work that the event reports, by worker; without it, what the event says.
        """
        match event:
            case protocol.WorkDone(_, rows, updates, busy_s):
                totals = {n: WorkStats(rows[n], updates[n], busy_s=busy_s[n]) for n in rows}
                self._count(work or totals)
                self._finish(rows)
            case protocol.Measured(norms):
                self.squared_norms = norms
            case protocol.BatchLimited(worker, limit):
                self._happened(now_s, "memory", worker, batch_rows=limit)
            case protocol.WorkerLost(worker):
                lost = self.rows_lost(worker, strategy)
                self._happened(now_s, "lost", worker, rows_returned=lost)
                self._lose(worker, strategy, states[0])
            case protocol.WorkerJoined(worker, keeps_change=keeps_change):
                lost = 0 if keeps_change else self.rows_lost(worker, strategy)
                self._happened(now_s, "joined", worker, rows_returned=lost)
                self._known_late.discard(worker)
                if not keeps_change:
                    self._drop(worker)
            case protocol.WorkerSilent():
                self._is_trained, self.late = False, []
            case protocol.WorkRolledBack():
                self._drop_all()
        for command in commands:
            if isinstance(command, protocol.Work):
                for name, part in command.parts.items():
                    if part.rows:  # a gang's worker may have none
                        self.open.setdefault(name, []).append(part)
            if isinstance(command, protocol.GiveUp):
                lost = self.rows_lost(command.worker, strategy)
                self.given_up[command.worker] = self.given_up.get(command.worker, 0) + lost
                self._happened(now_s, "given up", command.worker, rows_returned=lost)
                self._drop(command.worker)
            if isinstance(command, protocol.Measure | protocol.Merge) and not self._is_trained:
                self.views, self._is_trained = strategy.view(states[1]), True
            if isinstance(command, protocol.Merge):
                self.decided = command
                self.late = [n for n in strategy.view(states[1]) if n not in command.weights]
                for name in [name for name in self.late if name not in self._known_late]:
                    self._known_late.add(name)
                    self._happened(now_s, "late", name, rows_returned=0)
                shares = strategy.shares_model
                self.weights = self._update_shares() if shares else command.weights

    def _happened(self, now_s: float, kind: str, worker: str, **values: int) -> None:
        self.events.append((now_s, {"kind": kind, "worker": worker, **values}))

    def _count(self, work: Mapping[str, WorkStats]) -> None:
        for worker, done in work.items():
            self.work[worker] = sum_stats([self.work.get(worker, WorkStats()), done])
            self.means = merge_means([self.means, done.means])
            self.moved_bytes += done.sent_bytes

    def _finish(self, rows: Mapping[str, int]) -> None:
        for name, count in rows.items():
            if part := self.open_part(name, count):
                self.open[name].remove(part)
                self.done.setdefault(name, []).append(part)

    def open_part(self, worker: str, rows: int) -> protocol.Part | None:
        """Return the first of a worker's parts under way that has so many rows."""
        return next((part for part in self.open.get(worker, ()) if part.rows == rows), None)

    def rows_lost(self, worker: str, strategy: Strategy) -> int:
        """Return how many rows of work a strategy loses with a worker, before it is counted."""
        lost = [self.open] if strategy.shares_model else [self.open, self.done]
        names = {*self.open, *self.done} if strategy.is_joint else {worker}
        return sum(part.rows for parts in lost for name in names for part in parts.get(name, ()))

    def _lose(self, worker: str, strategy: Strategy, before: Any) -> None:
        if worker in self.late:  # the merge goes on
            self.late.remove(worker)
            return self._drop(worker)
        self._is_trained, self.late = False, []
        if strategy.is_joint:
            self._drop_all()
        elif strategy.shares_model:
            self.departed[worker] = strategy.view(before)[worker]
            self.open.pop(worker, None)
        else:
            self._drop(worker)

    def _drop(self, worker: str) -> None:
        for values in (self.work, self.open, self.done):
            values.pop(worker, None)

    def _drop_all(self) -> None:
        """Remove all work since the last merge; bytes that moved stay counted."""
        self.work, self.open, self.done, self.means = {}, {}, {}, {}

    def _update_shares(self) -> dict[str, float]:
        """Return the share of the updates of all that are merged, and of the departed."""
        present = self.decided.weights
        names = [*present, *(n for n in self.departed if n in self.work and n not in present)]
        updates = {name: self.work.get(name, WorkStats()).updates for name in names}
        return {name: count / max(1, sum(updates.values())) for name, count in updates.items()}

    def counted(self) -> dict[str, Any]:
        """Return the part of the row that follows from the trace."""
        regularized, momentum = self.decided.regularized, self.decided.momentum
        return {
            "workers": {name: self._worker(name) for name in self.weights},
            "perturbed": self.decided.perturbed,
            **({} if regularized is None else {"regularized": regularized}),
            **({"momentum": momentum} if momentum else {}),
            **({"late": self.late} if self.late else {}),
            **({"given_up": self.given_up} if self.given_up else {}),
        }

    def _worker(self, name: str) -> dict[str, Any]:
        work, view = self.work.get(name, WorkStats()), (self.departed | {**self.views})[name]
        norms = self.squared_norms
        return {
            "updates": work.updates,
            "rows": work.rows,
            "batch_rows": view.batch_rows,
            "lr": view.lr,
            "weight": self.weights[name],
            "pool_threads": view.pool_threads,
            "busy_s": work.busy_s,
            **({} if view.batch_size is None else {"batch_size": view.batch_size}),
            **({} if view.counted is None else {"counted": view.counted}),
            **({"norm": _root(norms[name])} if name in norms else {}),
        }

    # -------------------------------------------------------------- what was measured

    def merged(self, result: MergeResult, now_s: float) -> None:
        """Record the end of the merge."""
        self.means = merge_means([self.means, result.means])
        self.merged_bytes, self.merge_s = result.sent_bytes, now_s - self.trained_s

    def row(self, rows: int, epoch: float, spans: Mapping[str, list[list[Span]]]) -> dict[str, Any]:
        """Return this mega-batch's row; ``wall_s`` and the evaluation are filled in later."""
        counted = self.counted()
        loss_sum = sum(self.work[name].loss_sum for name in self.work if name not in self.late)
        for name, worker in counted["workers"].items():
            worker |= self._measured(name, spans.get(name, []))
        return {
            "megabatch": self.megabatch,
            "rows": rows,
            "epoch": epoch,
            "wall_s": 0.0,
            "train_s": self.trained_s - self.begun_s,
            "merge_s": self.merge_s,
            "eval_s": 0.0,
            "loss": loss_sum / max(1, self.rows),
            "metrics": {},
            **counted,
            "merged_bytes": self.merged_bytes,
            "moved_bytes": self.moved_bytes,
            "notes": {name: total / count for name, (total, count) in self.means.items() if count},
            "events": [each | {"after_s": at_s - self.begun_s} for at_s, each in self.events],
            "trace": self.trace,
        }

    def _measured(self, name: str, spans: list[list[Span]]) -> dict[str, Any]:
        work = self.work.get(name, WorkStats())
        return {
            "nonzeros": work.nonzeros,
            "idle_s": max(0.0, self.trained_s - self.begun_s - work.busy_s),
            "leases": [[list(span) for span in lease] for lease in spans],
        }


def _root(squared: float) -> float:
    """Return a norm by its square; nan for what is the square of none, as in a damaged record."""
    return math.sqrt(squared) if squared >= 0.0 else math.nan
