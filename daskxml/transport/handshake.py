"""How the endpoints of a collective find each other, and open channels between them.

An endpoint connects to the worker of each one that it sends to, whose server passes the comm to
that worker's communicator. The comm waits in the `Rendezvous` until the receiving endpoint has
begun its side of the collective, accepts it, and answers "ready". So nothing is sent before both
sides take part.

The sender's request chooses the kind of channel. On one machine it names memory of its own: if the
receiver can map that, arrays stay in shared memory. If it cannot, as another user or in another
container, or on another machine, they go through a TCP socket, or as messages over any other kind
of comm.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from distributed.comm import Comm, connect, get_address_host
from distributed.comm.tcp import TCP, TLS

from daskxml.transport.channels.dask_comm import CommChannel, UcxChannel
from daskxml.transport.channels.protocol import Receiver, Sender
from daskxml.transport.channels.shared_memory import ShmReceiver, ShmSender
from daskxml.transport.channels.shm_arrays import MappingCache, can_read, own_memory
from daskxml.transport.channels.tcp import TcpChannel
from daskxml.transport.ucx import can_receive_device_arrays, takes_device_arrays
from daskxml.worker.shared_model import SharedHandle

HANDLER = "daskxml_connect"
READY, REFUSED = "ready", "refused"


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveId:
    """One execution of a merge or of a gang.

    Attributes
    ----------
    run, number
        Collectives of a run are numbered in the order in which they begin.
    what
        Its name in messages.
    """

    run: str
    number: int
    what: str = field(default="round", compare=False)

    def __str__(self) -> str:
        return f"{self.what} (round {self.number}) of run {self.run}"


@dataclass(frozen=True, slots=True)
class ChannelId:
    """A channel of a collective, by the ranks of its ends."""

    collective: CollectiveId
    sender: int
    receiver: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts:
    """How long an endpoint waits for another one.

    Attributes
    ----------
    connect_s
        To reach its worker, in seconds.
    idle_s
        For it to begin the collective, and then for its next message, in seconds.
    """

    connect_s: float = 5.0
    idle_s: float = 60.0


# ------------------------------------------------------------------------------- rendezvous


@dataclass(kw_only=True, slots=True, eq=False)
class PendingConnection:
    """A sender's comm, and the memory that it names (`SharedHandle`).

    Its handler keeps the comm open until ``released`` is set.
    """

    comm: Comm
    channel: ChannelId
    memory: Mapping[str, Any] | None = None
    released: asyncio.Event = field(default_factory=asyncio.Event)
    is_accepted: bool = False

    async def wait_released(self, timeout_s: float) -> None:
        """Wait for the release: without limit if it is accepted within ``timeout_s`` seconds."""
        try:
            await asyncio.wait_for(self.released.wait(), timeout_s)
        except TimeoutError:
            if self.is_accepted:
                await self.released.wait()


class Rendezvous:
    """Pending connections by their channel; used on one event loop only.

    Examples
    --------
    >>> async def meet():
    ...     rendezvous = Rendezvous()
    ...     channel = ChannelId(CollectiveId(run="a", number=1), sender=0, receiver=1)
    ...     assert rendezvous.put(PendingConnection(comm="a comm", channel=channel))
    ...     return (await rendezvous.accept(channel)).comm
    >>> asyncio.run(meet())
    'a comm'
    """

    def __init__(self) -> None:
        self._futures: dict[ChannelId, asyncio.Future[PendingConnection]] = {}

    def put(self, pending: PendingConnection) -> bool:
        """Add a connection; return False if its channel has one already."""
        future = self._future(pending.channel)
        if future.done():
            return False
        future.set_result(pending)
        return True

    async def accept(self, channel: ChannelId) -> PendingConnection:
        """Wait for a channel's connection, and remove it."""
        try:
            pending = await self._future(channel)
        finally:
            self._futures.pop(channel, None)
        pending.is_accepted = True
        return pending

    def withdraw(self, pending: PendingConnection) -> None:
        """Remove a connection, unless it was accepted."""
        future = self._futures.get(pending.channel)
        if future is not None and future.done() and future.result() is pending:
            del self._futures[pending.channel]

    def _future(self, channel: ChannelId) -> asyncio.Future[PendingConnection]:
        if channel not in self._futures:
            self._futures[channel] = asyncio.get_running_loop().create_future()
        return self._futures[channel]


