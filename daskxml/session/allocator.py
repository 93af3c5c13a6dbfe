"""Dividing rows among workers: leases and gangs of training rows, and pieces to evaluate.

A lease belongs to one worker; its rows return to the ledger if that worker is lost, or, where all
workers update one shared model, those of leases that are not done. A gang belongs to all: between
two merges its workers change one common model, so a loss undoes the work of all. An evaluation
counts each row once, whichever worker is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from daskxml.metrics import LossSum, MetricSums
from daskxml.session.commands import (
    Evaluate,
    EvaluationResult,
    GangResult,
    LeaseResult,
    Piece,
    RunGang,
    RunLease,
)
from daskxml.session.ledger import Ledger, Span, cut_batches
from daskxml.session.placement import Placement, split_pieces
from daskxml.session.stopping import StoppingRules
from daskxml.strategies import protocol


class LeaseAllocator:
    """The leases and the gang that are under way.

    Parameters
    ----------
    ledger
        Which rows are leased to which worker.
    placement
        Where the rows lie.
    allocated
        Leases and gangs so far; each gets the next number.
    """

    def __init__(self, ledger: Ledger, placement: Placement, allocated: int) -> None:
        self.ledger, self.placement, self.allocated = ledger, placement, allocated
        self._leases: dict[int, tuple[RunLease, list[Span]]] = {}
        self._gang: RunGang | None = None
        self._gang_begun_s = 0.0
        self._rewinds = False

    def lease(self, lease: protocol.Lease) -> RunLease:
        """Allocate the rows of a lease."""
        spans = self._take(lease.worker, lease.rows)
        self.allocated += 1
        batches = cut_batches(spans, lease.batch_rows)
        command = RunLease(self.allocated, lease.worker, batches, lease.lr)
        self._leases[command.lease] = command, spans
        return command

    def gang(self, gang: protocol.Gang, *, begins: bool, now_s: float) -> RunGang:
        """Allocate the rows of a gang; ``begins``: the first one since a merge."""
        taken = {name: self._take(name, part.rows) for name, part in gang.parts.items()}
        self.allocated += 1
        self._gang = RunGang(
            gang=self.allocated,
            workers=tuple(gang.parts),
            batches=tuple(cut_batches(taken[w], p.batch_rows) for w, p in gang.parts.items()),
            lrs=tuple(part.lr for part in gang.parts.values()),
            pattern=gang.pattern,
            begins=begins,
            rewinds=self._rewinds,
        )
        self._gang_begun_s, self._rewinds = now_s, False
        return self._gang

    def _take(self, worker: str, rows: int) -> list[Span]:
        if not rows:
            return []
        return self.ledger.take(worker, rows, self.placement.preferred_streams(worker))

    def bounded(self, result: LeaseResult) -> protocol.BatchLimited | None:
        """Return the bound on a worker's batches that a lease has found, if any."""
        rows = result.work.max_batch_rows
        if not rows or result.lease not in self._leases:
            return None
        return protocol.BatchLimited(self._leases[result.lease][0].worker, rows)

    def lease_done(self, result: LeaseResult) -> protocol.LeaseDone | None:
        """Close a lease; None if its worker was lost, and its rows are leased again."""
        if result.lease not in self._leases:
            return None
        command, _ = self._leases.pop(result.lease)
        work = result.work
        return protocol.LeaseDone(command.worker, command.rows, work.updates, work.busy_s)

    def gang_done(self, result: GangResult, now_s: float) -> protocol.GangDone | None:
        """Close a gang; None if a loss has undone it."""
        gang = self._gang
        if gang is None or gang.gang != result.gang:
            return None
        self._gang = None
        work = dict(zip(gang.workers, result.ranks, strict=True))
        return protocol.GangDone(
            took_s=now_s - self._gang_begun_s,
            rows={worker: part.rows for worker, part in work.items()},
            updates={worker: part.updates for worker, part in work.items()},
            busy_s={worker: part.busy_s for worker, part in work.items()},
        )

    def is_under_way(self, gang: int) -> bool:
        """Whether the gang of this number has neither ended nor been undone."""
        return self._gang is not None and self._gang.gang == gang

    def lose(self, worker: str, strategy: protocol.Strategy) -> int:
        """Take back the rows that a strategy loses with a worker; return how many."""
        if strategy.is_joint:
            return self.roll_back()
        undone = self._drop_leases(worker)
        if strategy.shares_model:
            return sum(self.ledger.give_back_lease(worker, spans) for spans in undone)
        return self.ledger.give_back(worker)

    def _drop_leases(self, worker: str) -> list[list[Span]]:
        """Forget a worker's open leases; return their rows."""
        lost = {n: spans for n, (lease, spans) in self._leases.items() if lease.worker == worker}
        for number in lost:
            del self._leases[number]
        return list(lost.values())

    def roll_back(self) -> int:
        """Undo the work of all workers since the last merge; return how many rows that is."""
        rows = sum(self.ledger.give_back(name) for name in list(self.ledger.held))
        self._rewinds = self._rewinds or rows > 0
        self._gang = None
        return rows


