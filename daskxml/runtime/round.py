"""One endpoint's part in a round: its lines to the others, and the thread of its program.

A round is one go of a merge or of a gang, and an endpoint one of its ranks, or the server. A line
is opened by who sends, with the first message; whoever has begun the round answers all callers.
Whatever breaks, cuts all lines of this endpoint, so the failure travels along them; who waits for a
line that was never opened is let go by the scheduler, which ends a round with its first failure.
Lines of a merge that went well stay open for the next one of the same workers (`kept_links`).
"""

from __future__ import annotations

import asyncio
import select
import threading
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from daskxml.combine.messages import Program, Result
from daskxml.runtime import calling
from daskxml.runtime.calling import Place
from daskxml.runtime.kept_links import NONE, Links, opened, rest_or_close, slots_for
from daskxml.runtime.link_protocol import DIRECT, InLink, Link, OutLink, Signal
from daskxml.runtime.mailbox import Caller, Line
from daskxml.runtime.outbox import Outbox
from daskxml.runtime.payloads import departing
from daskxml.runtime.performing import Performed, perform
from daskxml.types import Array

Either = TypeVar("Either", bound=Link)


class Round:
    """One endpoint in a round; made and run on the event loop, once.

    The methods from `send` to `drain` are for the program's thread. ``links`` are open already;
    the round owns them from now on. ``kept`` are those that it leaves open.
    """

    def __init__(self, place: Place, links: Links = NONE) -> None:
        self._place, self.number, self.kept = place, place.number, NONE
        self._loop = asyncio.get_running_loop()
        others = [number for number in range(len(place.addresses)) if number != place.number]
        self._inward = slots_for(others, links.inward)
        self._outward = slots_for(others, links.outward)
        self._outboxes: dict[int, Outbox] = {}
        self._lender: InLink | None = None  # from whom an array is borrowed
        self._heard: dict[int, None] = {}  # whom `receive_any` listens to, the last one at the end
        self._callers: list[Caller] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._lock = threading.Lock()
        self._failure: OSError | None = None

    async def run(self, program: Program[Result]) -> Performed[Result]:
        """Drive the program in a thread; ends only when that has, and leaves but ``kept`` behind.

        Raises
        ------
        OSError
            Saying which worker failed; whatever the program raises.
        """
        for number, link in self._inward.items():
            if not link.done():
                self._open(self._answer(number), link)
        threads = ThreadPoolExecutor(1, "daskxml-program")
        job = self._loop.run_in_executor(threads, self._perform, program)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            self.abort(_left())
            raise
        finally:
            await asyncio.wait({job})
            job.exception()  # or asyncio tells of one that nobody asked for
            threads.shutdown(wait=False)
            await self._close()

    def abort(self, failure: OSError) -> None:
        """Cut all lines; the program fails as soon as it uses one. Callable from any thread."""
        with self._lock:
            self._failure = self._failure or failure
        for link in self._links():
            if not link.cancel() and link.exception() is None:
                link.result().abort()
        for outbox in tuple(self._outboxes.values()):
            outbox.close()

    def _perform(self, program: Program[Result]) -> Performed[Result]:
        try:
            done = perform(program, self)
            self._give_back()
            return done
        except BaseException as error:
            self.abort(error if isinstance(error, OSError) else _left())
            raise
        finally:
            for outbox in self._outboxes.values():
                outbox.close()
                outbox.join()

    async def _close(self) -> None:
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        keeps = self._place.keeps_links and self._failure is None
        inward = await rest_or_close(opened(self._inward), keeps)
        self.kept = Links(inward, await rest_or_close(opened(self._outward), keeps))
        for caller in self._callers:
            caller.released.set()

    def _links(self) -> list[Future[InLink] | Future[OutLink]]:
        return [*self._inward.values(), *self._outward.values()]

    # ------------------------------------------------------------- for the program

    def send(self, to: int, array: Array) -> None:
        """Let an array leave; returns before it has."""
        self._give_back()
        if to not in self._outboxes:
            failed = lambda error: self.abort(self._blame(to, error))  # noqa: E731
            patience_s = self._place.patience.idle_s
            link = opened(self._outward).get(to)
            self._outboxes[to] = Outbox(lambda: self._dialled(to), failed, patience_s, link)
        with self._blaming(to):
            is_direct = self._place.addresses[to].startswith(DIRECT)
            self._outboxes[to].put(departing(array, is_direct))

    def receive(self, source: int, into: Array) -> None:
        """Wait for an endpoint's next array."""
        self._give_back()
        with self._blaming(source):
            self._await(self._inward[source]).receive_into(into)
        self._heard[source] = None

    def borrow(self, source: int, into: Array) -> Array:
        """Wait for an endpoint's next array; return it where it lies, until the next call."""
        self._give_back()
        with self._blaming(source):
            self._lender = self._await(self._inward[source])
            array = self._lender.borrow(into)
        self._heard[source] = None
        return array

    def receive_any(self, into: Array) -> int:
        """Wait for the next array of any endpoint that was heard from; return which it is.

        One whose program has ended is not listened to any more.
        """
        self._give_back()
        while True:
            source = self._first_to_speak()
            with self._blaming(source):
                link = self._inward[source].result()
                del self._heard[source]
                if not link.is_at_end():
                    link.receive_into(into)
                    self._heard[source] = None
                    return source

    def flush(self) -> None:
        """Wait until everything that was sent may be overwritten."""
        self._give_back()
        for to, outbox in self._outboxes.items():
            with self._blaming(to):
                outbox.flush()
        self._check()

    def drain(self) -> None:
        """Wait until everything has left."""
        self._give_back()
        for to, outbox in self._outboxes.items():
            with self._blaming(to):
                outbox.drain()
        self._check()

    def _give_back(self) -> None:
        lender, self._lender = self._lender, None
        if lender is not None:
            lender.release()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _first_to_speak(self) -> int:
        if not self._heard:
            raise ConnectionResetError("every other worker has left")
        signals = {self._inward[number].result().listen(): number for number in self._heard}
        spoke = _wait_for_first(signals, self._place.patience.idle_s)
        self._check()
        if not spoke:
            raise TimeoutError(f"nothing arrived for {self._place.patience.idle_s:g} s")
        return next(number for number in self._heard if number in spoke)

    # ---------------------------------------------------------------------- opening

    def _dialled(self, number: int) -> OutLink:
        """Open a link outward, from its sender's thread."""
        link = self._outward[number]
        if not link.done():
            dialling = calling.dial(self._place, number)
            self._loop.call_soon_threadsafe(self._open, dialling, link)
        return self._await(link)

    def _await(self, link: Future[Either]) -> Either:
        try:
            return link.result(self._place.patience.idle_s)
        except BaseException:
            self._check()
            raise

    def _open(self, work: Coroutine[Any, Any, Either], place: Future[Either]) -> None:
        task = asyncio.ensure_future(self._deliver(work, place))
        self._opening.add(task)
        task.add_done_callback(lambda _: work.close())  # it may be cancelled before it begins

    async def _deliver(self, work: Coroutine[Any, Any, Either], place: Future[Either]) -> None:
        """Hand over a link, or why there is none."""
        try:
            link = await work
        except OSError as error:
            if place.set_running_or_notify_cancel():
                place.set_exception(error)
            return
        if place.set_running_or_notify_cancel():
            place.set_result(link)
        else:  # aborted meanwhile
            await link.close()

    async def _answer(self, number: int) -> InLink:
        """Wait for an endpoint's call and tell it to begin."""
        line = Line(self._place.key, caller=number, callee=self.number)
        caller = await self._place.mailbox.take(line)
        self._callers.append(caller)
        return await calling.answer(caller, self._place.patience.idle_s, self._place.mappings)

    # ---------------------------------------------------------------------- failing

    @contextmanager
    def _blaming(self, number: int) -> Iterator[None]:
        self._check()
        try:
            yield
        except OSError as error:
            self._check()
            raise self._blame(number, error) from error

    def _blame(self, number: int, error: OSError) -> OSError:
        why = str(error) or "time is up"
        return ConnectionError(f"worker {self._place.addresses[number]} is gone or silent ({why})")


def _left() -> OSError:
    return ConnectionAbortedError("this worker has left the round")


def _wait_for_first(signals: Mapping[Signal, int], patience_s: float) -> set[int]:
    """Return the numbers of those signals that are the first to be ready."""
    futures = [signal for signal in signals if isinstance(signal, Future)]
    if futures:  # then all are: the comms of a round are of one kind
        done, _ = wait(futures, timeout=patience_s, return_when=FIRST_COMPLETED)
        return {signals[future] for future in done}
    poll, by_descriptor = select.poll(), {}
    for signal, number in signals.items():
        if not isinstance(signal, Future):
            by_descriptor[signal.fileno()] = number
            poll.register(signal, select.POLLIN)
    return {by_descriptor[descriptor] for descriptor, _ in poll.poll(patience_s * 1000)}