# -------------------------------------------------------------------------------- handshake


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """A collective as one worker takes part in it.

    Attributes
    ----------
    addresses
        The worker of every rank.
    rendezvous, mappings, threads
        The worker's.
    shares_memory
        Whether processes of one machine may read each other's arrays in place.
    keeps_channels
        Whether channels stay open after a success.
    """

    id: CollectiveId
    addresses: tuple[str, ...]
    rendezvous: Rendezvous
    mappings: MappingCache
    threads: ThreadPoolExecutor
    connection_args: Mapping[str, Any]
    timeouts: Timeouts
    shares_memory: bool = True
    keeps_channels: bool = False

    def memory_for(self, rank: int, peer: int) -> SharedHandle | None:
        """Return memory of this rank, where its peer may be able to read it; else None."""
        here, there = self.addresses[rank], self.addresses[peer]
        is_near = get_address_host(here) == get_address_host(there) and there.startswith("tcp://")
        return own_memory() if self.shares_memory and is_near else None


async def connect_to(collective: Collective, rank: int, peer: int) -> Sender:
    """Connect a rank to a peer, and return the channel to it."""
    timeouts = collective.timeouts
    comm = await connect(
        collective.addresses[peer], timeout=timeouts.connect_s, **collective.connection_args
    )
    try:
        return await asyncio.wait_for(_request(collective, rank, peer, comm), timeouts.idle_s)
    except BaseException:
        comm.abort()
        raise


async def _request(collective: Collective, rank: int, peer: int, comm: Comm) -> Sender:
    memory, timeout_s = collective.memory_for(rank, peer), collective.timeouts.idle_s
    channel = {"run": collective.id.run, "number": collective.id.number}
    channel |= {"sender": rank, "receiver": peer}
    offer = None if memory is None else asdict(memory)
    await comm.write({"op": HANDLER, "reply": False, "memory": offer, **channel})
    answer = await comm.read()
    if answer["status"] != READY:
        raise ConnectionRefusedError("it has left this round")
    if answer["shares"]:
        return ShmSender(await _take_socket(comm), timeout_s)
    made = await open_channel(comm, timeout_s)
    if isinstance(made, UcxChannel):
        made.takes_device = answer["takes_device"]
    return made


async def accept_from(collective: Collective, pending: PendingConnection) -> Receiver:
    """Answer a sender that it may begin, and return the channel from it."""
    timeout_s, memory = collective.timeouts.idle_s, pending.memory
    shares = memory is not None and can_read(SharedHandle(**memory))
    takes_device = can_receive_device_arrays()
    await pending.comm.write({"status": READY, "shares": shares, "takes_device": takes_device})
    if shares:
        connection = await _take_socket(pending.comm)
        pending.released.set()
        return ShmReceiver(connection, timeout_s, collective.mappings)
    channel = await open_channel(pending.comm, timeout_s, pending.released.set)
    if isinstance(channel, TcpChannel):
        pending.released.set()  # it has the socket
    return channel


async def open_channel(
    comm: Comm, timeout_s: float, on_close: Callable[[], object] = bool
) -> TcpChannel | CommChannel:
    """Turn an established comm into either end of a channel that shares no memory.

    Parameters
    ----------
    comm
        The channel owns it.
    timeout_s
        How long nothing may move while a thread waits for it, in seconds.
    on_close
        Called when a channel that needs the comm has been closed.
    """
    if isinstance(comm, TCP) and not isinstance(comm, TLS):
        return TcpChannel(await _take_socket(comm), timeout_s)
    kind = UcxChannel if takes_device_arrays(comm.peer_address) else CommChannel
    return kind(comm, asyncio.get_running_loop(), timeout_s, on_close)


async def _take_socket(comm: Comm) -> socket.socket:
    """Take the socket out of a comm of plain TCP, once the handshake is over.

    Nothing may be in flight to this end then, or the comm's stream might have read it already: so
    the sender waits for the receiver's "ready", and the receiver takes its socket right after it.
    """
    assert isinstance(comm, TCP), "memory is shared over TCP only"
    stream = comm.stream
    if stream is None:
        raise ConnectionResetError("the connection was closed")
    if stream.writing():
        await stream.write(b"")  # resolves when all that was written before has left
    connection = stream.socket.dup()
    comm.abort()  # closes its own descriptor only: the connection lives on in the other
    return connection
