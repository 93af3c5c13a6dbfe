"""A channel over a TCP socket that was taken out of a Dask comm.

Arrays go from the sender's memory into the kernel and from the kernel into the receiver's array,
with no serialisation, no compression and no buffer in between. The kernel enforces the timeouts.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

import numpy as np

from daskxml.core.arrays import Array
from daskxml.transport.channels import protocol

SMALL_BYTES = 1 << 16  # above this a copy into the kernel costs more than waking a thread


class SocketEnd:
    """An end of a channel with a connected socket of its own.

    Parameters
    ----------
    connection
        The socket; the channel owns it and puts it into blocking mode.
    timeout_s
        How long nothing may move while a thread waits for it, in seconds.
    """

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        connection.setblocking(True)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, _time_value(timeout_s))
        self.socket = connection

    def write(self, data: protocol.Payload) -> None:
        """Write all of these bytes into the socket."""
        try:
            self.socket.sendall(data)
        except BlockingIOError:
            raise TimeoutError from None

    def read_into(self, view: memoryview) -> None:
        """Fill a view of bytes from the socket."""
        at = 0
        while at < len(view):
            try:
                received = self.socket.recv_into(view[at:], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                raise TimeoutError from None
            if not received:
                raise ConnectionResetError("the connection was closed")
            at += received

    def signal(self) -> socket.socket:
        """Return the socket."""
        return self.socket

    def is_at_end(self) -> bool:
        """Peek at the next byte."""
        return not self.socket.recv(1, socket.MSG_PEEK)

    def abort(self) -> None:
        """Shut the connection down, which wakes threads that wait at either end."""
        with suppress(OSError):  # broken or closed already
            self.socket.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """Close the socket."""
        self.socket.close()


class TcpChannel(SocketEnd, protocol.Sender, protocol.Receiver):
    """Either end of a channel over a TCP socket.

    Examples
    --------
    >>> import asyncio
    >>> here, there = (TcpChannel(end, 5.0) for end in socket.socketpair())
    >>> here.send(protocol.host_bytes(np.arange(3, dtype="f4")))
    >>> array = np.empty(3, "f4")
    >>> there.receive_into(array)
    >>> array
    array([0., 1., 2.], dtype=float32)
    >>> asyncio.run(here.close()), asyncio.run(there.close())
    (None, None)
    """

    inline_bytes = SMALL_BYTES

    def send(self, data: protocol.Payload) -> None:
        """Send these bytes; the kernel then has a copy."""
        self.write(data)

    def send_now(self, data: protocol.Payload) -> int:
        """Send what the kernel takes at once."""
        try:
            return self.socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def receive_into(self, array: Array) -> None:
        """Receive straight into the array; through the host into one on a device."""
        if protocol.is_on_device(array):
            arrived = np.empty(array.shape, array.dtype)
            self.read_into(protocol.host_bytes(arrived))
            protocol.write_payload(arrived, array)
        else:
            self.read_into(protocol.host_bytes(array))


def _time_value(seconds: float) -> bytes:
    """Return a ``struct timeval`` of at least a microsecond, since 0 means for ever."""
    whole = int(seconds)
    return struct.pack("ll", whole, max(int((seconds - whole) * 1e6), 0 if whole else 1))
