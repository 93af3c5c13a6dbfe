"""Dividing rows among workers: work on training rows, and pieces to evaluate.

A lease belongs to one worker; its rows return to the ledger if that worker is lost, or, where all
workers update one shared model, those of leases that are not done. A gang belongs to all: between
two merges its workers change one common model, so a loss undoes the work of all. An evaluation
counts each row once, whichever worker is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from daskxml.config.sections import EvaluationSection
from daskxml.metrics import LossSum, MetricSums
from daskxml.session.commands import Evaluate, EvaluationResult, Piece, RunWork, WorkResult
from daskxml.session.ledger import Ledger, Span, cut_batches
from daskxml.session.placement import Placement, split_pieces
from daskxml.strategies import protocol
from daskxml.strategies.megabatch import Strategy


@dataclass(frozen=True)
class OpenWork:
    """Work under way, since ``begun_s``, with the rows of each worker.

    If it ``is_void``, its rows were given to others.
    """

    command: RunWork
    spans: Mapping[str, list[Span]]
    begun_s: float
    is_void: bool = False


class WorkAllocator:
    """The work that is under way.

    Parameters
    ----------
    ledger
        Which rows are leased to which worker.
    placement
        Where the rows are.
    allocated
        Pieces of work so far; each gets the next number.
    """

    def __init__(self, ledger: Ledger, placement: Placement, allocated: int) -> None:
        self.ledger, self.placement, self.allocated = ledger, placement, allocated
        self._open: dict[int, OpenWork] = {}
        self._rewinds = False
        self.given_up: set[str] = set()  # workers whose rows are done again by others

    def allocate(
        self, work: protocol.Work, *, begins: bool, now_s: float, scales_parts: bool = False
    ) -> RunWork:
        """Allocate the rows of some work; ``begins``: the first since a merge."""
        spans = {name: self._take(name, part.rows) for name, part in work.parts.items()}
        self.allocated += 1
        command = RunWork(
            number=self.allocated,
            workers=tuple(work.parts),
            batches=tuple(cut_batches(spans[n], p.batch_rows) for n, p in work.parts.items()),
            lrs=tuple(part.lr for part in work.parts.values()),
            pattern=work.pattern,
            begins=begins,
            rewinds=self._rewinds,
            scales_parts=scales_parts,
        )
        self._open[command.number] = OpenWork(command, spans, now_s)
        self._rewinds = False
        return command

    def _take(self, worker: str, rows: int) -> list[Span]:
        if not rows:
            return []
        return self.ledger.take(worker, rows, self.placement.preferred_streams(worker))

    def bounds(self, result: WorkResult) -> list[protocol.BatchLimited]:
        """Return the bounds on workers' batches that some work has found."""
        work = self._open.get(result.number)
        names = work.command.workers if work else ()
        found = zip(names, result.ranks, strict=bool(work))
        return [protocol.BatchLimited(n, r) for n, result in found if (r := result.max_batch_rows)]

    def done(self, result: WorkResult, now_s: float) -> protocol.WorkDone | None:
        """Close some work; None if a loss has undone it, and its rows are given out again."""
        work = self._open.pop(result.number, None)
        if work is None:
            return None
        command, ranks = work.command, dict(zip(work.command.workers, result.ranks, strict=True))
        if work.is_void:
            (name,) = command.workers
            return protocol.WorkDone.alone(name, rows=0, updates=0, busy_s=0.0)
        return protocol.WorkDone(
            took_s=now_s - work.begun_s,
            rows={name: command.rows_of(rank) for rank, name in enumerate(command.workers)},
            updates={name: done.updates for name, done in ranks.items()},
            busy_s={name: done.busy_s for name, done in ranks.items()},
        )

    def give_up(self, worker: str) -> None:
        """Take back all rows of a late worker, whose work goes on in vain."""
        own = {n: work for n, work in self._open.items() if worker in work.spans}
        self._open |= {n: replace(work, is_void=True) for n, work in own.items()}
        self.given_up.add(worker)
        self.ledger.give_back(worker)

    def rejoined(self, worker: str) -> None:
        """Take back the rows of a late worker that is back without its change."""
        self.given_up.discard(worker)
        self.ledger.give_back(worker)

    def is_under_way(self, number: int) -> bool:
        """Whether the work of this number has neither ended nor been undone."""
        return number in self._open

    def leases(self, worker: str) -> list[tuple[float, int]]:
        """Return when a worker was given each of its leases under way, and their rows."""
        own = (work for work in self._open.values() if worker in work.spans)
        return [(work.begun_s, work.command.rows_of(0)) for work in own]

    def lose(self, worker: str, strategy: Strategy) -> int:
        """Take back the rows that a strategy loses with a worker; return how many."""
        if strategy.is_joint:
            return self.roll_back()
        self.given_up.discard(worker)
        undone = [n for n, work in self._open.items() if worker in work.spans]
        spans = [self._open.pop(number).spans[worker] for number in undone]
        if strategy.shares_model:
            return sum(self.ledger.give_back_lease(worker, lease) for lease in spans)
        return self.ledger.give_back(worker)

    def roll_back(self) -> int:
        """Undo the work of all workers since the last merge; return how many rows that is."""
        rows = sum(self.ledger.give_back(name) for name in list(self.ledger.held))
        self._rewinds = self._rewinds or rows > 0
        self._open.clear()
        return rows


