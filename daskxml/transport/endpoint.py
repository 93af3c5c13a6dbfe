"""One rank's part in a collective: its channels to the others, and the thread of its program.

A channel is opened by its sender, with the first message; the endpoint accepts connections from all
others as soon as it begins. Any failure closes all channels of the endpoint, so that it reaches the
others through them. An endpoint that waits for a channel which is never opened is aborted by the
scheduler, which ends a collective at its first failure.

Opening a channel takes a connection, Dask's handshake and our own: several messages in a row, which
for a small model take longer than the model. So those of a merge that succeeded may stay open for
the next one of the same workers: `Channels`, which `daskxml.transport.communicator` keeps.
"""

from __future__ import annotations

import asyncio
import queue
import select
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from daskxml.collectives.messages import (
    Borrow,
    Flush,
    Op,
    Program,
    ProgramResult,
    Receive,
    ReceiveAny,
    Result,
    Send,
)
from daskxml.core.arrays import Array
from daskxml.transport import handshake
from daskxml.transport.channels import protocol
from daskxml.transport.handshake import ChannelId, Collective
from daskxml.transport.ucx import takes_device_arrays

AnyChannel = TypeVar("AnyChannel", bound=protocol.Channel)


@dataclass(frozen=True, slots=True)
class Channels:
    """The open channels of an endpoint, by the peer's rank."""

    receivers: Mapping[int, protocol.Receiver]
    senders: Mapping[int, protocol.Sender]

    async def close(self) -> None:
        """Close them."""
        for channel in (*self.receivers.values(), *self.senders.values()):
            await channel.close()


NO_CHANNELS = Channels({}, {})


class SendQueue:
    """Sends arrays over one channel, in order, from their own memory, in a thread of its own.

    So sending overlaps receiving and arithmetic, and a slow receiver delays no other.

    Parameters
    ----------
    connect
        Waits for the channel, and returns it.
    on_failure
        Called with the error, from the sending thread.
    channel
        The channel, if it is open already.
    """

    def __init__(
        self,
        connect: Callable[[], protocol.Sender],
        on_failure: Callable[[OSError], None],
        channel: protocol.Sender | None = None,
    ) -> None:
        self._connect, self._on_failure, self._channel = connect, on_failure, channel
        self._queue: queue.SimpleQueue[protocol.Payload | threading.Event | None] = (
            queue.SimpleQueue()
        )
        self._given = self._taken = 0  # arrays; a future for each was slower
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="daskxml-out", daemon=True)

    def put(self, data: protocol.Payload) -> None:
        """Send these bytes; returns before they have left."""
        channel = self._channel
        if channel and self._given == self._taken and len(data) <= channel.inline_bytes:
            data = data[channel.send_now(data) :]
        if len(data):
            if not self._given:
                self._thread.start()
            self._given += 1
            self._queue.put(data)

    def flush(self) -> None:
        """Wait until every array may be overwritten, or sending has failed."""
        if self._given:
            sent = threading.Event()
            self._queue.put(sent)
            sent.wait()
        if self._problem is not None:
            raise self._problem
        if self._channel is not None:
            self._channel.flush()

    def close(self) -> None:
        """Send nothing more, and end the thread; a blocked channel must be aborted first."""
        if self._given:
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            try:
                self._channel = self._channel or self._connect()
                self._channel.send(item)
            except OSError as error:
                self._on_failure(error)
            except BaseException as error:
                self._problem = error
            self._taken += 1