Pieces = Mapping[str, Sequence[Piece]]  # of each worker


class EvaluationRound:
    """One evaluation: the pieces of rows assigned to workers, and the sums of those that are done.

    Parameters
    ----------
    rules
        The metrics' ranks, and whether the loss of the training rows is computed.
    numbers
        Of the commands; shared by all rounds, so that none is used twice.
    begun_s
        When it began.

    Examples
    --------
    >>> from itertools import count
    >>> evaluation = EvaluationRound(StoppingRules(training_loss=True), count(7), begun_s=0.0)
    >>> where = Placement(is_replicated=True, train_rows=(20,), test_rows=(5,))
    >>> evaluation.begin(where, {"a": 1.0})
    [Evaluate(number=7, worker='a', pieces=((0, 0, 5),), train_pieces=((0, 0, 20),))]
    >>> evaluation.reassign("a", {"b": 1.0})
    [Evaluate(number=8, worker='b', pieces=((0, 0, 5),), train_pieces=((0, 0, 20),))]
    """

    def __init__(self, rules: StoppingRules, numbers: Iterator[int], begun_s: float) -> None:
        self._rules, self.begun_s = rules, begun_s
        self.sums, self.loss = MetricSums.zero(rules.ks), LossSum()
        self._numbers, self._open = numbers, dict[int, Evaluate]()

    @property
    def is_done(self) -> bool:
        """Whether every piece is done."""
        return not self._open

    def begin(self, placement: Placement, speeds: Mapping[str, float]) -> list[Evaluate]:
        """Assign pieces of all rows to the workers, by rows a second."""
        rules, train = self._rules, dict[str, list[Piece]]()
        if rules.training_loss:
            train = placement.split_train(speeds, rules.evaluation_rows)
        return self._assign(placement.split_test(speeds), train)

    def reassign(self, lost: str, speeds: Mapping[str, float]) -> list[Evaluate]:
        """Assign the pieces that a lost worker has not finished to the others."""
        undone = [each for each in self._open.values() if each.worker == lost]
        for command in undone:
            del self._open[command.number]
        test = [piece for command in undone for piece in command.pieces]
        train = [piece for command in undone for piece in command.train_pieces]
        grain = self._rules.evaluation_rows
        return self._assign(split_pieces(test, speeds), split_pieces(train, speeds, grain))

    def _assign(self, test: Pieces, train: Pieces) -> list[Evaluate]:
        shares = {w: (tuple(test.get(w, ())), tuple(train.get(w, ()))) for w in {**test, **train}}
        commands = [
            Evaluate(next(self._numbers), worker, *share)
            for worker, share in shares.items()
            if any(share)
        ]
        self._open |= {command.number: command for command in commands}
        return commands

    def count(self, done: EvaluationResult) -> None:
        """Add the sums of a command, unless its worker was lost."""
        if self._open.pop(done.number, None) is not None:
            self.sums += done.sums
            self.loss += done.loss

    def result(self, now_s: float) -> dict[str, Any]:
        """Return the history's values of an evaluation that is done."""
        found: dict[str, Any] = {"metrics": self.sums.result() if self.sums.rows else {}}
        if by_frequency := self.sums.by_frequency():
            found |= {"by_frequency": by_frequency}
        if self.loss.rows:
            found |= {"training_loss": self.loss.mean}
        return found | {"eval_s": now_s - self.begun_s}
