"""What all workers of a run do at once: measuring, merging, and the gangs of joint strategies.

Merging is all or nothing: every worker combines into a scratch model, and only when all have it are
they told to commit. A worker lost before that undoes the merge, one lost after it does not. A gang
is all or nothing as well: one loss ends it everywhere.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

from distributed import Future
from distributed.comm import get_address_host

from daskxml.errors import ClusterError, TrainingError
from daskxml.runtime import worker as tasks
from daskxml.runtime.crew import (
    NOTICE_S,
    Crew,
    Hand,
    first_failure,
    is_broken,
    loss_of_any,
    lost_any,
)
from daskxml.strategies.protocol import Measured
from daskxml.training.ledger import Span
from daskxml.training.orders import (
    GangBroken,
    GangOrder,
    GangReport,
    MeasureOrder,
    MergeOrder,
    MergeReport,
    Notes,
    Report,
    join_notes,
)

ATTEMPTS = 4

Batches = Sequence[Sequence[Span]]
Fetch = Callable[[Hand, Batches], tuple[tasks.Parcel, list[Future]]]
BarrierOrder = MeasureOrder | MergeOrder | GangOrder


class Barriers:
    """Carries out what all workers do together, one after the other.

    Parameters
    ----------
    crew
        The workers.
    parameters
        Number of model parameters.
    fetch
        Brings a worker rows that it does not hold: what they are, and their futures.
    """

    def __init__(self, crew: Crew, parameters: int, fetch: Fetch) -> None:
        self.crew, self.parameters, self._fetch = crew, parameters, fetch
        self._merged: tuple[int, int, Notes] = (
            0,
            0,
            {},
        )  # the last generation that all workers had, its costs
        self._broken = 0  # gangs in a row that broke without a loss

    async def carry_out(self, order: BarrierOrder) -> Report | None:
        """Do what an order asks for; None where a worker was lost, which undoes it."""
        match order:
            case MeasureOrder():
                return await self._measure(order)
            case MergeOrder():
                return await self._merge(order)
            case GangOrder():
                return await self._gang(order)

    async def _measure(self, order: MeasureOrder) -> Report | None:
        hands = [self.crew.hand(name) for name in order.workers]
        answers = await self.crew.call_all(hands, "daskxml_norm")
        if lost_any(answers):
            return None
        _raise(first_failure(answers))
        if not all(map(math.isfinite, answers.values())):
            raise TrainingError("the weights are not finite any more: lower strategy.lr")
        return Measured(answers, self.parameters)

    # ---------------------------------------------------------------- merging

    async def _merge(self, order: MergeOrder) -> Report | None:
        hands = [self.crew.hand(name) for name in order.weights]
        generation = order.generation
        if self._merged[0] != generation:
            answers = await self._combine(order, hands)
            if answers is None:
                return None
            sent_bytes = sum(sent for sent, _ in answers)
            self.crew.activity.sent((hand.name for hand in hands), (sent for sent, _ in answers))
            notes = join_notes(notes for _, notes in answers)
            self._merged = generation, sent_bytes, notes  # from here on the merge counts
        committed = await self.crew.call_all(hands, "daskxml_commit", generation=generation)
        _raise(first_failure(committed))
        for hand in hands:
            hand.generation = generation
        there = {name: done for name, done in committed.items() if isinstance(done, int)}
        return MergeReport(*self._merged[1:], there if order.overlaps else {})

    async def _combine(self, order: MergeOrder, hands: list[Hand]) -> list[Any] | None:
        """Bring the merged model to every worker; None if one was lost before all had it."""
        answers: dict[str, Any] = {}
        for _ in range(ATTEMPTS):
            plan = self._plan(hands)
            answers = await self._reduce(plan, order, hands)
            failure = first_failure(answers)
            if failure is None and not lost_any(answers):
                return list(answers.values())
            if failure is not None and not is_broken(failure):
                raise failure
            if await loss_of_any(hands, NOTICE_S):
                return None
            self.crew.warn(f"merge {order.generation} is tried again: {failure}")
        raise first_failure(answers) or ClusterError("the workers cannot merge")

    async def _reduce(
        self, plan: tasks.RoundPlan, order: MergeOrder, hands: Sequence[Hand]
    ) -> dict[str, Any]:
        if not order.overlaps:
            args: list[Any] = [(plan, order, rank) for rank in range(len(hands))]
            return await self._together(plan, hands, "merge", tasks.merge_replica, args)
        args = [(plan, order, rank, hand.snapshot_turn) for rank, hand in enumerate(hands)]
        return await self._together(plan, hands, "merge", tasks.merge_snapshot, args)

    # ------------------------------------------------------------------ gangs

    async def _gang(self, order: GangOrder) -> Report | None:
        hands = [self.crew.hand(name) for name in order.workers]
        plan = self._plan(hands)
        args = [
            (plan, order, rank, *self._fetch(hand, order.batches[rank]))
            for rank, hand in enumerate(hands)
        ]
        answers = await self._together(plan, hands, "gang", tasks.run_gang, args)
        failure = first_failure(answers)
        if failure is None and not lost_any(answers):
            self._broken = 0
            self.crew.activity.sent(order.workers, (part.sent_bytes for part in answers.values()))
            return GangReport(order.gang, tuple(answers.values()))
        if failure is not None and not is_broken(failure):
            raise failure
        if lost_any(answers) or await loss_of_any(hands, NOTICE_S):
            return None
        self._broken += 1
        if failure is not None and self._broken >= ATTEMPTS:
            raise failure
        return GangBroken(order.gang)

    # ------------------------------------------------------------------- both

    def _plan(self, hands: Sequence[Hand]) -> tasks.RoundPlan:
        addresses = tuple(hand.address for hand in hands)
        hosts = tuple(get_address_host(address) for address in addresses)
        return tasks.RoundPlan(self.crew.run, self.crew.next_round(), addresses, hosts)

    async def _together(
        self,
        plan: tasks.RoundPlan,
        hands: Sequence[Hand],
        what: str,
        task: Callable[..., Any],
        args: Sequence[Any],
    ) -> dict[str, Any]:
        """Let all take part in a round; the first failure ends it for all, and all have ended."""
        parts = zip(hands, args, strict=True)
        asked = [asyncio.ensure_future(self.crew.ask(h, what, task, *own)) for h, own in parts]
        try:
            _, pending = await asyncio.wait(asked, return_when=asyncio.FIRST_EXCEPTION)
            if pending or any(part.exception() for part in asked):  # a task may outlive its future
                left = [hand for hand in hands if not hand.is_lost]
                await self.crew.call_all(left, "daskxml_abort", number=plan.number)
        except asyncio.CancelledError:
            for part in asked:
                part.cancel()
            raise
        finally:
            answers = await asyncio.gather(*asked, return_exceptions=True)
        return {hand.name: answer for hand, answer in zip(hands, answers, strict=True)}


def _raise(failure: BaseException | None) -> None:
    if failure is not None:
        raise failure
