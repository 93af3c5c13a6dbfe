import asyncio

import numpy as np
import pytest
from distributed.comm import connect, listen

from daskxml.runtime.ring_links import CommLink, SocketLink, open_link


async def comm_pair(address):
    """Both ends of a comm, and the listener to stop."""
    accepted = asyncio.get_running_loop().create_future()

    async def keep(comm):
        accepted.set_result(comm)

    listener = await listen(address, keep)
    here = await connect(listener.contact_address)
    return here, await accepted, listener


async def open_comm_link(comm):
    return CommLink(comm, asyncio.get_running_loop())


WAYS = [
    pytest.param("tcp://127.0.0.1", open_link, SocketLink, id="socket"),
    pytest.param("tcp://127.0.0.1", open_comm_link, CommLink, id="tcp-messages"),
    pytest.param("inproc://", open_link, CommLink, id="inproc"),
]


@pytest.mark.parametrize(("address", "opened", "kind"), WAYS)
def test_pieces_arrive_in_order_though_the_sender_reuses_its_array(address, opened, kind):
    async def run():
        here, there, listener = await comm_pair(address)
        sender, receiver = await opened(here), await opened(there)
        assert isinstance(sender, kind)
        following = asyncio.create_task(sender.acknowledged())
        received = np.zeros((8, 50_000), np.float32)

        def send_all():
            piece = np.empty(50_000, np.float32)
            for number in range(8):
                piece[:] = number
                sender.send(piece)

        def receive_all():
            for row in received:
                receiver.receive_into(row)

        await asyncio.gather(asyncio.to_thread(send_all), asyncio.to_thread(receive_all))
        assert not following.done()
        await receiver.acknowledge()
        await asyncio.wait_for(following, 10)
        assert sender.moved_bytes == receiver.moved_bytes == received.nbytes
        sender.close(), receiver.close(), listener.stop()
        return received

    received = asyncio.run(run())
    assert (received == np.arange(8)[:, None]).all()


@pytest.mark.parametrize(("address", "opened", "kind"), WAYS)
def test_abort_wakes_a_thread_that_receives(address, opened, kind):
    async def run():
        here, there, listener = await comm_pair(address)
        sender, receiver = await opened(here), await opened(there)
        piece = np.zeros(10, np.float32)
        blocked = asyncio.create_task(asyncio.to_thread(receiver.receive_into, piece))
        await asyncio.sleep(0)  # lets the thread start; aborting first must work as well
        receiver.abort()
        with pytest.raises(OSError, match=r"abort|closed"):
            await asyncio.wait_for(blocked, 10)
        sender.close(), receiver.close(), listener.stop()

    asyncio.run(run())


@pytest.mark.parametrize(("address", "opened", "kind"), WAYS)
def test_sender_notices_that_the_receiver_left(address, opened, kind):
    async def run():
        here, there, listener = await comm_pair(address)
        sender, receiver = await opened(here), await opened(there)
        following = asyncio.create_task(sender.acknowledged())
        receiver.close()
        with pytest.raises(OSError, match=r".*"):
            await asyncio.wait_for(following, 10)
        sender.close(), listener.stop()

    asyncio.run(run())
