"""One evaluation: rows handed out in pieces, each counted once whoever is lost.

The test rows are ranked; with ``[evaluation] training_loss`` the loss of all training rows is
added up as well, also by the global model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from daskxml.metrics import LossSum, MetricSums
from daskxml.training.limits import Limits
from daskxml.training.orders import EvaluateOrder, EvaluationReport, Piece
from daskxml.training.placement import Placement, split_pieces

Pieces = Mapping[str, Sequence[Piece]]  # of each worker


class EvaluationRound:
    """Which pieces of the rows are with whom, and the sums of those that are back.

    Parameters
    ----------
    limits
        The metrics' ranks, and whether the training rows are to be gone through.
    numbers
        Where orders get their numbers from; shared by all rounds, so that none is used twice.
    begun_s
        When it began.

    Examples
    --------
    >>> from itertools import count
    >>> evaluation = EvaluationRound(Limits(training_loss=True), count(7), begun_s=0.0)
    >>> where = Placement(is_replicated=True, train_rows=(20,), test_rows=(5,))
    >>> evaluation.begin(where, {"a": 1.0})
    [EvaluateOrder(order=7, worker='a', pieces=((0, 0, 5),), train_pieces=((0, 0, 20),))]
    >>> evaluation.hand_on("a", {"b": 1.0})
    [EvaluateOrder(order=8, worker='b', pieces=((0, 0, 5),), train_pieces=((0, 0, 20),))]
    """

    def __init__(self, limits: Limits, numbers: Iterator[int], begun_s: float) -> None:
        self._limits, self.begun_s = limits, begun_s
        self.sums, self.loss = MetricSums.zero(limits.ks), LossSum()
        self._numbers, self._open = numbers, dict[int, EvaluateOrder]()

    @property
    def is_done(self) -> bool:
        """Whether every piece that was handed out is back."""
        return not self._open

    def begin(self, placement: Placement, speeds: Mapping[str, float]) -> list[EvaluateOrder]:
        """Give every worker its pieces of all rows, by rows a second."""
        limits, train = self._limits, dict[str, list[Piece]]()
        if limits.training_loss:
            train = placement.split_train(speeds, limits.evaluation_rows)
        return self._hand_out(placement.split_test(speeds), train)

    def hand_on(self, lost: str, speeds: Mapping[str, float]) -> list[EvaluateOrder]:
        """Give the others what a lost worker has left undone."""
        undone = [order for order in self._open.values() if order.worker == lost]
        for order in undone:
            del self._open[order.order]
        test = [piece for order in undone for piece in order.pieces]
        train = [piece for order in undone for piece in order.train_pieces]
        grain = self._limits.evaluation_rows
        return self._hand_out(split_pieces(test, speeds), split_pieces(train, speeds, grain))

    def _hand_out(self, test: Pieces, train: Pieces) -> list[EvaluateOrder]:
        shares = {w: (tuple(test.get(w, ())), tuple(train.get(w, ()))) for w in {**test, **train}}
        orders = [
            EvaluateOrder(next(self._numbers), worker, *share)
            for worker, share in shares.items()
            if any(share)
        ]
        self._open |= {order.order: order for order in orders}
        return orders

    def book(self, report: EvaluationReport) -> None:
        """Add the sums of an order; nothing, if its worker has been given up."""
        if self._open.pop(report.order, None) is not None:
            self.sums += report.sums
            self.loss += report.loss

    def result(self, now_s: float) -> dict[str, Any]:
        """Return what the history tells of it, once it is done."""
        found: dict[str, Any] = {"metrics": self.sums.result() if self.sums.rows else {}}
        if self.loss.rows:
            found |= {"training_loss": self.loss.mean}
        return found | {"eval_s": now_s - self.begun_s}
