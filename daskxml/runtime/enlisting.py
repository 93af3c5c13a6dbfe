"""How a worker becomes part of a run: a replica, its rows, the global model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence

from daskxml.config import RunConfig
from daskxml.errors import ClusterError, DaskxmlError
from daskxml.runtime import worker as tasks
from daskxml.runtime.crew import NOTICE_S, Crew, WorkerGone, first_failure, is_broken, loss_of_any
from daskxml.runtime.equipment import Equipment, equipment, unfit_workers
from daskxml.runtime.executor import Executor
from daskxml.runtime.hand import Hand
from daskxml.runtime.loading import LoadedData
from daskxml.runtime.machines import (
    Arrival,
    choose_home,
    kernel_device,
    kernel_threads,
    problem_with,
)
from daskxml.strategies.megabatch import natural_order
from daskxml.training.settings import MemberSettings
from daskxml.training.setup import member_settings

OUTRUN = 3  # merges that a worker misses while it takes the model, before the others wait for it
CATCH_UP_S = 5.0
DONORS = 5  # how many may be lost one after the other while a worker opens the shared model


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

    async def enlist_first(self, present: Sequence[Arrival]) -> list[Hand]:
        """Make the workers that are there ready to begin; those lost on the way are left out.

        Nobody is left where that one was lost that had made the model which all share.
        """
        hands = sorted(map(Hand, present), key=lambda hand: natural_order(hand.name))
        self.crew.hands = {hand.name: hand for hand in hands}
        hands = await self._choose(hands, present)
        founders = [hand for hand in hands if hand.host == self.crew.home][:1]
        if not await self._seat(hands, founders, present):
            return []
        self.executor.session.placement.spread({h.name: h.speed for h in hands if not h.is_lost})
        holding = [self.executor.let_hold(hand) for hand in hands if not hand.is_lost]
        for answer in await asyncio.gather(*holding, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, WorkerGone):
                raise answer
        await self._load_model([hand for hand in hands if not hand.is_lost])
        self.crew.hands = {hand.name: hand for hand in hands if not hand.is_lost}
        return [] if _any_lost(founders) else list(self.crew.hands.values())

    async def _choose(self, hands: Sequence[Hand], present: Sequence[Arrival]) -> list[Hand]:
        """Return the workers that can take part, and choose where the model is that all share."""
        self.crew.home = ""
        looks = [self._look_at(hand) for hand in hands if hand.address not in self.crew.equipped]
        for answer in await asyncio.gather(*looks, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, WorkerGone):
                raise answer
        fit = self._without_problem(hands, present)
        if fit and self.executor.session.strategy.shares_model:
            self.crew.home = choose_home(hand.arrival for hand in fit)
        return self._without_problem(fit, present)

    def _without_problem(self, hands: Sequence[Hand], present: Sequence[Arrival]) -> list[Hand]:
        alive = [hand for hand in hands if not hand.is_lost]
        problems = {hand: self._problem(hand, present) for hand in alive}
        fit = [hand for hand in alive if problems[hand] is None]
        for problem in filter(None, problems.values()):
            if not fit:
                raise problem
            self._warn(f"a worker is left out: {problem}")
        return fit

    def _problem(self, hand: Hand, present: Sequence[Arrival]) -> DaskxmlError | None:
        crew = self.crew
        return problem_with(hand.arrival, self.config, present, crew.home, crew.equipped)

    async def _look_at(self, hand: Hand) -> None:
        """Ask a worker what it has.

        Raises
        ------
        WorkerGone, ClusterError
            If it is lost, or has another version of daskxml.
        """
        try:
            found = await self.crew.ask(hand, "start", equipment)
        except (ImportError, AttributeError, TypeError) as error:  # of another version, or none
            found = error
        problem = unfit_workers({hand.address: found})
        if problem:
            raise ClusterError(problem)
        self.crew.equipped[hand.address] = found

    async def _seat(
        self, hands: Sequence[Hand], founders: Sequence[Hand], present: Sequence[Arrival]
    ) -> bool:
        """Make members of workers, first of whoever makes the model that all share.

        Return False where that one was lost.
        """
        for wave in (founders, [hand for hand in hands if hand not in founders]):
            donors = [hand.address for hand in founders if hand.is_seated]
            args = [(self.crew.run, self._settings(hand, present), donors) for hand in wave]
            speeds = await self.crew.ask_each(wave, "start", tasks.sit_down, args)
            failure = first_failure(speeds)
            if founders and failure is not None and is_broken(failure):
                await loss_of_any(founders, NOTICE_S)
            if _any_lost(founders):
                return False
            _raise_first(speeds)
            for hand in [hand for hand in wave if not hand.is_lost]:
                (hand.speed, hand.memory, hand.budget), hand.is_seated = speeds[hand.name], True
        return True

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

    def enlist(self, arrival: Arrival, present: Sequence[Arrival]) -> None:
        """Make a worker that arrives during the run ready to join."""
        hand = Hand(arrival)
        self.crew.candidates[arrival.address] = hand
        self._start(self._enlist(hand, present))

    async def _enlist(self, hand: Hand, present: Sequence[Arrival]) -> None:
        await self._look_at(hand)
        problem = self._problem(hand, present)
        if problem is not None:
            raise problem
        await self._seat_late(hand, present)
        await self.executor.let_hold(hand)
        await self._copy_model(hand)

    async def _seat_late(self, hand: Hand, present: Sequence[Arrival]) -> None:
        """Make a member of a worker that arrives; a shared model is got from whoever has it."""
        settings = self._settings(hand, present)
        for _ in range(DONORS):
            holders = self.crew.holders()
            if self.crew.home and not holders:
                break  # the run begins again, with this worker
            args = (self.crew.run, settings, [holder.address for holder in holders])
            try:
                told = await self.crew.ask(hand, "start", tasks.sit_down, *args)
                hand.speed, hand.memory, hand.budget = told
                hand.is_seated = True
                return
            except ClusterError:
                if not holders or not await loss_of_any(holders, NOTICE_S):
                    raise
        raise WorkerGone(hand.name)

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

    @property
    def is_awaited(self) -> bool:
        """Whether a worker has, or had, a model to join with, and could not."""
        alive = [hand for hand in self.crew.candidates.values() if not hand.is_lost]
        return any(hand in self._ready or hand.outrun for hand in alive)

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

    def _settings(self, hand: Hand, present: Sequence[Arrival]) -> MemberSettings:
        session, equipped = self.executor.session, self.crew.equipped
        return member_settings(
            self.config,
            self.data.spec,
            session.strategy,
            session.placement,
            row_nonzeros=self.data.row_nonzeros,
            device=kernel_device(
                self.config, hand.arrival, equipped.get(hand.address, Equipment())
            ),
            threads=kernel_threads(self.config, hand.arrival, present, equipped),
            pool_threads=hand.device.pool_threads,
            host=hand.host,
            home=self.crew.home,
        )

    async def close(self) -> None:
        """Stop enlisting."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _any_lost(hands: Sequence[Hand]) -> bool:
    return any(hand.is_lost for hand in hands)


def _raise_first(answers: Mapping[str, object]) -> None:
    failure = first_failure(dict(answers))
    if failure is not None:
        raise failure