class Endpoint:
    """One rank in a collective; created and run on the event loop, once.

    Parameters
    ----------
    collective, rank
        The collective, and the rank in it.
    channels
        Those that are open already; the endpoint owns them.

    Attributes
    ----------
    kept
        The channels that `run` leaves open.
    """

    def __init__(self, collective: Collective, rank: int, channels: Channels = NO_CHANNELS) -> None:
        self._collective, self.rank, self.kept = collective, rank, NO_CHANNELS
        self._timeout_s = collective.timeouts.idle_s
        self._loop = asyncio.get_running_loop()
        peers = [peer for peer in range(len(collective.addresses)) if peer != rank]
        self._receivers = _as_futures(peers, channels.receivers)
        self._senders = _as_futures(peers, channels.senders)
        self._queues: dict[int, SendQueue] = {}
        self._lender: protocol.Receiver | None = None  # of the array that is borrowed
        self._known: dict[int, None] = {}  # peers for `ReceiveAny`, the latest sender last
        self._opening: dict[asyncio.Task[None], None] = {}
        self._lock = threading.Lock()
        self._failure: OSError | None = None

    async def run(self, program: Program[Result]) -> ProgramResult[Result]:
        """Drive a program in a thread of its own; returns or raises only when that has ended.

        Raises
        ------
        OSError
            With the worker that failed; whatever the program raises.
        """
        for peer, receiver in self._receivers.items():
            if not receiver.done():
                self._open(self._accept(peer), receiver)
        threads = self._collective.threads
        job = self._loop.run_in_executor(threads, self._run_in_thread, program)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            self.abort(_left())
            raise
        finally:
            await asyncio.wait({job})
            job.exception()  # or asyncio logs one that was not retrieved
            await self._close()

    def abort(self, failure: OSError) -> None:
        """Abort all channels; the program fails when it next uses one. Callable from any thread."""
        with self._lock:
            self._failure = self._failure or failure
        futures: list[Future[protocol.Receiver] | Future[protocol.Sender]]
        futures = [*self._receivers.values(), *self._senders.values()]
        for future in futures:
            if not future.cancel() and future.exception() is None:
                future.result().abort()

    async def _close(self) -> None:
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        keeps = self._collective.keeps_channels and self._failure is None
        receivers = await _keep_or_close(_opened(self._receivers), keeps)
        self.kept = Channels(receivers, await _keep_or_close(_opened(self._senders), keeps))

    # ------------------------------------------------------- the program, in its thread

    def _run_in_thread(self, program: Program[Result]) -> ProgramResult[Result]:
        try:
            with closing(program):
                return self._drive(program)
        except BaseException as error:
            self.abort(error if isinstance(error, OSError) else _left())
            raise
        finally:
            for each in self._queues.values():
                each.close()

    def _drive(self, program: Program[Result]) -> ProgramResult[Result]:
        """Execute a program's operations to its end; all that it sent has left then."""
        busy_s, sent_bytes, answer = 0.0, 0, None
        while True:
            begun_s = time.perf_counter()
            try:
                op = program.send(answer)
            except StopIteration as end:
                busy_s += time.perf_counter() - begun_s
                self._release_borrowed()
                if sent_bytes:
                    self._flush()
                return ProgramResult(result=end.value, busy_s=busy_s, sent_bytes=sent_bytes)
            busy_s += time.perf_counter() - begun_s
            if isinstance(op, Send):
                sent_bytes += int(op.array.nbytes)
            answer = self._execute(op)

    def _execute(self, op: Op) -> Any:
        self._release_borrowed()
        match op:
            case Send(to, array):
                self._send(to, array)
            case Borrow(source, into):
                return self._borrow(source, into)
            case Receive(source, into):
                with self._naming(source):
                    self._wait(self._receivers[source]).receive_into(into)
                self._known[source] = None
            case ReceiveAny(into):
                return self._receive_any(into)
            case Flush():
                self._flush()
        return None

    def _send(self, to: int, array: Array) -> None:
        address = self._collective.addresses[to]
        if to not in self._queues:
            self._queues[to] = SendQueue(
                connect=lambda: self._connect(to),
                on_failure=lambda error: self.abort(self._named(to, error)),
                channel=_opened(self._senders).get(to),
            )
        with self._naming(to):
            self._queues[to].put(protocol.payload_of(array, takes_device_arrays(address)))

    def _borrow(self, source: int, into: Array) -> Array:
        with self._naming(source):
            self._lender = self._wait(self._receivers[source])
            array = self._lender.borrow(into)
        self._known[source] = None
        return array

    def _release_borrowed(self) -> None:
        lender, self._lender = self._lender, None
        if lender is not None:
            lender.release()

    def _receive_any(self, into: Array) -> int:
        """Receive the next array of any known peer, but for those whose program has ended."""
        while True:
            source = self._first_ready()
            with self._naming(source):
                receiver = self._receivers[source].result()
                del self._known[source]
                if not receiver.is_at_end():
                    receiver.receive_into(into)
                    self._known[source] = None
                    return source

    def _first_ready(self) -> int:
        if not self._known:
            raise ConnectionResetError("every other worker has left")
        signals = {self._receivers[peer].result().signal(): peer for peer in self._known}
        ready = _wait_for_any(signals, self._timeout_s)
        self._check()
        if not ready:
            raise TimeoutError(f"nothing arrived for {self._timeout_s:g} s")
        return next(peer for peer in self._known if peer in ready)

    def _flush(self) -> None:
        for to, each in self._queues.items():
            with self._naming(to):
                each.flush()
        self._check()

    # ---------------------------------------------------------------- opening channels

    def _connect(self, peer: int) -> protocol.Sender:
        """Open a channel to a peer, from the thread of its queue."""
        sender = self._senders[peer]
        if not sender.done():
            work = handshake.connect_to(self._collective, self.rank, peer)
            self._loop.call_soon_threadsafe(self._open, work, sender)
        return self._wait(sender)

    async def _accept(self, peer: int) -> protocol.Receiver:
        """Wait for a peer's connection, and open the channel from it."""
        channel = ChannelId(self._collective.id, sender=peer, receiver=self.rank)
        pending = await self._collective.rendezvous.accept(channel)
        try:
            return await handshake.accept_from(self._collective, pending)
        except BaseException:
            pending.released.set()
            raise

    def _wait(self, channel: Future[AnyChannel]) -> AnyChannel:
        try:
            return channel.result(self._timeout_s)
        except BaseException:
            self._check()
            raise

    def _open(self, work: Coroutine[Any, Any, AnyChannel], future: Future[AnyChannel]) -> None:
        task = asyncio.ensure_future(self._set_channel(work, future))
        self._opening[task] = None
        task.add_done_callback(lambda _: work.close())  # it may be cancelled before it begins

    async def _set_channel(
        self, work: Coroutine[Any, Any, AnyChannel], future: Future[AnyChannel]
    ) -> None:
        try:
            channel = await work
        except OSError as error:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
            return
        if future.set_running_or_notify_cancel():
            future.set_result(channel)
        else:  # aborted meanwhile
            await channel.close()

    # ----------------------------------------------------------------------- failures

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def _naming(self, peer: int) -> Iterator[None]:
        """Raise this endpoint's first failure, or else errors with the peer's address."""
        self._check()
        try:
            yield
        except OSError as error:
            self._check()
            raise self._named(peer, error) from error

    def _named(self, peer: int, error: OSError) -> OSError:
        why, address = str(error) or "time is up", self._collective.addresses[peer]
        return ConnectionError(f"worker {address} is gone or silent ({why})")


