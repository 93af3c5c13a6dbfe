"""The workers of a run as the scheduler sees them: who is there, who is lost, and asking them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from distributed import Client, Future

from daskxml.errors import ClusterError
from daskxml.runtime.activity import Activity
from daskxml.runtime.equipment import Equipment
from daskxml.runtime.hand import Hand

CALLS = 3
NOTICE_S = 3.0  # how much later than a peer the scheduler notices a death


class WorkerGone(Exception):  # noqa: N818 - an event, not an error
    """The worker was lost before it answered."""


class Crew:
    """The workers of one run, and the futures that are theirs.

    Parameters
    ----------
    client
        Asynchronous client on the scheduler's loop.
    run
        Name of the run; part of every key.
    warn
        Called with one line for the user.
    """

    def __init__(
        self, client: Client, run: str, warn: Callable[[str], None] = lambda text: None
    ) -> None:
        self.client, self.run, self.warn = client, run, warn
        self.activity = Activity()
        self.hands: dict[str, Hand] = {}  # by name: those that take part
        self.candidates: dict[str, Hand] = {}  # by address: those that get ready to join
        self.equipped: dict[str, Equipment] = {}  # by address: those that were looked at
        self.home = ""  # the machine of the model that all share; "": each has its own
        self._numbers, self._rounds = itertools.count(), itertools.count(1)

    def at(self, address: str) -> Hand | None:
        """Return the worker at an address."""
        found = (hand for hand in self.hands.values() if hand.address == address)
        return self.candidates.get(address) or next(found, None)

    def hand(self, name: str) -> Hand:
        """Return a worker that takes part.

        Raises
        ------
        WorkerGone
            If it does not any more.
        """
        if name not in self.hands:
            raise WorkerGone(name)
        return self.hands[name]

    def holders(self) -> list[Hand]:
        """Return the workers that have the shared model in memory, the first one first."""
        hands = self.hands.values()
        return [h for h in hands if h.is_seated and not h.is_lost and h.host == self.home]

    def loss(self) -> str:
        """Say what a run has lost that cannot go on."""
        if self.hands:
            return f"every worker on {self.home}, where the shared model is, was lost"
        return "every worker was lost"

    def next_round(self) -> int:
        """Return the number of a new merge or gang; each go at one has its own."""
        return next(self._rounds)

    def dismiss(self, hand: Hand) -> bool:
        """Forget a lost worker; return whether it took part."""
        self.candidates.pop(hand.address, None)
        if self.hands.get(hand.name) is not hand:
            return False
        del self.hands[hand.name]
        return True

    def submit(
        self, hand: Hand, what: str, task: Callable[..., Any], *args: Any, priority: int = 0
    ) -> Future:
        """Start a task on this worker and no other; ``what`` is its name on the dashboard."""
        return self.client.submit(
            task,
            *args,
            key=f"daskxml-{what}-{self.run}-{next(self._numbers)}",
            workers=[hand.address],
            allow_other_workers=False,
            pure=False,
            retries=0,
            priority=priority,
        )

    async def ask(self, hand: Hand, what: str, task: Callable[..., Any], *args: Any) -> Any:
        """Run a task on this worker and return its result.

        Raises
        ------
        WorkerGone
            If the worker is lost first.
        """
        if hand.is_lost:
            raise WorkerGone(hand.name)
        future = self.submit(hand, what, task, *args)
        try:
            with self.activity.doing(what, hand.name):
                return await self._unless_lost(hand, asyncio.ensure_future(result_of(future)))
        finally:
            future.release()

    async def call(self, hand: Hand, handler: str, **values: Any) -> Any:
        """Call one of the worker's message handlers: quicker than a task, also while tasks run.

        A handler may be called twice, where the connection breaks before the answer is here. None
        of them answers None: that is what Dask sends from a worker that has no such handler any
        more, since it is closing.

        Raises
        ------
        WorkerGone
            If the worker is lost first.
        ClusterError
            If the worker cannot be reached, and is not lost either.
        """
        for _ in range(CALLS):
            if hand.is_lost:
                raise WorkerGone(hand.name)
            remote = getattr(self.client.rpc(hand.address), handler)
            answer = asyncio.ensure_future(remote(run=self.run, **values))
            try:
                if (found := await self._unless_lost(hand, answer)) is not None:
                    return found
            except OSError:  # the connection broke; a peer notices a death before the scheduler
                pass
            await loss_of_any([hand], NOTICE_S)
        raise ClusterError(f"worker {hand.name} at {hand.address} does not answer")

    async def call_all(self, hands: Iterable[Hand], handler: str, **values: Any) -> dict[str, Any]:
        """Call a handler of several workers; an answer may be an exception in its place."""
        hands = list(hands)
        calls = [self.call(hand, handler, **values) for hand in hands]
        return self._by_name(hands, await asyncio.gather(*calls, return_exceptions=True))

    @staticmethod
    async def _unless_lost(hand: Hand, answer: asyncio.Future[Any]) -> Any:
        """Wait for an answer, or for the loss of the worker that owes it."""
        lost = asyncio.ensure_future(hand.lost.wait())
        try:
            await asyncio.wait({answer, lost}, return_when=asyncio.FIRST_COMPLETED)
            if lost.done() and not answer.done():
                raise WorkerGone(hand.name)
            if answer.cancelled():  # by Dask: nobody here has, and it must not look like it
                raise ClusterError(f"Dask gave up what worker {hand.name} was asked")
            return await answer
        finally:
            for waiting in (answer, lost):
                waiting.cancel()
            await asyncio.gather(answer, lost, return_exceptions=True)

    async def ask_all(
        self, hands: Iterable[Hand], what: str, task: Callable[..., Any], *args: Any
    ) -> dict[str, Any]:
        """Ask several at once; an answer is a result, or the exception in its place."""
        hands = list(hands)
        return await self.ask_each(hands, what, task, [args] * len(hands))

    async def ask_each(
        self, hands: Sequence[Hand], what: str, task: Callable[..., Any], args: Sequence[Any]
    ) -> dict[str, Any]:
        """Ask several at once, each with its own tuple of arguments."""
        asked = [self.ask(h, what, task, *own) for h, own in zip(hands, args, strict=True)]
        return self._by_name(hands, await asyncio.gather(*asked, return_exceptions=True))

    @staticmethod
    def _by_name(hands: Sequence[Hand], answers: Sequence[Any]) -> dict[str, Any]:
        return {hand.name: answer for hand, answer in zip(hands, answers, strict=True)}


async def result_of(future: Future) -> Any:
    """Wait for a future's result; whoever waits may be cancelled.

    Dask's client asks for the results of several futures at once. Cancelling who waits for one of
    them cancels the request, and so the others would be cancelled as well.
    """
    result = asyncio.ensure_future(future.result())
    result.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may ask
    return await asyncio.shield(result)


async def loss_of_any(hands: Sequence[Hand], patience_s: float) -> bool:
    """Wait until the scheduler loses one of the workers; return whether it did in time."""
    waits = [asyncio.ensure_future(hand.lost.wait()) for hand in hands]
    done, _ = await asyncio.wait(waits, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
    for waiting in waits:
        waiting.cancel()
    return bool(done)


def first_failure(answers: dict[str, Any]) -> BaseException | None:
    """Return an exception among the answers that is not the loss of a worker.

    One that others suffered because somebody could not be reached comes last.
    """
    failures = [a for a in answers.values() if isinstance(a, BaseException)]
    told = [failure for failure in failures if not isinstance(failure, WorkerGone)]
    return next(iter(sorted(told, key=is_broken)), None)


def lost_any(answers: dict[str, Any]) -> bool:
    """Whether a worker was lost before it answered."""
    return any(isinstance(answer, WorkerGone) for answer in answers.values())


def is_broken(failure: BaseException) -> bool:
    """Whether a merge or a gang failed because somebody could not be reached."""
    return isinstance(failure, ClusterError)
