"""One evaluation: the test rows handed out in pieces, each counted once whoever is lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from daskxml.metrics import MetricSums
from daskxml.training.orders import EvaluateOrder, EvaluationReport, Piece


class EvaluationRound:
    """Which pieces of the test rows are with whom, and the sums of those that are back.

    Parameters
    ----------
    ks
        Ranks of the metrics.
    numbers
        Where orders get their numbers from; shared by all rounds, so that none is used twice.
    begun_s
        When it began.

    Examples
    --------
    >>> from itertools import count
    >>> evaluation = EvaluationRound((1,), count(7), begun_s=0.0)
    >>> evaluation.hand_out({"a": [(0, 0, 5)], "b": []})
    [EvaluateOrder(order=7, worker='a', pieces=((0, 0, 5),))]
    >>> evaluation.take_back("a"), evaluation.is_done
    ([(0, 0, 5)], True)
    """

    def __init__(self, ks: Sequence[int], numbers: Iterator[int], begun_s: float) -> None:
        self.sums, self.begun_s = MetricSums.zero(ks), begun_s
        self._numbers, self._open = numbers, dict[int, EvaluateOrder]()

    @property
    def is_done(self) -> bool:
        """Whether every piece that was handed out is back."""
        return not self._open

    def hand_out(self, pieces: Mapping[str, Sequence[Piece]]) -> list[EvaluateOrder]:
        """Give every worker its pieces."""
        orders = [
            EvaluateOrder(next(self._numbers), worker, tuple(mine))
            for worker, mine in pieces.items()
            if mine
        ]
        self._open |= {order.order: order for order in orders}
        return orders

    def book(self, report: EvaluationReport) -> None:
        """Add the sums of an order; nothing, if its worker has been given up."""
        if self._open.pop(report.order, None) is not None:
            self.sums += report.sums

    def take_back(self, worker: str) -> list[Piece]:
        """Return the pieces that a lost worker has left undone."""
        lost = [order for order in self._open.values() if order.worker == worker]
        for order in lost:
            del self._open[order.order]
        return [piece for order in lost for piece in order.pieces]
