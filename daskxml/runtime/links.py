"""Links from one endpoint of a round to another, made from Dask's comms; arrays travel one way.

One way, since a TCP connection that is used both ways at once is slower than two of them. A link
is driven by a thread at each end (``send`` and ``receive_into`` block), so the workers' event loops
stay free for heartbeats. Over plain TCP the socket is taken out of the comm once its handshake is
over: arrays then go from where the sender has them into the kernel and from the kernel to where the
receiver wants them, with no serialisation, no compression and no buffer in between. Any other comm
(``tls://``, ``ucx://``, ``inproc://``) carries each array as a message.

A link that stays silent for longer than its patience is broken; over TCP the kernel keeps the time.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Protocol

from distributed.comm import Comm
from distributed.comm.tcp import TCP, TLS
from distributed.protocol import to_serialize

from daskxml.types import Array

STALL_S = 0.05  # how long a receiver may take nothing before its sender looks up
Read = Future[Any]


class Link(Protocol):
    """One direction between two endpoints; every method raises OSError when it is broken."""

    def send(self, data: memoryview) -> int:
        """Send these bytes, or as many of them as go before nothing moves for a moment.

        Returns how many; those may be overwritten.
        """

    def send_now(self, data: memoryview) -> int:
        """Send as many of these bytes as go without waiting; return how many."""

    def receive_into(self, array: Array) -> None:
        """Receive exactly one array into the one given, blocking."""

    def listen(self) -> socket.socket | Read:
        """Return what becomes readable, or done, when the next message or the end is there."""

    def is_at_end(self) -> bool:
        """Whether the other end has closed the link, once `listen` says that something is there."""

    def abort(self) -> None:
        """Make blocked calls fail now; callable from any thread."""

    async def close(self) -> None:
        """Release the link, when no thread uses it any more; what was sent still arrives."""


class SocketLink:
    """A link over a connected TCP socket of its own.

    Parameters
    ----------
    connection
        The socket; the link owns it and puts it into blocking mode.
    patience_s
        How long nothing may move while somebody waits for it, in seconds.

    Examples
    --------
    >>> import numpy as np
    >>> here, there = (SocketLink(end, 5.0) for end in socket.socketpair())
    >>> here.send(host_bytes(np.arange(3, dtype="f4")))
    12
    >>> array = np.empty(3, "f4")
    >>> there.receive_into(array)
    >>> array
    array([0., 1., 2.], dtype=float32)
    >>> asyncio.run(here.close()), asyncio.run(there.close())
    (None, None)
    """

    def __init__(self, connection: socket.socket, patience_s: float) -> None:
        connection.setblocking(True)
        for option, limit_s in ((socket.SO_RCVTIMEO, patience_s), (socket.SO_SNDTIMEO, STALL_S)):
            connection.setsockopt(socket.SOL_SOCKET, option, _time_value(limit_s))
        self._socket = connection

    def send(self, data: memoryview) -> int:
        """Send these bytes; the kernel then holds a copy of as many as are returned."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def send_now(self, data: memoryview) -> int:
        """Send what the kernel takes at once."""
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def receive_into(self, array: Array) -> None:
        """Receive straight into the array."""
        view, at = host_bytes(array), 0
        while at < len(view):
            try:
                got = self._socket.recv_into(view[at:], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                raise TimeoutError from None
            if not got:
                raise ConnectionResetError("the connection was closed")
            at += got

    def listen(self) -> socket.socket:
        """Return the socket."""
        return self._socket

    def is_at_end(self) -> bool:
        """Look at the next byte without taking it."""
        return not self._socket.recv(1, socket.MSG_PEEK)

    def abort(self) -> None:
        """Shut the connection down, which wakes threads that wait for it."""
        with suppress(OSError):  # broken or closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class CommLink:
    """A link over any Dask comm, one message an array; one of them is on its way at a time.

    Parameters
    ----------
    comm
        An established comm that nobody else reads or writes.
    loop
        The event loop on which the comm lives.
    patience_s
        How long to wait for a message, in seconds.
    """

    def __init__(self, comm: Comm, loop: asyncio.AbstractEventLoop, patience_s: float) -> None:
        # Floats do not compress, so the attempt would only cost time.
        comm.handshake_options = {**comm.handshake_options, "compression": None}
        self._comm, self._loop, self._patience_s = comm, loop, patience_s
        self._pending: set[Future[Any]] = set()
        self._reading: Read | None = None
        self._writing: Future[Any] | None = None
        self._aborted = False

    def send(self, data: memoryview) -> int:
        """Send a copy: some comms return before the bytes have left, or pass by reference."""
        try:
            if self._writing is not None:
                self._result(self._writing, STALL_S)
        except TimeoutError:
            return 0
        self._writing = self._start(self._comm.write({"array": to_serialize(bytes(data))}))
        return len(data)

    def send_now(self, data: memoryview) -> int:
        """Messages always go through the event loop."""
        return 0

    def receive_into(self, array: Array) -> None:
        """Receive one message and copy its array."""
        reading, self._reading = self.listen(), None
        host_bytes(array)[:] = memoryview(self._result(reading, self._patience_s)["array"])

    def listen(self) -> Read:
        """Return the next message, as a future."""
        if self._reading is None:
            self._reading = self._start(self._comm.read())
        return self._reading

    def is_at_end(self) -> bool:
        """Whether there will be no next message."""
        reading = self.listen()
        return not reading.cancelled() and isinstance(reading.exception(0), OSError)

    def abort(self) -> None:
        """Cancel what threads wait for."""
        self._aborted = True
        for pending in tuple(self._pending):
            pending.cancel()

    async def close(self) -> None:
        """Close the comm once its messages have left."""
        with suppress(OSError, CancelledError, asyncio.CancelledError):
            if self._writing is not None:
                await asyncio.wrap_future(self._writing)
        self.abort()
        with suppress(OSError):
            await self._comm.close()

    def _start(self, action: Coroutine[Any, Any, Any]) -> Future[Any]:
        future = asyncio.run_coroutine_threadsafe(action, self._loop)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        if self._aborted:  # checked after adding: abort() misses no future
            future.cancel()
        return future

    def _result(self, future: Future[Any], patience_s: float) -> Any:
        try:
            return future.result(patience_s)
        except CancelledError:
            raise ConnectionAbortedError("the link was aborted") from None


async def open_link(comm: Comm, patience_s: float) -> Link:
    """Turn an established comm into a link.

    Nothing may be on its way to this end, or the comm's stream might have read it already: the
    sender waits for the receiver's "ready", and the receiver opens its end as soon as it has said
    that.

    Parameters
    ----------
    comm
        The link owns it from now on.
    patience_s
        How long nothing may move while somebody waits for it, in seconds.
    """
    if not isinstance(comm, TCP) or isinstance(comm, TLS):
        return CommLink(comm, asyncio.get_running_loop(), patience_s)
    stream = comm.stream
    if stream is None:
        raise ConnectionResetError("the connection was closed")
    if stream.writing():
        await stream.write(b"")  # resolves when all that was written before has left
    connection = stream.socket.dup()
    comm.abort()  # closes its own descriptor only: the connection lives on in the other
    return SocketLink(connection, patience_s)


def host_bytes(array: Array) -> memoryview:
    """View an array in host memory as bytes; the one place that decides how arrays travel.

    Examples
    --------
    >>> import numpy as np
    >>> host_bytes(np.zeros(2, "f4")).nbytes
    8
    """
    return memoryview(array).cast("B")


def _time_value(seconds: float) -> bytes:
    """A ``struct timeval`` of at least a microsecond, since 0 means for ever."""
    whole = int(seconds)
    return struct.pack("ll", whole, max(int((seconds - whole) * 1e6), 0 if whole else 1))
