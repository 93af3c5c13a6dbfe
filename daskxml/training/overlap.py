"""A session whose merges travel while the workers are at the next mega-batch.

When the leases of mega-batch t are back, every worker takes a *snapshot* ``s_i`` of its replica
``w_i`` and goes on with mega-batch t + 1 from a guess ``v_i`` of the merged model: the replica,
with the momentum that is known already (`daskxml.training.snapshot`). Snapshots merge meanwhile,

    m_t = merge of all s_i        (the strategy's weights; momentum, outer optimizer, any rule)

and when all workers have ``m_t``, each corrects its replica between two batches::

    w_i += m_t - v_i

so that what it has done since the snapshot stays. ``m_t`` is then the global model, and the replica
is that model plus the steps of mega-batch t + 1, which is what the next merge takes for granted. So
nothing in a merge is stale, and rows, weights and momentum are counted as without overlap; only the
steps between snapshot and correction were taken elsewhere than at the merged model. Merge t + 1
begins when mega-batch t + 1 is over and merge t has arrived: never more than one is under way.

The idea is that of Wang et al., "Overlap Local-SGD", ICASSP 2020; Sun et al., "CO2: Efficient
Distributed Training with Full Communication-Computation Overlap", ICLR 2024; and Douillard et al.,
"Streaming DiLoCo with Overlapping Communication", 2025. Those pull replicas to the merged model or
mix the two; here nothing of the work in between is dropped. The whole model travels at once.

The global model is measured when mega-batch t + 1 is over, while nobody works: the row of the
history for merge t is closed there. A merge does not overlap where the run needs every replica to
be the global model: the last one, one after which a checkpoint is written, and one that a worker
which wants to join waits for. Replicas keep their optimizers' moments, or forget them when they are
corrected.

If a worker is lost while a merge travels, its rows of both mega-batches go back to the ledger, and
the others merge their snapshots without it; its weight is divided among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from daskxml.strategies import protocol
from daskxml.training import orders
from daskxml.training.history import MegabatchLog
from daskxml.training.session import Session


@dataclass
class Travel:
    """A merge that is under way while the next mega-batch is worked on.

    Attributes
    ----------
    log
        Of the mega-batch that is merged.
    order
        What was ordered last.
    begun_s
        When it began.
    """

    log: MegabatchLog
    order: orders.MergeOrder
    begun_s: float

    def leave_out(self, worker: str) -> orders.MergeOrder:
        """Return the order without a lost worker."""
        weights = reweighed(self.order.weights, worker)
        self.log.weigh(weights, self.log.perturbed)
        momentum = self.order.momentum if self.log.rows else 0.0  # no work, no step
        self.order = replace(self.order, weights=weights, momentum=momentum)
        return self.order


def reweighed(weights: Mapping[str, float], lost: str) -> dict[str, float]:
    """Return the weights without a lost worker's, with the same sum in the same proportions.

    Where the others have none, all of them are equal.

    Examples
    --------
    >>> reweighed({"a": 0.5, "b": 0.25, "c": 0.25}, "b")
    {'a': 0.6666666666666666, 'c': 0.3333333333333333}
    >>> reweighed({"a": 1.0, "b": 0.0, "c": 0.0}, "a")
    {'b': 0.5, 'c': 0.5}
    """
    kept = {name: weight for name, weight in weights.items() if name != lost}
    whole, left = sum(weights.values()), sum(kept.values())
    if left == 0.0:
        return {name: whole / len(kept) for name in kept}
    return {name: weight * whole / left for name, weight in kept.items()}


def _ends(commands: Sequence[protocol.Command]) -> bool:
    """Whether commands end a mega-batch."""
    return any(isinstance(c, protocol.Measure | protocol.Merge) for c in commands)


class OverlappedSession(Session):
    """One run; see `daskxml.training.session.Session` and the head of this module."""

    def __init__(self, *args: Any, **values: Any) -> None:
        self._travel: Travel | None = None
        self._held: tuple[protocol.Command, ...] | None = None  # while the last row is closed
        self._waiting: tuple[protocol.Command, ...] = ()  # for the merge that is under way
        self._is_awaited = False
        super().__init__(*args, **values)

    @property
    def may_join(self) -> bool:
        """Whether a worker that has the global model may join now."""
        return super().may_join and self._travel is None and self._held is None

    @property
    def rows_done(self) -> int:
        """Rows merged, those of a merge under way, and those of this mega-batch."""
        travelling = self._travel.log.rows if self._travel is not None else 0
        is_open = self.stage in ("train", "merge") or self._held is not None
        return self.rows_merged + travelling + (self.log.rows if is_open else 0)

    def handle(self, report: orders.Report, now_s: float) -> list[orders.Order]:
        """Book what happened; return what is to be done."""
        match report:
            case orders.MergeReport() if self._travel is not None:
                return self._arrived(report, self._travel, now_s)
            case orders.Awaited():
                self._is_awaited = True
                return []
        return super().handle(report, now_s)

    # ------------------------------------------------------- end of a mega-batch

    def _obey(self, commands: Sequence[protocol.Command], now_s: float) -> list[orders.Order]:
        if self._held is not None:  # nobody is to work while the global model is measured
            self._held = tuple(commands)
            return []
        if _ends(commands) and (self._travel is not None or self._is_unclosed):
            return self._hold_back(commands, now_s)
        todo = super()._obey(commands, now_s)
        match todo:
            case [orders.MergeOrder() as order] if self._may_overlap(now_s):
                order = replace(order, overlaps=True)
                return [order, *self._go_on(order, now_s)]
        return todo

    @property
    def _is_unclosed(self) -> bool:
        return self.closed_rows < len(self.history)

    def _may_overlap(self, now_s: float) -> bool:
        """Whether the next merge leaves nothing to be done that needs everybody."""
        epoch = (self.rows_merged + self.log.rows) / sum(self.ledger.stream_rows)
        row = {"epoch": epoch, "train_s": now_s - self.log.begun_s, "merge_s": 0.0}
        is_last = self._stop_reason or self.limits.reached([*self.history, row])
        if is_last or self._is_awaited or self.limits.is_checkpoint_turn(self.generation + 1):
            self._is_awaited = False
            return False
        return True

    def _go_on(self, order: orders.MergeOrder, now_s: float) -> list[orders.Order]:
        """Begin the next mega-batch while the merge is under way."""
        self._travel = Travel(self.log, order, now_s)
        self.ledger.seal()
        self._tell(protocol.Merged())
        todo = self._begin(now_s)
        self.log.megabatch += 1
        self.log.untold_since_s = self._travel.log.begun_s
        return todo

    def _hold_back(self, commands: Sequence[protocol.Command], now_s: float) -> list[orders.Order]:
        """Wait for the merge that is under way, and for its row to be closed."""
        self._end_training(now_s)
        self._waiting = tuple(commands)
        return [] if self._travel is not None else self._close(now_s)

    # -------------------------------------------------- a merge that has arrived

    def _arrived(
        self, report: orders.MergeReport, travel: Travel, now_s: float
    ) -> list[orders.Order]:
        """Take down a merge whose model all replicas have been corrected by."""
        is_waited_for = self.stage == "merge"
        wait_s = now_s - self.log.trained_s if is_waited_for else 0.0
        log, self._travel = travel.log, None
        log.merged(report, travel.begun_s + wait_s)
        log.overlapped_s = now_s - travel.begun_s - wait_s
        self.log.corrected, self.log.untold_since_s = dict(report.corrected), self.log.begun_s
        rows = self.rows_merged + log.rows
        epoch = rows / sum(self.ledger.stream_rows)
        self.history.append(log.row(rows, epoch, self.ledger.settle_sealed()))
        return self._close(now_s) if is_waited_for else []

    def _close(self, now_s: float) -> list[orders.Order]:
        """Close the row of the last merge, then do what waits for that."""
        if self.log.rows:
            self._held = self._waiting
        else:  # nothing was done any more: that merge is the last one
            self._tell(protocol.Merged())
        self._stop_reason = self._stop_reason or self.limits.reached(self.history)
        return self._evaluate(now_s) if self._is_evaluation_due() else self._close_row(now_s)

    @property
    def _is_last(self) -> bool:
        """Whether the run ends with the last row of the history."""
        return super()._is_last and self._held is None

    def _checkpointed(self, now_s: float) -> list[orders.Order]:
        if self._held is None:
            return super()._checkpointed(now_s)
        self.closed_rows = len(self.history)
        held, self._held = self._held, None
        self.log.postpone(now_s)
        if _ends(held):
            self.stage = "merge"
            return self._obey(held, now_s)
        self.stage = "train"  # a worker was lost meanwhile, and others do its rows
        todo = self._obey(held, now_s)
        return [*todo, *self._drain(self._stop_reason, now_s)] if self._stop_reason else todo

    # ------------------------------------------------------------------ workers

    def _lost(self, worker: str, now_s: float) -> list[orders.Order]:
        travel = self._travel  # a merge that begins because of the loss is without the worker
        todo = super()._lost(worker, now_s)
        return todo if travel is None or not self.workers else [travel.leave_out(worker), *todo]

    def _take_back(self, worker: str) -> int:
        if self._travel is None:
            return super()._take_back(worker)
        self._travel.log.drop(worker)
        return self.ledger.give_back_sealed(worker) + super()._take_back(worker)

    def note(self, event: dict[str, Any]) -> None:
        """Tell of something; the last row may be open while the next begins."""
        if self.stage in ("train", "merge"):
            self.log.event(event)
        else:
            super().note(event)
