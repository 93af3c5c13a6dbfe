"""Pending connections that arrive before they are accepted, and after, and never."""

import asyncio

import pytest

from daskxml.transport.handshake import ChannelId, CollectiveId, PendingConnection, Rendezvous

COLLECTIVE = CollectiveId(run="a", number=1)


def channel(sender=0, collective=COLLECTIVE):
    return ChannelId(collective, sender, receiver=3)


def connection(sender=0, collective=COLLECTIVE):
    return PendingConnection(comm=object(), channel=channel(sender, collective))


def test_accept_waits_for_the_connection_of_its_own_channel():
    async def run():
        rendezvous = Rendezvous()
        accepting = asyncio.create_task(rendezvous.accept(channel(2)))
        await asyncio.sleep(0)
        rendezvous.put(connection(1))
        rendezvous.put(connection(2, CollectiveId(run="b", number=1)))
        wanted = connection(2)
        assert rendezvous.put(wanted)
        assert await accepting is wanted
        assert wanted.is_accepted
        assert len(rendezvous._futures) == 2

    asyncio.run(run())


def test_a_second_connection_of_a_channel_is_refused():
    async def run():
        rendezvous = Rendezvous()
        assert rendezvous.put(connection())
        assert not rendezvous.put(connection())

    asyncio.run(run())


def test_withdrawing_and_giving_up_leave_nothing_behind():
    async def run():
        rendezvous, waiting = Rendezvous(), connection()
        rendezvous.put(waiting)
        rendezvous.withdraw(connection())  # another's withdrawal does nothing
        assert len(rendezvous._futures) == 1
        rendezvous.withdraw(waiting)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(rendezvous.accept(channel(0)), 0.001)
        assert len(rendezvous._futures) == 0

    asyncio.run(run())


def test_the_timeout_is_for_connections_that_are_not_accepted():
    async def run():
        await asyncio.wait_for(connection().wait_released(0.001), 10)
        accepted = connection()
        accepted.is_accepted = True
        held = asyncio.create_task(accepted.wait_released(0.001))
        done, _ = await asyncio.wait({held}, timeout=0.05)
        assert not done
        accepted.released.set()
        await held

    asyncio.run(run())


def test_a_collective_is_identified_by_its_number_not_by_its_name():
    named = CollectiveId(run="a", number=1, what="merge 3")
    assert named == COLLECTIVE
    assert str(named) == "merge 3 (round 1) of run a"
