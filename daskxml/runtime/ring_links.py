"""One-way links between neighbours of a ring, made from Dask's comms.

A link is driven by a thread of its own (``send`` and ``receive_into`` block), so the worker's
event loop stays free for heartbeats. Over plain TCP the socket is taken out of the comm once its
handshake is over: pieces then go from the sender's array into the kernel and from the kernel into
the receiver's array, with one system call each, no serialisation, no compression and no buffer in
between. Any other comm (``tls://``, ``ucx://``, ``inproc://``) carries each piece as a message.

When the receiver has everything it acknowledges. The sender waits for that from the beginning, on
the event loop, so it also notices at once when the receiver goes away.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Protocol

from distributed.comm import Comm
from distributed.comm.tcp import TCP, TLS
from distributed.protocol import to_serialize

from daskxml.types import Array

ACKNOWLEDGEMENT = b"\x06"


class Link(Protocol):
    """One direction between two neighbours; every method raises OSError when it is broken."""

    moved_bytes: int

    def send(self, piece: Array) -> None:
        """Send one piece, blocking; the array may be overwritten afterwards."""

    def receive_into(self, piece: Array) -> None:
        """Receive exactly one piece into the array given, blocking."""

    async def acknowledge(self) -> None:
        """Tell the sender, from the receiving end, that everything has arrived."""

    async def acknowledged(self) -> None:
        """Wait, at the sending end, until the receiver has everything."""

    def abort(self) -> None:
        """Make blocked calls fail now; callable from any thread."""

    def close(self) -> None:
        """Release the link, when no thread uses it any more."""


class SocketLink:
    """A link over a connected TCP socket of its own.

    Parameters
    ----------
    connection
        The socket; the link owns it and puts it into blocking mode.

    Examples
    --------
    >>> import numpy as np
    >>> sender, receiver = map(SocketLink, socket.socketpair())
    >>> sender.send(np.arange(3, dtype="f4"))
    >>> piece = np.empty(3, "f4")
    >>> receiver.receive_into(piece)
    >>> piece
    array([0., 1., 2.], dtype=float32)
    >>> sender.close(), receiver.close()
    (None, None)
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._socket = connection
        self.moved_bytes = 0

    def send(self, piece: Array) -> None:
        """Send one piece; on return the kernel holds a copy of it."""
        self._socket.sendall(host_bytes(piece))
        self.moved_bytes += piece.nbytes

    def receive_into(self, piece: Array) -> None:
        """Receive one piece straight into the array."""
        view, at = host_bytes(piece), 0
        while at < len(view):
            got = self._socket.recv_into(view[at:], 0, socket.MSG_WAITALL)
            if not got:
                raise ConnectionResetError("the peer closed the connection")
            at += got
        self.moved_bytes += len(view)

    async def acknowledge(self) -> None:
        """Send the one byte that ever travels backwards; it cannot block."""
        self._socket.send(ACKNOWLEDGEMENT)

    async def acknowledged(self) -> None:
        """Wait for that byte."""
        await _readable(self._socket)
        # Readable, so this does not block: the byte, an error, or nothing (closed).
        if self._socket.recv(1) != ACKNOWLEDGEMENT:
            raise ConnectionResetError("the peer closed the connection")

    def abort(self) -> None:
        """Shut the connection down, which wakes threads that wait for it."""
        with suppress(OSError):  # broken or closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; bytes on their way still arrive."""
        self._socket.close()


class CommLink:
    """A link over any Dask comm, one message a piece.

    Parameters
    ----------
    comm
        An established comm that nobody else reads or writes.
    loop
        The event loop on which the comm lives.
    """

    def __init__(self, comm: Comm, loop: asyncio.AbstractEventLoop) -> None:
        # Floats do not compress, so the attempt would only cost time.
        comm.handshake_options = {**comm.handshake_options, "compression": None}
        self._comm, self._loop = comm, loop
        self._pending: set[Future[Any]] = set()
        self._aborted = False
        self.moved_bytes = 0

    def send(self, piece: Array) -> None:
        """Send a copy: some comms return before the bytes have left, or pass by reference."""
        self._wait(self._comm.write({"piece": to_serialize(piece.copy())}))
        self.moved_bytes += piece.nbytes

    def receive_into(self, piece: Array) -> None:
        """Receive one message and copy its piece."""
        piece[...] = self._wait(self._comm.read())["piece"]
        self.moved_bytes += piece.nbytes

    async def acknowledge(self) -> None:
        """Send the one message that travels backwards."""
        await self._comm.write({"received": True})

    async def acknowledged(self) -> None:
        """Wait for that message."""
        await self._comm.read()

    def abort(self) -> None:
        """Cancel what threads wait for."""
        self._aborted = True
        for pending in tuple(self._pending):
            pending.cancel()

    def close(self) -> None:
        """Close the comm."""
        self._comm.abort()

    def _wait(self, action: Coroutine[Any, Any, Any]) -> Any:
        future = asyncio.run_coroutine_threadsafe(action, self._loop)
        self._pending.add(future)
        try:
            if self._aborted:  # checked after adding: abort() misses no future
                future.cancel()
            return future.result()
        except CancelledError:
            raise ConnectionAbortedError("the link was aborted") from None
        finally:
            self._pending.discard(future)


async def open_link(comm: Comm) -> Link:
    """Turn an established comm into a link.

    Nothing may be on its way to this end, or the comm's stream might have read it already: a
    sender waits for the receiver's "ready", and the acknowledgement follows at least one piece.

    Parameters
    ----------
    comm
        The link owns it from now on.
    """
    if not isinstance(comm, TCP) or isinstance(comm, TLS):
        return CommLink(comm, asyncio.get_running_loop())
    stream = comm.stream
    if stream is None:
        raise ConnectionResetError("the peer closed the connection")
    if stream.writing():
        await stream.write(b"")  # resolves when all that was written before has left
    connection = stream.socket.dup()
    comm.abort()  # closes its own descriptor only: the connection lives on in the other
    return SocketLink(connection)


def host_bytes(piece: Array) -> memoryview:
    """View an array in host memory as bytes; the one place that decides how arrays travel.

    Examples
    --------
    >>> import numpy as np
    >>> host_bytes(np.zeros(2, "f4")).nbytes
    8
    """
    return memoryview(piece).cast("B")


async def _readable(connection: socket.socket) -> None:
    loop, readable, descriptor = asyncio.get_running_loop(), asyncio.Event(), connection.fileno()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