def _left() -> OSError:
    return ConnectionAbortedError("this worker has left the round")


def _as_futures(
    peers: Iterable[int], channels: Mapping[int, AnyChannel]
) -> dict[int, Future[AnyChannel]]:
    """Return a future for each peer's channel, done where it is open already."""
    futures: dict[int, Future[AnyChannel]] = {peer: Future() for peer in peers}
    for peer, channel in channels.items():
        futures[peer].set_result(channel)
    return futures


def _opened(futures: Mapping[int, Future[AnyChannel]]) -> dict[int, AnyChannel]:
    """Return the channels of the futures that have one."""
    done = {peer: future for peer, future in futures.items() if future.done()}
    return {
        peer: future.result()
        for peer, future in done.items()
        if not future.cancelled() and future.exception() is None
    }


async def _keep_or_close(channels: Mapping[int, AnyChannel], keeps: bool) -> dict[int, AnyChannel]:
    """Return the channels if they stay open for the next collective, else close them."""
    for channel in channels.values():
        if keeps:
            channel.prepare_reuse()
        else:
            await channel.close()
    return {**channels} if keeps else {}


def _wait_for_any(signals: Mapping[protocol.Signal, int], timeout_s: float) -> set[int]:
    """Return the peers of those signals that are the first to be ready."""
    futures = [signal for signal in signals if isinstance(signal, Future)]
    if futures:  # then all are: the comms of a collective are of one kind
        done, _ = wait(futures, timeout=timeout_s, return_when=FIRST_COMPLETED)
        return {signals[future] for future in done}
    poll, by_descriptor = select.poll(), {}
    for signal, peer in signals.items():
        if not isinstance(signal, Future):
            by_descriptor[signal.fileno()] = peer
            poll.register(signal, select.POLLIN)
    return {by_descriptor[descriptor] for descriptor, _ in poll.poll(timeout_s * 1000)}
