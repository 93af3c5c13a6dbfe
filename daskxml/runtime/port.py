"""A worker's port: through it the worker takes part in rounds, which are merges and gangs.

An endpoint dials another one's worker, whose server hands the comm to that worker's port; the port
keeps it in the mailbox until its own side of the round has begun. Rounds of a run are numbered, and
one that is over, aborted, or older than the latest refuses its callers. Whatever goes wrong at one
endpoint cuts its lines, so those that it talks with fail as well, and raise ClusterError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distributed.comm import Comm

from daskxml.combine.messages import Program, Result
from daskxml.errors import ClusterError
from daskxml.runtime.calling import HANDLER, Patience, Place
from daskxml.runtime.kept_links import NONE, Kept
from daskxml.runtime.mailbox import Caller, Line, Mailbox, RoundKey
from daskxml.runtime.mappings import Mappings
from daskxml.runtime.performing import Performed
from daskxml.runtime.round import Round

__all__ = ["Patience", "Port", "RoundKey", "RoundPlan"]


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Who takes part in a round, by rank: the address and the machine of each worker.

    ``follows`` is as in `Port.perform`.
    """

    run: str
    number: int
    addresses: tuple[str, ...]
    hosts: tuple[str, ...]
    follows: int | None = None


class Port:
    """A worker's end of every round that it takes part in; all methods run on its event loop.

    Parameters
    ----------
    worker
        The ``distributed.Worker`` on which the port registers its handler.
    patience
        How long to wait for others.
    shares_memory
        Whether processes of this machine read each other's arrays where they lie, where they can;
        else they are joined by sockets, like machines.

    Examples
    --------
    Made where the worker's plugin is set up, and closed where it is torn down::

        self.port = Port(worker)
        ...
        await self.port.close()
    """

    def __init__(
        self, worker: Any, patience: Patience | None = None, *, shares_memory: bool = True
    ) -> None:
        self.patience, self.shares_memory = patience or Patience(), shares_memory
        self._handlers: dict[str, Any] = worker.handlers
        self._connection_args: dict[str, Any] = worker.connection_args
        self._mailbox, self._mappings = Mailbox(), Mappings()
        self._rounds: dict[RoundKey, list[Round]] = {}
        self._kept: dict[str, Kept] = {}  # by run
        self._ends: dict[RoundKey, asyncio.Event] = {}
        self._floors: dict[str, int] = {}  # of each run, the lowest round that may still be
        self._callers: set[Caller] = set()
        self._closed = False
        self._handlers[HANDLER] = self.answer

    @property
    def is_idle(self) -> bool:
        """Whether no round runs here, nobody waits for one, and no links are kept for one."""
        return not (self._rounds or self._callers or len(self._mailbox) or self._kept)

    async def perform(
        self,
        key: RoundKey,
        addresses: Sequence[str],
        programs: Mapping[int, Program[Result]],
        patience: Patience | None = None,
        follows: int | None = None,
    ) -> list[Performed[Result]]:
        """Take part in a round with one or more endpoints; each program runs in its own thread.

        Parameters
        ----------
        key
            Which round; the numbers of a run only ever grow.
        addresses
            The worker of every endpoint; the same on all workers.
        programs
            What this worker's endpoints do, by their number.
        follows
            The same on all workers. None: links are opened for this round and closed with it. A
            number: they are kept, and those of the round of this number are used again, which had
            the same endpoints and went well on all workers; 0: there was none. All that is sent in
            such a round must be received in it.

        Returns
        -------
        list of Performed
            In the order of ``programs``. Every program has ended then, also after a failure.

        Raises
        ------
        ClusterError
            When another endpoint dies, cannot be reached, or is silent for too long; when the
            round is aborted; when it is stale. Else what a program raised.
        """
        if follows is not None:
            await self._let_go(key.run, but=follows)
        problem = self._problem(key, follows)
        if problem:
            for program in programs.values():
                program.close()
            raise ClusterError(f"{key} {problem}: start a new one")
        rounds = self._begin(key, addresses, programs, patience, follows)
        parts = zip(rounds, programs.values(), strict=True)
        jobs = [asyncio.ensure_future(part.run(program)) for part, program in parts]
        try:
            done = await self._together(key, jobs)
            if follows is not None:
                self._kept[key.run] = Kept(key.number, {part.number: part.kept for part in rounds})
            return done
        except BaseException:
            for part in rounds:
                await part.kept.close()
            raise
        finally:
            del self._rounds[key]
            self._ends.pop(key).set()
            self._refuse_before(key.run, key.number + 1)
            self._mappings.purge()

    def _problem(self, key: RoundKey, follows: int | None) -> str:
        """Say why a round cannot begin here; "" if it can."""
        if self._is_over(key) or key in self._rounds:
            return "is over here"
        if follows and key.run not in self._kept:
            return f"finds no links of round {follows} here"
        return ""

    def _begin(
        self, key: RoundKey, addresses: Sequence[str], numbers: Iterable[int],
        patience: Patience | None, follows: int | None,
    ) -> list[Round]:  # fmt: skip
        """Make a round's endpoints, with the links of the one that it follows."""
        self._refuse_before(key.run, key.number)
        links = self._kept.pop(key.run).links if follows else {}
        place = Place(
            key=key,
            number=-1,
            addresses=tuple(addresses),
            mailbox=self._mailbox,
            mappings=self._mappings,
            connection_args=self._connection_args,
            patience=patience or self.patience,
            shares_memory=self.shares_memory,
            keeps_links=follows is not None,
        )
        rounds = [Round(replace(place, number=n), links.get(n, NONE)) for n in numbers]
        self._rounds[key], self._ends[key] = rounds, asyncio.Event()
        return rounds

    async def _together(
        self, key: RoundKey, jobs: Sequence[asyncio.Future[Performed[Result]]]
    ) -> list[Performed[Result]]:
        """Wait for all; the first failure ends the others, and the most telling one is raised."""
        try:
            await asyncio.wait(jobs, return_when=asyncio.FIRST_EXCEPTION)
            for job, part in zip(jobs, self._rounds[key], strict=True):
                if not job.done():
                    part.abort(ConnectionAbortedError("this worker has failed elsewhere"))
        except asyncio.CancelledError:
            for job in jobs:
                job.cancel()
            raise
        finally:
            done = await asyncio.gather(*jobs, return_exceptions=True)
        failures = [answer for answer in done if isinstance(answer, BaseException)]
        for failure in sorted(failures, key=lambda failure: isinstance(failure, OSError)):
            if isinstance(failure, OSError):
                raise ClusterError(f"{key} failed, {failure}: start a new one") from failure
            raise failure
        return [job.result() for job in jobs]

    async def abort(self, run: str, number: int) -> None:
        """Fail this round, and earlier ones of the run; ends when their programs have.

        Later calls for them are refused.
        """
        self._refuse_before(run, number + 1)
        await self._settle(lambda key: key.run == run and key.number <= number)

    async def forget(self, run: str) -> None:
        """Abort the run's rounds and forget it, so that its numbers may start anew."""
        self._dismiss(lambda key: key.run == run)
        await self._settle(lambda key: key.run == run)
        await self._let_go(run)
        self._floors.pop(run, None)
        self._mappings.clear()  # other runs map anew what they read

    async def close(self) -> None:
        """Abort every round, send away every caller, and take no more."""
        self._closed = True
        self._handlers.pop(HANDLER, None)
        self._dismiss(lambda key: True)
        await self._settle(lambda key: True)
        for run in tuple(self._kept):
            await self._let_go(run)
        self._mappings.clear()

    async def answer(
        self, comm: Comm, run: str, number: int, caller: int, callee: int,
        pipe: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Handle an endpoint's call: keep its comm for the round, or refuse it.

        The server reads from the comm again when this returns, so it stays until the round is
        over, or nobody has come for the comm in time.
        """
        key = RoundKey(run=run, number=number)
        waiting = Caller(comm=comm, line=Line(key, caller, callee), pipe=pipe)
        if self._is_over(key) or not self._mailbox.put(waiting):
            await comm.write({"status": "refused"})
            await comm.close()
            return
        self._callers.add(waiting)
        try:
            await waiting.until_released(self.patience.idle_s)
        finally:
            self._callers.discard(waiting)
            self._mailbox.withdraw(waiting)
            comm.abort()

    async def _let_go(self, run: str, but: int = 0) -> None:
        """Close the links that are kept for a run's next round, if not those of round ``but``."""
        kept = self._kept.get(run)
        if kept is not None and kept.number != but:
            del self._kept[run]
            await kept.close()

    async def _settle(self, matches: Callable[[RoundKey], bool]) -> None:
        for end in [end for key, end in self._ends.items() if matches(key)]:
            await end.wait()

    def _is_over(self, key: RoundKey) -> bool:
        return self._closed or key.number < self._floors.get(key.run, key.number)

    def _refuse_before(self, run: str, number: int) -> None:
        floor = self._floors[run] = max(number, self._floors.get(run, number))
        self._dismiss(lambda key: key.run == run and key.number < floor)

    def _dismiss(self, matches: Callable[[RoundKey], bool]) -> None:
        for key, rounds in self._rounds.items():
            if matches(key):
                for part in rounds:
                    part.abort(ConnectionAbortedError("it was aborted"))
        for caller in self._callers:
            if matches(caller.line.key):
                caller.released.set()
