"""Which kind of link joins two endpoints of a round: made from the comm that one of them dialled.

Between two processes of one machine arrays stay where they are (``shared_out``), over plain TCP
they go through a socket (``socket_link``), and any other comm carries them as messages
(``comm_link``).

A socket is taken out of its comm once the handshake is over. Nothing may be on its way to this end
then, or the comm's stream might have read it already: the sender waits for the receiver's "ready",
and the receiver opens its end as soon as it has said that.
"""

from __future__ import annotations

import asyncio
import socket

from distributed.comm import Comm
from distributed.comm.tcp import TCP, TLS

from daskxml.runtime.comm_link import CommLink
from daskxml.runtime.link_protocol import InLink, OutLink
from daskxml.runtime.mappings import Mappings
from daskxml.runtime.shared_in import SharedIn
from daskxml.runtime.shared_out import SharedOut
from daskxml.runtime.socket_link import SocketLink
from daskxml.runtime.token_pipe import TokenPipe


async def open_link(comm: Comm, patience_s: float) -> SocketLink | CommLink:
    """Turn an established comm into a link.

    Parameters
    ----------
    comm
        The link owns it from now on.
    patience_s
        How long nothing may move while somebody waits for it, in seconds.
    """
    connection = await _socket_of(comm)
    if connection is None:
        return CommLink(comm, asyncio.get_running_loop(), patience_s)
    return SocketLink(connection, patience_s)


async def open_out(comm: Comm, patience_s: float, pipe: TokenPipe | None) -> OutLink:
    """Open the sender's end, as `open_link`; with a pipe that the receiver has opened, if any."""
    if pipe is None:
        return await open_link(comm, patience_s)
    connection = await _socket_of(comm)
    if connection is None:
        raise ConnectionError("a pipe was opened beside a comm that is no socket")
    return SharedOut(connection, pipe, patience_s)


async def open_in(comm: Comm, patience_s: float, pipe_fd: int | None, mappings: Mappings) -> InLink:
    """Open the receiver's end, as `open_link`; with the sender's pipe, if any."""
    if pipe_fd is None:
        return await open_link(comm, patience_s)
    connection = await _socket_of(comm)
    if connection is None:
        raise ConnectionError("a pipe was opened beside a comm that is no socket")
    return SharedIn(connection, pipe_fd, patience_s, mappings)


async def _socket_of(comm: Comm) -> socket.socket | None:
    """Take the socket out of a comm of plain TCP."""
    if not isinstance(comm, TCP) or isinstance(comm, TLS):
        return None
    stream = comm.stream
    if stream is None:
        raise ConnectionResetError("the connection was closed")
    if stream.writing():
        await stream.write(b"")  # resolves when all that was written before has left
    connection = stream.socket.dup()
    comm.abort()  # closes its own descriptor only: the connection lives on in the other
    return connection