Pieces = Mapping[str, Sequence[Piece]]  # of each worker


class EvaluationRound:
    """One evaluation: the pieces of rows assigned to workers, and the sums of those that are done.

    Parameters
    ----------
    rules
        ``[evaluation]``: ranks, and whether the loss of the training rows is computed.
    numbers
        Of the commands; shared by all rounds, so that none is used twice.
    begun_s
        When it began.

    Examples
    --------
    >>> from itertools import count
    >>> evaluation = EvaluationRound(EvaluationSection(training_loss=True), count(7), 0.0)
    >>> where = Placement(is_replicated=True, train_rows=(20,), test_rows=(5,))
    >>> evaluation.begin(where, {"a": 1.0})
    [Evaluate(number=7, worker='a', pieces=((0, 0, 5),), train_pieces=((0, 0, 20),))]
    >>> evaluation.reassign("a", {"b": 1.0})
    [Evaluate(number=8, worker='b', pieces=((0, 0, 5),), train_pieces=((0, 0, 20),))]
    """

    def __init__(self, rules: EvaluationSection, numbers: Iterator[int], begun_s: float) -> None:
        self._rules, self.begun_s = rules, begun_s
        self.sums, self.loss = MetricSums.zero(rules.k), LossSum()
        self._numbers, self._open = numbers, dict[int, Evaluate]()

    @property
    def is_done(self) -> bool:
        """Whether every piece is done."""
        return not self._open

    def begin(self, placement: Placement, speeds: Mapping[str, float]) -> list[Evaluate]:
        """Assign pieces of all rows to the workers, by rows a second."""
        rules, train = self._rules, dict[str, list[Piece]]()
        if rules.training_loss:
            train = placement.split_train(speeds, rules.batch_rows)
        return self._assign(placement.split_test(speeds), train)

    def reassign(self, lost: str, speeds: Mapping[str, float]) -> list[Evaluate]:
        """Assign the pieces that a lost worker has not finished to the others."""
        undone = [each for each in self._open.values() if each.worker == lost]
        for command in undone:
            del self._open[command.number]
        test = [piece for command in undone for piece in command.pieces]
        train = [piece for command in undone for piece in command.train_pieces]
        grain = self._rules.batch_rows
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
        if self.loss.rows:
            found |= {"training_loss": self.loss.mean}
        return found | {"eval_s": now_s - self.begun_s}
