"""One session carried out, from its first order to its last.

What happened comes in through one queue, in the order in which it happened: reports of the
executor, workers that were lost, futures that failed. Each is booked by the session, whose orders
go to the executor.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from distributed import Future

from daskxml.runtime.crew import Crew
from daskxml.runtime.enlisting import Enlister
from daskxml.runtime.executor import Executor
from daskxml.runtime.hand import Hand
from daskxml.runtime.journal import Journal
from daskxml.strategies.protocol import WorkerJoined, WorkerLost
from daskxml.training import orders
from daskxml.training.session import Session

TICK_S = 0.25
RESTART = "restart"
STATES = {
    "idle": "starting",
    "train": "training",
    "merge": "merging",
    "evaluate": "evaluating",
    "checkpoint": "writing a checkpoint",
    "lost": "waiting for workers",
    "over": "ending",
}


class Play:
    """A session, and what carries it out.

    Parameters
    ----------
    session, executor, enlister
        Of one go from a checkpoint, or from the beginning.
    crew
        The workers.
    journal
        Where clients read how it goes.
    queue
        What happened: reports, a `Hand` for a lost worker, a failed `Future`, an exception.
    """

    def __init__(
        self,
        session: Session,
        executor: Executor,
        enlister: Enlister,
        crew: Crew,
        journal: Journal,
        queue: asyncio.Queue[Any],
    ) -> None:
        self.session, self.executor, self.enlister = session, executor, enlister
        self.crew, self.journal, self.queue = crew, journal, queue
        self.told = session.generation  # mega-batches that the journal has

    async def carry_out(self, pending: list[orders.Order]) -> str:
        """Carry out orders, and those that follow from them; return why the session ended.

        That is ``RESTART`` where every worker was lost, or all that had the shared model.
        """
        self._tell_workers(self.crew.hands.values())
        for hand in self.crew.hands.values():
            self._note_budget(hand)
        while True:
            works = any(isinstance(o, orders.LeaseOrder | orders.GangOrder) for o in pending)
            if works and self.session.may_join:
                await self.enlister.catch_up(self.session.generation)  # no merge can begin now
                pending = [*pending, *self._welcome()]
            for order in pending:
                if isinstance(order, orders.StopOrder):
                    self._tell()
                    return order.reason
                if isinstance(order, orders.RestartOrder):
                    return RESTART
                self.executor.carry_out(order)
            self._tell()
            pending = [*await self._next_orders(), *self._welcome()]

    async def _next_orders(self) -> list[orders.Order]:
        """Wait for something to happen; return what the session wants done about it."""
        try:
            item = await asyncio.wait_for(self.queue.get(), TICK_S)
        except TimeoutError:
            if self.queue.empty():
                self.executor.ask_again()
            return self.session.tick(time.monotonic())
        return await self._worker_lost(item) if isinstance(item, Hand) else await self._react(item)

    async def _react(self, item: Any) -> list[orders.Order]:
        if isinstance(item, Future):
            raise await item.exception()
        if isinstance(item, BaseException):
            raise item
        if isinstance(item, orders.LeaseReport):
            self.executor.lease_ended(item.lease, item.busy_s, item.squared_norm)
        return self.session.handle(item, time.monotonic())

    async def _worker_lost(self, hand: Hand) -> list[orders.Order]:
        """Tell the session of a loss, but first what happened before it: a merge may be done."""
        if self.crew.hands.get(hand.name) is not hand:  # it had not joined yet
            self.crew.dismiss(hand)
            return []
        self.journal.event("worker", event="lost", worker=hand.name)
        losses: list[Hand] = []
        ends: list[orders.Order] = []
        while self.executor.barrier_is_open() or not self.queue.empty():
            await self.executor.settle_barrier()
            while not self.queue.empty():
                item = self.queue.get_nowait()
                if isinstance(item, Hand):
                    losses.append(item)
                    continue
                for order in await self._react(item):
                    if isinstance(order, orders.StopOrder):
                        ends.append(order)
                    elif not isinstance(order, orders.GangOrder):  # the loss undoes it anyway
                        self.executor.carry_out(order)
        for loss in losses:
            self.queue.put_nowait(loss)
        self.crew.dismiss(hand)
        self.executor.worker_lost(hand)
        if ends:
            return ends
        if self.crew.home and not self.crew.holders():
            return [orders.RestartOrder()]  # the shared model went with the last of its machine
        return self.session.handle(WorkerLost(hand.name), time.monotonic())

    def _welcome(self) -> list[orders.Order]:
        """Let workers join that are ready, unless a merge is under way."""
        pending: list[orders.Order] = []
        if self.enlister.is_awaited:
            pending += self.session.handle(orders.Awaited(), time.monotonic())
        if self.session.may_join:
            newcomers = self.enlister.newcomers(self.session.generation)
            self._tell_workers(newcomers)
            for hand in newcomers:
                self.journal.event("worker", event="joined", worker=hand.name)
                joined = WorkerJoined(hand.name, hand.device)
                pending += self.session.handle(joined, time.monotonic())
                self._note_budget(hand)
        return pending

    def _note_budget(self, hand: Hand) -> None:
        """Let the history tell what a worker with a GPU has found out."""
        if hand.budget is not None and hand.budget.step_s:
            self.session.note(hand.budget.event(hand.name))

    def _tell_workers(self, hands: Iterable[Hand]) -> None:
        """Tell the journal what those have that take part."""
        equipped = self.crew.equipped
        found = {h.name: equipped[h.address].as_record() for h in hands if h.address in equipped}
        if found:
            self.journal.event("equipment", workers=found)

    def _tell(self) -> None:
        """Tell the journal what is new."""
        session = self.session
        for row in session.history[self.told : session.closed_rows]:
            self.journal.event("megabatch", row=row)
        self.told = max(self.told, session.closed_rows)
        self.journal.state(
            STATES[session.stage],
            megabatch=session.generation + 1,
            rows=session.rows_done,
            epoch=session.rows_done / sum(session.ledger.stream_rows),
        )
