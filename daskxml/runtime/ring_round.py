"""One ring at one worker, from dialling the next rank to its acknowledgement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from distributed.comm import Comm, connect

from daskxml.errors import ConfigError
from daskxml.runtime.ring_links import Link, open_link
from daskxml.runtime.ring_mailbox import Caller, Mailbox, RingKey
from daskxml.runtime.ring_reduce import (
    FLOAT_BYTES,
    Forwarded,
    RingTerm,
    receive_pieces,
    reduce_alone,
    send_pieces,
)

HANDLER = "daskxml_ring"
READY = {"status": "ready"}

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class RingOptions:
    """How a port rings.

    Attributes
    ----------
    piece_bytes
        Bytes of a piece; small enough for the cache, large enough to pay for its system calls.
    connect_timeout_s
        How long to try to reach the next rank, in seconds.
    idle_timeout_s
        How long to wait for a neighbour to start, or for the next piece, in seconds.
    """

    piece_bytes: int = 1 << 20
    connect_timeout_s: float = 5.0
    idle_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.piece_bytes < FLOAT_BYTES:
            raise ConfigError(f"piece_bytes = {self.piece_bytes}: must be at least {FLOAT_BYTES}")
        for name in ("connect_timeout_s", "idle_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} = {getattr(self, name)}: must be above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class RingStats:
    """What a ring cost one worker.

    Attributes
    ----------
    sent_bytes
        Bytes of pieces sent to the next rank.
    wait_s
        Seconds until both neighbours were there, and then for their pieces to arrive.
    total_s
        Seconds in all.
    """

    sent_bytes: int
    wait_s: float
    total_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RingLine:
    """How to reach the neighbours: by address the next rank, through the mailbox the one before."""

    key: RingKey
    addresses: tuple[str, ...]
    mailbox: Mailbox
    connection_args: Mapping[str, Any]
    options: RingOptions


class RingRound:
    """One ring at one worker; ``run`` is called once.

    Parameters
    ----------
    line
        Which ring, and how to reach the neighbours.
    term
        What this worker brings.
    """

    def __init__(self, line: RingLine, term: RingTerm) -> None:
        self._line, self._term = line, term
        self._next_address = line.addresses[(term.rank + 1) % term.ranks]
        self._prior_rank = (term.rank - 1) % term.ranks
        self._patience_s = line.options.idle_timeout_s
        self._outward: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        self._caller: Caller | None = None
        self._links: list[Link] = []

    async def run(self) -> RingStats:
        """Ring, and clean up whatever happens; raises OSError, saying which neighbour failed."""
        started_s = time.perf_counter()
        if self._term.ranks == 1 or self._term.size == 0:
            loop = asyncio.get_running_loop()
            await _settle(loop.run_in_executor(None, reduce_alone, self._term))
            return RingStats(sent_bytes=0, wait_s=0.0, total_s=time.perf_counter() - started_s)
        following = asyncio.create_task(self._follow_next())
        try:
            inward = await _beside(following, self._answer_prior())
            outward = await _beside(following, self._outward)
            met_s = time.perf_counter()
            waited_s = await self._exchange(inward, outward, following)
            await inward.acknowledge()
            await asyncio.wait_for(following, self._patience_s)
        finally:
            await _stop(following)
            self._release()
        return RingStats(
            sent_bytes=outward.moved_bytes,
            wait_s=met_s - started_s + waited_s,
            total_s=time.perf_counter() - started_s,
        )

    async def _follow_next(self) -> None:
        """Dial the next rank and stay until it has everything; fail as soon as it goes away."""
        with _blaming(f"the next worker {self._next_address}"):
            comm = await connect(
                self._next_address,
                timeout=self._line.options.connect_timeout_s,
                **self._line.connection_args,
            )
            link = await self._call(comm)
            self._links.append(link)
            self._outward.set_result(link)
            await link.acknowledged()

    async def _call(self, comm: Comm) -> Link:
        key = self._line.key
        call = {"run": key.run, "generation": key.generation, "attempt": key.attempt}
        try:
            await comm.write({"op": HANDLER, "reply": False, "rank": self._term.rank, **call})
            answer = await asyncio.wait_for(comm.read(), self._patience_s)
            if answer != READY:
                raise ConnectionRefusedError("it has left this attempt")
            return await open_link(comm)
        except BaseException:
            comm.abort()
            raise

    async def _answer_prior(self) -> Link:
        """Wait for the prior rank's call and tell it to begin."""
        with _blaming(self._prior):
            call = self._line.mailbox.take(self._line.key, self._prior_rank)
            self._caller = await asyncio.wait_for(call, self._patience_s)
            await self._caller.comm.write(READY)
            link = await open_link(self._caller.comm)
        self._links.append(link)
        return link

    async def _exchange(self, inward: Link, outward: Link, following: asyncio.Task[None]) -> float:
        """Run both directions in threads; seconds waited for pieces. Ends only when they have."""
        forwarded: Forwarded = SimpleQueue()
        loop, threads = asyncio.get_running_loop(), ThreadPoolExecutor(2, "daskxml-ring")
        receiving = loop.run_in_executor(threads, self._receive, inward, forwarded)
        sending = loop.run_in_executor(threads, self._send, outward, forwarded)
        try:
            await self._supervise({receiving, sending}, following)
        except BaseException:
            for link in self._links:
                link.abort()
            raise
        finally:
            await asyncio.gather(receiving, sending, return_exceptions=True)
            threads.shutdown(wait=False)
        return receiving.result()

    def _receive(self, inward: Link, forwarded: Forwarded) -> float:
        with _blaming(self._prior):
            return receive_pieces(self._term, inward, forwarded)

    def _send(self, outward: Link, forwarded: Forwarded) -> None:
        with _blaming(f"the next worker {self._next_address}"):
            send_pieces(self._term, outward, forwarded)

    async def _supervise(
        self, jobs: set[asyncio.Future[Any]], following: asyncio.Task[None]
    ) -> None:
        """Wait for the threads, as long as the next rank is there and pieces move."""
        pending, moved_bytes = jobs, -1
        while pending:
            beside = set() if following.done() else {following}
            done, _ = await asyncio.wait(
                pending | beside, timeout=self._patience_s, return_when=asyncio.FIRST_COMPLETED
            )
            for future in done:
                future.result()
            before, moved_bytes = moved_bytes, sum(link.moved_bytes for link in self._links)
            if not done and moved_bytes == before:
                raise TimeoutError(f"nothing moved for {self._patience_s:g} s")
            pending = pending - done

    def _release(self) -> None:
        for link in self._links:
            link.close()
        if self._caller is not None:
            self._caller.released.set()

    @property
    def _prior(self) -> str:
        return f"the prior worker {self._line.addresses[self._prior_rank]}"


@contextmanager
def _blaming(peer: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConnectionError(f"{peer} is gone or silent ({str(error) or 'time is up'})") from error


async def _beside(following: asyncio.Task[None], wanted: Awaitable[Result]) -> Result:
    """Wait for a result, unless the next rank is lost first."""
    future = asyncio.ensure_future(wanted)
    try:
        await asyncio.wait({future, following}, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            following.result()  # raises: the next rank cannot have everything yet
        return await future
    finally:
        await _stop(future)


async def _stop(future: asyncio.Future[Any]) -> None:
    future.cancel()
    await asyncio.gather(future, return_exceptions=True)


async def _settle(job: asyncio.Future[Any]) -> None:
    """Wait for a thread to end, even when cancelled: it writes into the caller's array."""
    try:
        await asyncio.shield(job)
    finally:
        await asyncio.wait({job})
