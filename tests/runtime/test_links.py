"""Links over sockets and over comms: order, abort, the end of the other side."""

import asyncio
import select
import socket
from concurrent.futures import Future

import numpy as np
import pytest
from distributed.comm import connect, listen

from daskxml.runtime.comm_link import CommLink
from daskxml.runtime.links import open_in, open_link, open_out
from daskxml.runtime.mappings import Mappings
from daskxml.runtime.payloads import host_bytes
from daskxml.runtime.shared_out import SharedOut
from daskxml.runtime.socket_link import SocketLink
from daskxml.runtime.token_pipe import TokenPipe, open_offered

PATIENCE_S = 20.0


async def comm_pair(address):
    """Both ends of a comm, and the listener to stop."""
    accepted = asyncio.get_running_loop().create_future()

    async def keep(comm):
        accepted.set_result(comm)

    listener = await listen(address, keep)
    here = await connect(listener.contact_address)
    return here, await accepted, listener


async def open_both(here, there, patience_s):
    return await open_link(here, patience_s), await open_link(there, patience_s)


async def open_both_as_messages(here, there, patience_s):
    loop = asyncio.get_running_loop()
    return CommLink(here, loop, patience_s), CommLink(there, loop, patience_s)


async def open_both_shared(here, there, patience_s):
    pipe = TokenPipe()
    pipe_fd = open_offered(pipe.offer)
    out = await open_out(here, patience_s, pipe)
    return out, await open_in(there, patience_s, pipe_fd, Mappings())


class Pair:
    """Both ends of a link."""

    def __init__(self, address, opened):
        self.address, self.opened = address, opened

    async def __aenter__(self):
        here, there, self.listener = await comm_pair(self.address)
        self.here, self.there = await self.opened(here, there, PATIENCE_S)
        return self.here, self.there

    async def __aexit__(self, *_):
        await self.here.close()
        await self.there.close()
        self.listener.stop()


WAYS = [
    pytest.param("tcp://127.0.0.1", open_both, SocketLink, id="socket"),
    pytest.param("tcp://127.0.0.1", open_both_shared, SharedOut, id="shared-memory"),
    pytest.param("tcp://127.0.0.1", open_both_as_messages, CommLink, id="tcp-messages"),
    pytest.param("inproc://", open_both, CommLink, id="inproc"),
]
ways = pytest.mark.parametrize(("address", "opened", "kind"), WAYS)


@ways
def test_arrays_arrive_in_order_though_the_sender_reuses_its_own(address, opened, kind):
    def send_all(link):
        array = np.empty(50_000, np.float32)
        for number in range(8):
            array[:] = number
            data = host_bytes(array)
            while data:
                data = data[link.send(data) :]
            link.flush()
        link.drain()

    def receive_all(link):
        received = np.zeros((8, 50_000), np.float32)
        for row in received:
            link.receive_into(row)
        return received

    async def run():
        async with Pair(address, opened) as (here, there):
            assert isinstance(here, kind)
            sending = asyncio.to_thread(send_all, here)
            return (await asyncio.gather(asyncio.to_thread(receive_all, there), sending))[0]

    assert (asyncio.run(run()) == np.arange(8)[:, None]).all()


@ways
@pytest.mark.parametrize("aborts_there", [True, False])
def test_abort_wakes_a_thread_that_receives(address, opened, kind, aborts_there):
    async def run():
        async with Pair(address, opened) as (here, there):
            blocked = asyncio.create_task(asyncio.to_thread(there.receive_into, np.zeros(10)))
            await asyncio.sleep(0)  # lets the thread start; aborting first must work as well
            (there if aborts_there or kind is CommLink else here).abort()
            with pytest.raises(OSError, match=r"abort|closed"):
                await asyncio.wait_for(blocked, 10)

    asyncio.run(run())


def is_ready(signal):
    if isinstance(signal, Future):
        signal.exception(10)
        return True
    poll = select.poll()
    poll.register(signal, select.POLLIN)
    return bool(poll.poll(10_000))


@ways
def test_what_was_sent_before_the_end_arrives_and_then_the_end(address, opened, kind):
    def listen_to_all(link):
        array = np.zeros(3)
        assert is_ready(link.listen())
        assert not link.is_at_end()
        link.receive_into(array)
        np.testing.assert_array_equal(array, [1, 2, 3])
        assert is_ready(link.listen())
        assert link.is_at_end()
        with pytest.raises(OSError, match=r".*"):
            link.receive_into(array)

    async def run():
        async with Pair(address, opened) as (here, there):
            await asyncio.to_thread(here.send, host_bytes(np.array([1.0, 2.0, 3.0])))
            await here.close()
            await asyncio.wait_for(asyncio.to_thread(listen_to_all, there), 10)

    asyncio.run(run())


def test_a_socket_takes_what_fits_and_is_silent_only_so_long():
    here, there = (SocketLink(end, 0.05) for end in socket.socketpair())
    data = memoryview(bytes(1 << 24))
    sent = here.send(data)
    assert 0 < sent < len(data)
    assert here.send(data) == here.send_now(data) == 0
    received = np.empty(1 << 12, np.uint8)
    while sent >= received.size:
        there.receive_into(received)
        sent -= received.size
    with pytest.raises(TimeoutError):
        there.receive_into(np.empty(1 << 20, np.uint8))
    asyncio.run(here.close())
    asyncio.run(there.close())
