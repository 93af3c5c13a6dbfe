"""A link over a TCP socket that was taken out of a Dask comm.

Arrays go from where the sender has them into the kernel and from the kernel to where the receiver
wants them, with no serialisation, no compression and no buffer in between. The kernel keeps the
time.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

import numpy as np

from daskxml.runtime.link_protocol import STALL_S
from daskxml.runtime.payloads import Payload, host_bytes, is_on_device, land
from daskxml.types import Array

SMALL_BYTES = 1 << 16  # above this a copy into the kernel costs more than a thread's turn


class SocketLink:
    """Either end of a link over a connected TCP socket of its own.

    Parameters
    ----------
    connection
        The socket; the link owns it and puts it into blocking mode.
    patience_s
        How long nothing may move while somebody waits for it, in seconds.

    Examples
    --------
    >>> import asyncio
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

    quick_bytes = SMALL_BYTES

    def __init__(self, connection: socket.socket, patience_s: float) -> None:
        connection.setblocking(True)
        for option, limit_s in ((socket.SO_RCVTIMEO, patience_s), (socket.SO_SNDTIMEO, STALL_S)):
            connection.setsockopt(socket.SOL_SOCKET, option, _time_value(limit_s))
        self._socket = connection

    def send(self, data: Payload) -> int:
        """Send these bytes; the kernel then holds a copy of as many as are returned."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def send_now(self, data: Payload) -> int:
        """Send what the kernel takes at once."""
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def flush(self) -> None:
        """Nothing to wait for: the kernel has copies."""

    def drain(self) -> None:
        """Nothing to wait for: the kernel sends what it has."""

    def receive_into(self, array: Array) -> None:
        """Receive straight into the array; by way of the host into one on a device."""
        if is_on_device(array):
            arrived = np.empty(array.shape, array.dtype)
            self.receive_into(arrived)
            land(arrived, array)
            return
        view, at = host_bytes(array), 0
        while at < len(view):
            try:
                got = self._socket.recv_into(view[at:], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                raise TimeoutError from None
            if not got:
                raise ConnectionResetError("the connection was closed")
            at += got

    def borrow(self, into: Array) -> Array:
        """Receive into the array."""
        self.receive_into(into)
        return into

    def release(self) -> None:
        """Nothing was borrowed."""

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

    def rest(self) -> bool:
        """Nothing to let go of."""
        return True

    async def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def _time_value(seconds: float) -> bytes:
    """A ``struct timeval`` of at least a microsecond, since 0 means for ever."""
    whole = int(seconds)
    return struct.pack("ll", whole, max(int((seconds - whole) * 1e6), 0 if whole else 1))
