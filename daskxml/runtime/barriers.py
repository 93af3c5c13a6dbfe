"""What all workers of a run do at once: measuring, merging, and the gangs of joint strategies.

Merging is all or nothing: every worker combines into a scratch model, and only when all have it are
they told to commit. A worker lost before that undoes the merge, one lost after it does not. A gang
is all or nothing as well: one loss ends it everywhere.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from distributed import Future
from distributed.comm import get_address_host
from distributed.protocol import to_serialize

from daskxml.errors import ClusterError, TrainingError
from daskxml.runtime import worker as tasks
from daskxml.runtime.crew import NOTICE_S, Crew, first_failure, is_broken, loss_of_any, lost_any
from daskxml.runtime.hand import Hand
from daskxml.runtime.port import RoundPlan
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
MESSAGE_FLOATS = 1 << 24  # above, a merge may last: without a task Dask takes its worker for idle

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
        self._linked: tuple[list[Hand], int] = ([], 0)  # who had the last merge, in which round

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
        known = {hand.name: norm for hand in hands if (norm := hand.squared_norm) is not None}
        others = [hand for hand in hands if hand.name not in known]
        answers = await self.crew.call_all(others, "daskxml_norm")
        if lost_any(answers):
            return None
        _raise(first_failure(answers))
        norms = known | answers
        if not all(map(math.isfinite, norms.values())):
            raise TrainingError("the weights are not finite any more: lower strategy.lr")
        return Measured(norms, self.parameters)

    # ---------------------------------------------------------------- merging

    async def _merge(self, order: MergeOrder) -> Report | None:
        hands = [self.crew.hand(name) for name in order.weights]
        generation = order.generation
        if self._merged[0] != generation:
            answers = await self._combine(order, hands)
            if answers is None:
                return None
            sent_bytes = [part.sent_bytes for part in answers]
            self.crew.activity.sent((hand.name for hand in hands), sent_bytes)
            notes = join_notes(part.result for part in answers)
            self._merged = generation, sum(sent_bytes), notes  # from here on the merge counts
        committed = await self.crew.call_all(hands, "daskxml_commit", generation=generation)
        _raise(first_failure(committed))
        for hand in hands:
            hand.generation, hand.squared_norm = generation, None
        there = {name: done for name, done in committed.items() if isinstance(done, int)}
        return MergeReport(*self._merged[1:], there if order.overlaps else {})

    async def _combine(self, order: MergeOrder, hands: list[Hand]) -> list[Any] | None:
        """Bring the merged model to every worker; None if one was lost before all had it."""
        answers: dict[str, Any] = {}
        for _ in range(ATTEMPTS):
            linked, number = self._linked
            plan = self._plan(hands, follows=number if linked == hands else 0)
            self._linked = [], 0
            answers = await self._reduce(plan, order, hands)
            failure = first_failure(answers)
            if failure is None and not lost_any(answers):
                self._linked = hands, plan.number
                return list(answers.values())
            if failure is not None and not is_broken(failure):
                raise failure
            if await loss_of_any(hands, NOTICE_S):
                return None
            self.crew.warn(f"merge {order.generation} is tried again: {failure}")
        raise first_failure(answers) or ClusterError("the workers cannot merge")

    async def _reduce(
        self, plan: RoundPlan, order: MergeOrder, hands: Sequence[Hand]
    ) -> dict[str, Any]:
        asked = [self._ask(plan, order, rank, hand) for rank, hand in enumerate(hands)]
        return await self._together(plan, hands, asked)

    async def _ask(self, plan: RoundPlan, order: MergeOrder, rank: int, hand: Hand) -> Any:
        """Let a worker take part: by a message, or a task, which takes some 8 ms longer."""
        if order.overlaps:
            args = plan, order, rank, hand.snapshot_turn
            return await self.crew.ask(hand, "merge", tasks.merge_snapshot, *args)
        if self.parameters > MESSAGE_FLOATS:
            return await self.crew.ask(hand, "merge", tasks.merge_replica, plan, order, rank)
        told = {"plan": to_serialize(plan), "order": to_serialize(order), "rank": rank}
        with self.crew.activity.doing("merge", hand.name, is_task=False):
            return (await self.crew.call(hand, "daskxml_merge", **told))["performed"]

    # ------------------------------------------------------------------ gangs

    async def _gang(self, order: GangOrder) -> Report | None:
        hands = [self.crew.hand(name) for name in order.workers]
        plan = self._plan(hands)
        args = [
            (plan, order, rank, *self._fetch(hand, order.batches[rank]))
            for rank, hand in enumerate(hands)
        ]
        parts = zip(hands, args, strict=True)
        asked = [self.crew.ask(hand, "gang", tasks.run_gang, *own) for hand, own in parts]
        answers = await self._together(plan, hands, asked)
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

    def _plan(self, hands: Sequence[Hand], follows: int | None = None) -> RoundPlan:
        addresses = tuple(hand.address for hand in hands)
        hosts = tuple(get_address_host(address) for address in addresses)
        return RoundPlan(self.crew.run, self.crew.next_round(), addresses, hosts, follows)

    async def _together(
        self, plan: RoundPlan, hands: Sequence[Hand], parts: Iterable[Coroutine[Any, Any, Any]]
    ) -> dict[str, Any]:
        """Let all take part in a round; the first failure ends it for all, and all have ended."""
        asked = [asyncio.ensure_future(part) for part in parts]
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
