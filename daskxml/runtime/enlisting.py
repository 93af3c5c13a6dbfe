"""How a worker becomes part of a run: a replica, its rows, the global model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping

from distributed.comm import get_address_host

from daskxml.config import RunConfig
from daskxml.errors import DaskxmlError
from daskxml.runtime import worker as tasks
from daskxml.runtime.crew import Crew, Hand, WorkerGone, first_failure
from daskxml.runtime.executor import Executor
from daskxml.runtime.loading import LoadedData
from daskxml.strategies.megabatch import natural_order
from daskxml.training.settings import MemberSettings
from daskxml.training.setup import member_settings

OUTRUN = 3  # merges that a worker misses while it takes the model, before the others wait for it
CATCH_UP_S = 5.0


class Enlister:
    """Makes workers ready for one session.

    Parameters
    ----------
    crew, executor
        Of the session.
    config, data
        What the members must know.
    warn
        Called with one line for the user.
    """

    def __init__(
        self,
        crew: Crew,
        executor: Executor,
        config: RunConfig,
        data: LoadedData,
        warn: Callable[[str], None],
    ) -> None:
        self.crew, self.executor, self.config, self.data = crew, executor, config, data
        self._warn = warn
        self._ready: list[Hand] = []
        self._running: set[asyncio.Task[None]] = set()
        self._copies: dict[Hand, asyncio.Task[None]] = {}  # on the way to those outrun

    async def enlist_first(self, present: Mapping[str, str]) -> list[Hand]:
        """Make the workers that are there ready to begin; those lost on the way are left out."""
        hands = [Hand(name, address) for address, name in present.items()]
        hands.sort(key=lambda hand: natural_order(hand.name))
        self.crew.hands = {hand.name: hand for hand in hands}
        settings = [(self.crew.run, await self._settings(hand, present)) for hand in hands]
        speeds = await self.crew.ask_each(hands, "start", tasks.sit_down, settings)
        _raise_first(speeds)
        for hand in hands:
            hand.speed = 0.0 if hand.is_lost else speeds[hand.name]
        self.executor.session.placement.spread({h.name: h.speed for h in hands if not h.is_lost})
        holding = [self.executor.let_hold(hand) for hand in hands if not hand.is_lost]
        for answer in await asyncio.gather(*holding, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, WorkerGone):
                raise answer
        await self._load_model([hand for hand in hands if not hand.is_lost])
        self.crew.hands = {hand.name: hand for hand in hands if not hand.is_lost}
        return list(self.crew.hands.values())

    async def _load_model(self, hands: list[Hand]) -> None:
        """Take the checkpoint's model, where there is one; a new member has the seed's."""
        stored, generation = self.executor.stored, self.executor.session.generation
        if stored is not None:
            session, path = stored
            local = session.get("local", {})
            args = [(self.crew.run, path, generation, local.get(hand.name)) for hand in hands]
            _raise_first(await self.crew.ask_each(hands, "start", tasks.load_checkpoint, args))
        for hand in hands:
            hand.generation = generation

    def enlist(self, address: str, name: str, present: Mapping[str, str]) -> None:
        """Make a worker that arrives during the run ready to join."""
        hand = Hand(name, address)
        self.crew.candidates[address] = hand
        self._start(self._enlist(hand, dict(present)))

    async def _enlist(self, hand: Hand, present: Mapping[str, str]) -> None:
        settings = await self._settings(hand, present)
        hand.speed = await self.crew.ask(hand, "start", tasks.sit_down, self.crew.run, settings)
        await self.executor.let_hold(hand)
        await self._copy_model(hand)

    async def _copy_model(self, hand: Hand) -> None:
        """Take the model from whoever gives it; `newcomers` asks again where nobody does."""
        for donor in [donor for donor in self.crew.hands.values() if not donor.is_lost]:
            args = (self.crew.run, donor.address)
            try:
                hand.generation = await self.crew.ask(hand, "start", tasks.copy_model, *args)
                break
            except OSError:  # the donor is gone
                continue
        self._ready.append(hand)

    def newcomers(self, generation: int) -> list[Hand]:
        """Return the workers that hold the model of this generation and may join now.

        Those that hold an older one are sent for the newer.
        """
        ready, self._ready = [h for h in self._ready if not h.is_lost], []
        for hand in ready:
            if hand.generation != generation:
                hand.outrun += 1
                self._copies[hand] = self._start(self._copy_model(hand))
        fresh = [hand for hand in ready if hand.generation == generation]
        for hand in fresh:
            del self.crew.candidates[hand.address]
            self.crew.hands[hand.name] = hand
        return fresh

    async def catch_up(self, generation: int) -> None:
        """Wait for workers that have been outrun by merges again and again, as small models do.

        To be called while no merge can begin; ends after a while in any case.
        """
        outrun = [h for h in self.crew.candidates.values() if h.outrun >= OUTRUN and not h.is_lost]
        if outrun:
            copies = [self._start(self._bring(hand, generation)) for hand in outrun]
            await asyncio.wait(copies, timeout=CATCH_UP_S)

    async def _bring(self, hand: Hand, generation: int) -> None:
        if hand in self._copies:
            await asyncio.wait({self._copies[hand]})
        if hand in self._ready and hand.generation != generation:
            self._ready.remove(hand)
            await self._copy_model(hand)

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._watch(work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda _: work.close())  # it may be cancelled before it begins
        return task

    async def _watch(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except WorkerGone:
            pass
        except (DaskxmlError, OSError, ValueError, MemoryError) as error:
            self._warn(f"a worker cannot join: {error}")

    async def _settings(self, hand: Hand, present: Mapping[str, str]) -> MemberSettings:
        session = self.executor.session
        return member_settings(
            self.config,
            self.data.spec,
            session.strategy,
            session.placement,
            row_nonzeros=self.data.row_nonzeros,
            threads=await self._threads(hand, present),
        )

    async def _threads(self, hand: Hand, present: Mapping[str, str]) -> int:
        """Kernel threads, so that the workers of a machine share its cores."""
        try:
            cores = await self.crew.ask(hand, "start", tasks.count_cores)
        except WorkerGone:
            return 1
        host = get_address_host(hand.address)
        neighbours = sum(get_address_host(address) == host for address in present)
        return self.config.cluster.threads_on(cores, neighbours)

    async def close(self) -> None:
        """Stop enlisting."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _raise_first(answers: Mapping[str, object]) -> None:
    failure = first_failure(dict(answers))
    if failure is not None:
        raise failure
