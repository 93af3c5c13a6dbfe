"""Orders of a session, carried out as Dask futures.

Leases are pinned to their worker; each reports itself through the worker's event log when it is
done, and its future is released at once (a held future would be executed again if its worker
died). What all workers do together is in `daskxml.runtime.barriers`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from distributed import Future

from daskxml.errors import ClusterError, DaskxmlError
from daskxml.runtime import worker as tasks
from daskxml.runtime.barriers import BarrierOrder, Barriers, Batches
from daskxml.runtime.crew import Crew, WorkerGone, first_failure, lost_any
from daskxml.runtime.hand import Hand
from daskxml.runtime.loading import LoadedData
from daskxml.strategies.protocol import Measured
from daskxml.training.ledger import Span
from daskxml.training.orders import (
    CheckpointOrder,
    CheckpointReport,
    EvaluateOrder,
    EvaluationReport,
    GangBroken,
    GangOrder,
    GangReport,
    LeaseOrder,
    MeasureOrder,
    MergeOrder,
    MergeReport,
    Order,
    Piece,
    PlaceOrder,
    Report,
)
from daskxml.training.session import Session


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
        self._barriers = Barriers(crew, session.parameters, self._fetch)
        self._unanswered: BarrierOrder | None = None  # what all were last asked to do together
        self._has_local_state = True  # until the first checkpoint tells
        self._is_closing = False

    def carry_out(self, order: Order) -> None:
        """Start what an order asks for; a report comes back when it is done."""
        match order:
            case LeaseOrder():
                self.lease(order)
            case MeasureOrder() | MergeOrder() | GangOrder():
                if isinstance(order, MergeOrder) and order.overlaps:
                    self._plan_snapshots(order)
                self._unanswered = order
                self.barrier = self._start(self._barriers.carry_out(order))
            case EvaluateOrder():
                self._start(self._evaluate(order))
            case CheckpointOrder():
                self._start(self._checkpoint(order))
            case PlaceOrder():
                for hand in list(self.crew.hands.values()):
                    self._start(self.let_hold(hand))

    def _plan_snapshots(self, order: MergeOrder) -> None:
        """Do so before the leases of the next mega-batch take their turns."""
        for hand in (self.crew.hands.get(name) for name in order.weights):
            if hand is not None:
                hand.plan_snapshot(order.generation)

    # ---------------------------------------------------------------- leases

    def lease(self, order: LeaseOrder) -> None:
        """Start a lease on its worker."""
        hand = self.crew.hand(order.worker)
        parcel, parts = self._fetch(hand, order.batches)
        args = (self.crew.run, hand.turns, order, parcel, parts)
        # Dask keeps no order among tasks that are submitted within a tenth of a second.
        future = self.crew.submit(hand, "lease", tasks.run_lease, *args, priority=-hand.turns)
        hand.turns += 1
        hand.squared_norm = None
        self._leases[order.lease] = hand, future
        self.crew.activity.lease_given(hand.name)

    def _fetch(self, hand: Hand, batches: Batches) -> tuple[tasks.Parcel, list[Future]]:
        """Have the rows of batches fetched that a worker does not hold."""
        if self.session.placement.is_replicated:
            return tasks.Parcel(()), []
        every = (span for batch in batches for span in batch)
        spans = tuple(span for span in every if span.stream not in hand.train_shards)
        return tasks.Parcel(spans), [self._fetch_span(span) for span in spans]

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

    def lease_ended(
        self, lease: int, busy_s: float = 0.0, squared_norm: float | None = None
    ) -> None:
        """Release a lease's future; ``busy_s``: how long it took, 0 if it is given up."""
        if lease in self._leases:
            hand, future = self._leases.pop(lease)
            hand.squared_norm = squared_norm
            future.release()
            self.crew.activity.lease_done(hand.name, busy_s)

    def worker_lost(self, lost: Hand) -> None:
        """Release the leases of a lost worker, which Dask would keep waiting for it."""
        self._unanswered = None  # the session begins it again, if it still wants it
        for lease in [n for n, (hand, _) in self._leases.items() if hand is lost]:
            self.lease_ended(lease)

    def lease_of(self, key: str) -> Future | None:
        """Return the future of an open lease by its key."""
        return next((f for _, f in self._leases.values() if f.key == key), None)

    # --------------------------------------------------------------- barriers

    def barrier_is_open(self) -> bool:
        """Whether a measurement, a merge or a gang is under way."""
        return self.barrier is not None and not self.barrier.done()

    def ask_again(self) -> None:
        """Begin what all do together again where it ended without a word."""
        order = self._unanswered
        if order is None or self.barrier_is_open():
            return
        if isinstance(order, GangOrder):
            self._report(GangBroken(order.gang))
        else:
            self._warn("a merge got no answer, and was begun again")
            self.carry_out(order)

    async def settle_barrier(self) -> None:
        """Wait until what all do together is done, or undone."""
        if self.barrier is not None:
            await asyncio.wait({self.barrier})

    # ------------------------------------------------------- other long tasks

    async def _evaluate(self, order: EvaluateOrder) -> Report | None:
        hand = self.crew.hand(order.worker)
        shards = tasks.Shares((), ())
        if not self.session.placement.is_replicated:
            shards = tasks.Shares(
                train=_missing(order.train_pieces, hand.train_shards),
                test=_missing(order.pieces, hand.test_shards),
            )
        test = [self.test.futures[shard] for shard in shards.test]
        train = [self.train.futures[shard] for shard in shards.train]
        args = (self.crew.run, order, shards, test, train)
        report: EvaluationReport = await self.crew.ask(hand, "eval", tasks.evaluate_pieces, *args)
        return report

    async def _checkpoint(self, order: CheckpointOrder) -> Report | None:
        assert self.store is not None
        run_dir, keep = self.store
        hand = self.crew.hand(order.worker)
        session = self.session.plain()
        try:
            session["local"] = await self._store_local(run_dir, order)
            args = (self.crew.run, run_dir, order.megabatch, session, keep)
            path = await self.crew.ask(hand, "save", tasks.store_checkpoint, *args)
            self.stored = (session, path)
        except DaskxmlError as error:
            self._warn(f"no checkpoint at mega-batch {order.megabatch}: {error.message}")
            await self.crew.ask(hand, "save", tasks.drop_local, run_dir, order.megabatch)
        return CheckpointReport()

    async def _store_local(self, run_dir: str, order: CheckpointOrder) -> dict[str, int]:
        """Let every worker write what only it knows; return its number for each that did."""
        if not self._has_local_state:
            return {}
        hands = list(self.crew.hands.values())
        args = [(self.crew.run, run_dir, order.megabatch, number) for number in range(len(hands))]
        answers = await self.crew.ask_each(hands, "save", tasks.store_local, args)
        _raise(first_failure(answers))
        self._has_local_state = lost_any(answers) or any(answers.values())
        return {hand.name: n for n, hand in enumerate(hands) if answers[hand.name] is True}

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
                if isinstance(report, MergeReport | GangReport | GangBroken | Measured):
                    self._unanswered = None
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


def _missing(pieces: Sequence[Piece], held: set[int]) -> tuple[int, ...]:
    """Return the shards of pieces that a worker does not hold."""
    return tuple(sorted({shard for shard, _, _ in pieces} - held))


def _raise(failure: BaseException | None) -> None:
    if failure is not None:
        raise failure
