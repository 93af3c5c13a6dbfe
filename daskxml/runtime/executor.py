"""Orders of a session, carried out as Dask futures.

Leases are pinned to their worker; each reports itself through the worker's event log when it is
done, and its future is released at once (a held future would be executed again if its worker
died). Merging is all or nothing: every worker reduces into a scratch model, and only when all have
it are they told to commit. A worker lost before that undoes the merge, one lost after it does not.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

from distributed import Future

from daskxml.errors import ClusterError, DaskxmlError, TrainingError
from daskxml.metrics import MetricSums
from daskxml.runtime import worker as tasks
from daskxml.runtime.crew import (
    NOTICE_S,
    Crew,
    Hand,
    WorkerGone,
    broken_ring,
    first_failure,
    loss_of_any,
    lost_any,
)
from daskxml.runtime.loading import LoadedData
from daskxml.strategies.protocol import Measured
from daskxml.training.ledger import Span
from daskxml.training.orders import (
    CheckpointOrder,
    CheckpointReport,
    EvaluateOrder,
    EvaluationReport,
    LeaseOrder,
    MeasureOrder,
    MergeOrder,
    MergeReport,
    Order,
    PlaceOrder,
    Report,
)
from daskxml.training.session import Session

MERGE_ATTEMPTS = 4


class Executor:
    """Carries out the orders of one session.

    Parameters
    ----------
    crew
        The workers.
    session
        Whose orders these are; read for its placement, never written to.
    data
        The partitions on the workers.
    report
        Called with every report that comes back.
    warn
        Called with one line for the user.
    """

    def __init__(
        self,
        crew: Crew,
        session: Session,
        data: LoadedData,
        seed: int,
        report: Callable[[Report | BaseException], None],
        warn: Callable[[str], None],
    ) -> None:
        self.crew, self.session = crew, session
        self.train, self.test, self.label_counts = data.train, data.test, data.label_counts
        self.seed = seed
        self._report, self._warn = report, warn
        self._leases: dict[int, tuple[Hand, Future]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self.barrier: asyncio.Task[None] | None = None
        self.store: tuple[str, int] | None = None  # run directory, checkpoints to keep
        self.stored: tuple[dict[str, Any], str] | None = None  # last session and checkpoint
        self._attempt = 0
        self._is_closing = False
        self._reduced = (0, 0)  # the last generation that all workers had, and its bytes
        self._barrier_order: MeasureOrder | MergeOrder | None = None

    def carry_out(self, order: Order) -> None:
        """Start what an order asks for; a report comes back when it is done."""
        match order:
            case LeaseOrder():
                self.lease(order)
            case MeasureOrder() | MergeOrder():
                self._barrier_order = order
                work = self._merge(order) if isinstance(order, MergeOrder) else self._measure(order)
                self.barrier = self._start(work)
            case EvaluateOrder():
                self._start(self._evaluate(order))
            case CheckpointOrder():
                self._start(self._checkpoint(order))
            case PlaceOrder():
                for hand in list(self.crew.hands.values()):
                    self._start(self.let_hold(hand))

    # ---------------------------------------------------------------- leases

    def lease(self, order: LeaseOrder) -> None:
        """Start a lease on its worker."""
        hand = self.crew.hand(order.worker)
        spans = self._missing_spans(hand, order)
        parts = [self._fetch_span(span) for span in spans]
        parcel = tasks.Parcel(spans)
        args = (self.crew.run, hand.turns, order, parcel, parts)
        # Dask keeps no order among tasks that are submitted within a tenth of a second.
        future = self.crew.submit(hand, "lease", tasks.run_lease, *args, priority=-hand.turns)
        hand.turns += 1
        self._leases[order.lease] = hand, future

    def _missing_spans(self, hand: Hand, order: LeaseOrder) -> tuple[Span, ...]:
        if self.session.placement.is_replicated:
            return ()
        every = (span for batch in order.batches for span in batch)
        return tuple(span for span in every if span.stream not in hand.train_shards)

    def _fetch_span(self, span: Span) -> Future:
        return self.crew.client.submit(
            tasks.fetch_rows,
            self.train.futures[span.stream],
            tasks.Parcel((span,)),
            self.train.rows[span.stream],
            self.seed,
            pure=False,
            key=f"daskxml-fetch-{self.crew.run}-{span.epoch}-{span.stream}-{span.start}-{span.stop}",
        )

    def lease_ended(self, lease: int) -> None:
        """Release a lease's future."""
        if lease in self._leases:
            self._leases.pop(lease)[1].release()

    def worker_lost(self, lost: Hand) -> None:
        """Release the leases of a lost worker, which Dask would keep waiting for it."""
        for lease in [n for n, (hand, _) in self._leases.items() if hand is lost]:
            self.lease_ended(lease)

    def lease_of(self, key: str) -> Future | None:
        """Return the future of an open lease by its key."""
        return next((f for _, f in self._leases.values() if f.key == key), None)

    # --------------------------------------------------------------- barriers

    async def _measure(self, order: MeasureOrder) -> Report | None:
        hands = [self.crew.hand(name) for name in order.workers]
        answers = await self.crew.call_all(hands, "daskxml_norm")
        if lost_any(answers):
            return None
        _raise(first_failure(answers))
        if not all(map(math.isfinite, answers.values())):
            raise TrainingError("the weights are not finite any more: lower strategy.lr")
        return Measured(answers, self.session.parameters)

    async def _merge(self, order: MergeOrder) -> Report | None:
        hands = [self.crew.hand(name) for name in order.weights]
        if self._reduced[0] != order.generation:
            sent_bytes = await self._reduce_all(order, hands)
            if sent_bytes is None:
                return None
            self._reduced = order.generation, sent_bytes  # from here on the merge counts
        generation = order.generation
        committed = await self.crew.call_all(hands, "daskxml_commit", generation=generation)
        _raise(first_failure(committed))
        for hand in hands:
            hand.generation = order.generation
        return MergeReport(self._reduced[1])

    async def _reduce_all(self, order: MergeOrder, hands: list[Hand]) -> int | None:
        """Bring the merged model to every worker; None if one was lost before all had it."""
        for _ in range(MERGE_ATTEMPTS):
            answers = await self._reduce(order, hands)
            if not broken_ring(answers):
                _raise(first_failure(answers))
                return sum(answers.values())
            if await loss_of_any(hands, NOTICE_S):
                return None
        raise first_failure(answers) or ClusterError("the workers cannot merge")

    async def _reduce(self, order: MergeOrder, hands: list[Hand]) -> dict[str, Any]:
        self._attempt += 1
        plan = tasks.RingPlan(
            self.crew.run,
            order.generation,
            self._attempt,
            tuple(hand.address for hand in hands),
            tuple(order.weights[hand.name] for hand in hands),
            order.momentum,
        )
        ranks = [(plan, rank) for rank in range(len(hands))]
        asked = asyncio.ensure_future(
            self.crew.ask_each(hands, "merge", tasks.merge_replica, ranks)
        )
        losses = [asyncio.ensure_future(hand.lost.wait()) for hand in hands]
        await asyncio.wait({asked, *losses}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            left = [hand for hand in hands if not hand.is_lost]
            ring = {"generation": plan.generation, "attempt": plan.attempt}
            await self.crew.call_all(left, "daskxml_abort", **ring)
        for loss in losses:
            loss.cancel()
        return await asked

    def barrier_is_open(self) -> bool:
        """Whether a measurement or a merge is under way."""
        return self.barrier is not None and not self.barrier.done()

    def ask_again(self) -> None:
        """Begin a measurement or a merge again that ended without a word."""
        if self._barrier_order is not None and not self.barrier_is_open():
            self._warn("a merge got no answer, and was begun again")
            self.carry_out(self._barrier_order)

    async def settle_barrier(self) -> None:
        """Wait until a merge that is under way is done, or undone."""
        if self.barrier is not None:
            await asyncio.wait({self.barrier})

    # ------------------------------------------------------- other long tasks

    async def _evaluate(self, order: EvaluateOrder) -> Report | None:
        hand = self.crew.hand(order.worker)
        is_replicated = self.session.placement.is_replicated
        named = {shard for shard, _, _ in order.pieces}
        missing = tuple(sorted(named - hand.test_shards)) if not is_replicated else ()
        parts = [self.test.futures[shard] for shard in missing]
        args = (self.crew.run, order, tasks.Parcel(missing), parts)
        sums: MetricSums = await self.crew.ask(hand, "evaluate", tasks.evaluate_pieces, *args)
        return EvaluationReport(order.order, sums)

    async def _checkpoint(self, order: CheckpointOrder) -> Report | None:
        assert self.store is not None
        run_dir, keep = self.store
        session = self.session.plain()
        args = (self.crew.run, run_dir, order.megabatch, session, keep)
        hand = self.crew.hand(order.worker)
        try:
            path = await self.crew.ask(hand, "checkpoint", tasks.store_checkpoint, *args)
            self.stored = (session, path)
        except DaskxmlError as error:
            self._warn(f"no checkpoint at mega-batch {order.megabatch}: {error.message}")
        return CheckpointReport()

    async def let_hold(self, hand: Hand) -> None:
        """Bring a worker the rows that it is to hold."""
        placement = self.session.placement
        train, test = placement.train_shards(hand.name), placement.test_shards(hand.name)
        if placement.is_replicated:
            args: tuple[Any, ...] = (self.train.futures, self.test.futures, self.label_counts)
            await self.crew.ask(hand, "load", tasks.hold_all, self.crew.run, *args)
            return
        shards = tasks.Shares(tuple(train), tuple(test))
        parts = [self.train.futures[i] for i in train], [self.test.futures[i] for i in test]
        await self.crew.ask(
            hand, "load", tasks.hold, self.crew.run, shards, *parts, self.label_counts
        )
        hand.train_shards |= set(train)
        hand.test_shards |= set(test)

    def _start(self, work: Coroutine[Any, Any, Report | None]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._deliver(work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda _: work.close())  # it may be cancelled before it begins
        return task

    async def _deliver(self, work: Coroutine[Any, Any, Report | None]) -> None:
        try:
            report = await work
        except WorkerGone:
            return  # the session hears of it as WorkerLost
        except asyncio.CancelledError:
            if self._is_closing:
                raise
            self._report(ClusterError("Dask gave up a task of the run; start it again"))
        except Exception as error:
            self._report(error)
        else:
            if report is not None:
                self._report(report)

    async def close(self) -> None:
        """Stop whatever is under way."""
        self._is_closing = True
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for lease in list(self._leases):
            self.lease_ended(lease)


def _raise(failure: BaseException | None) -> None:
    if failure is not None:
        raise failure
