"""Channels of every kind: order, abort, the end of the other side."""

import asyncio
import select
import socket
from concurrent.futures import Future

import numpy as np
import pytest
from distributed.comm import connect, listen

from daskxml.transport.channels.dask_comm import CommChannel, UcxChannel
from daskxml.transport.channels.protocol import host_bytes
from daskxml.transport.channels.shared_memory import ShmReceiver, ShmSender
from daskxml.transport.channels.shm_arrays import MappingCache
from daskxml.transport.channels.tcp import TcpChannel
from daskxml.transport.handshake import _take_socket, open_channel
from daskxml.transport.ucx import has_ucx

TIMEOUT_S = 20.0


async def comm_pair(address):
    """Both ends of a comm, and the listener to stop."""
    accepted = asyncio.get_running_loop().create_future()

    async def keep(comm):
        accepted.set_result(comm)

    listener = await listen(address, keep)
    here = await connect(listener.contact_address)
    return here, await accepted, listener


async def open_both(here, there, timeout_s):
    return await open_channel(here, timeout_s), await open_channel(there, timeout_s)


async def open_both_as_messages(here, there, timeout_s):
    loop = asyncio.get_running_loop()
    return CommChannel(here, loop, timeout_s), CommChannel(there, loop, timeout_s)


async def open_both_shared(here, there, timeout_s):
    out = ShmSender(await _take_socket(here), timeout_s)
    return out, ShmReceiver(await _take_socket(there), timeout_s, MappingCache())


class Pair:
    """Both ends of a channel."""

    def __init__(self, address, opened):
        self.address, self.opened = address, opened

    async def __aenter__(self):
        here, there, self.listener = await comm_pair(self.address)
        self.here, self.there = await self.opened(here, there, TIMEOUT_S)
        return self.here, self.there

    async def __aexit__(self, *_):
        await self.here.close()
        await self.there.close()
        self.listener.stop()


needs_ucx = pytest.mark.skipif(not has_ucx(), reason="UCX is not installed")
KINDS = [
    pytest.param("tcp://127.0.0.1", open_both, TcpChannel, id="socket"),
    pytest.param("tcp://127.0.0.1", open_both_shared, ShmSender, id="shared-memory"),
    pytest.param("tcp://127.0.0.1", open_both_as_messages, CommChannel, id="tcp-messages"),
    pytest.param("inproc://", open_both, CommChannel, id="inproc"),
]
UCX = pytest.param("ucx://127.0.0.1", open_both, UcxChannel, id="ucx", marks=needs_ucx)
kinds = pytest.mark.parametrize(("address", "opened", "kind"), KINDS)
kinds_and_ucx = pytest.mark.parametrize(("address", "opened", "kind"), [*KINDS, UCX])


@kinds_and_ucx
def test_arrays_arrive_in_order_though_the_sender_reuses_its_own(address, opened, kind):
    def send_all(channel):
        array = np.empty(50_000, np.float32)
        for number in range(8):
            array[:] = number
            channel.send(host_bytes(array))
            channel.flush()

    def receive_all(channel):
        received = np.zeros((8, 50_000), np.float32)
        for row in received:
            channel.receive_into(row)
        return received

    async def run():
        async with Pair(address, opened) as (here, there):
            assert isinstance(here, kind)
            sending = asyncio.to_thread(send_all, here)
            return (await asyncio.gather(asyncio.to_thread(receive_all, there), sending))[0]

    assert (asyncio.run(run()) == np.arange(8)[:, None]).all()


@kinds_and_ucx
@pytest.mark.parametrize("aborts_there", [True, False])
def test_abort_wakes_a_thread_that_receives(address, opened, kind, aborts_there):
    async def run():
        async with Pair(address, opened) as (here, there):
            blocked = asyncio.create_task(asyncio.to_thread(there.receive_into, np.zeros(10)))
            await asyncio.sleep(0)  # lets the thread start; aborting first must work as well
            (there if aborts_there or issubclass(kind, CommChannel) else here).abort()
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


@kinds
def test_what_was_sent_before_the_end_arrives_and_then_the_end(address, opened, kind):
    def receive_to_the_end(channel):
        array = np.zeros(3)
        assert is_ready(channel.signal())
        assert not channel.is_at_end()
        channel.receive_into(array)
        np.testing.assert_array_equal(array, [1, 2, 3])
        assert is_ready(channel.signal())
        assert channel.is_at_end()
        with pytest.raises(OSError, match=r".*"):
            channel.receive_into(array)

    async def run():
        async with Pair(address, opened) as (here, there):
            await asyncio.to_thread(here.send, host_bytes(np.array([1.0, 2.0, 3.0])))
            await here.close()
            await asyncio.wait_for(asyncio.to_thread(receive_to_the_end, there), 10)

    asyncio.run(run())


def test_a_socket_takes_what_fits_and_times_out():
    here, there = (TcpChannel(end, 0.05) for end in socket.socketpair())
    data = memoryview(bytes(1 << 24))
    sent = here.send_now(data)
    assert 0 < sent < len(data)
    while left := here.send_now(data):
        sent += left
    with pytest.raises(TimeoutError):
        here.send(data)
    received = np.empty(1 << 12, np.uint8)
    while sent >= received.size:
        there.receive_into(received)
        sent -= received.size
    with pytest.raises(TimeoutError):
        there.receive_into(np.empty(1 << 20, np.uint8))
    asyncio.run(here.close())
    asyncio.run(there.close())
