import asyncio

import pytest

from daskxml.runtime.ring_mailbox import Caller, Mailbox, RingKey

KEY = RingKey(run="a", generation=1, attempt=0)


def caller(rank=0, key=KEY):
    return Caller(comm=object(), key=key, rank=rank)


def test_taker_who_comes_first_waits_for_its_own_caller():
    async def run():
        mailbox = Mailbox()
        taking = asyncio.create_task(mailbox.take(KEY, 2))
        await asyncio.sleep(0)
        mailbox.put(caller(rank=1))
        mailbox.put(caller(rank=2, key=RingKey(run="b", generation=1, attempt=0)))
        wanted = caller(rank=2)
        assert mailbox.put(wanted)
        assert await taking is wanted
        assert wanted.taken
        assert len(mailbox) == 2

    asyncio.run(run())


def test_second_caller_for_the_same_place_is_refused():
    async def run():
        mailbox = Mailbox()
        assert mailbox.put(caller())
        assert not mailbox.put(caller())

    asyncio.run(run())


def test_withdrawing_and_giving_up_leave_nothing_behind():
    async def run():
        mailbox, waiting = Mailbox(), caller()
        mailbox.put(waiting)
        mailbox.withdraw(caller())  # another's withdrawal does nothing
        assert len(mailbox) == 1
        mailbox.withdraw(waiting)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(mailbox.take(KEY, 0), 0.001)
        assert len(mailbox) == 0

    asyncio.run(run())


def test_patience_ends_for_who_is_not_taken():
    async def run():
        await asyncio.wait_for(caller().until_released(0.001), 10)
        taken = caller()
        taken.taken = True
        held = asyncio.create_task(taken.until_released(0.001))
        done, _ = await asyncio.wait({held}, timeout=0.05)
        assert not done
        taken.released.set()
        await held

    asyncio.run(run())


def test_rings_of_a_run_are_ordered_and_named():
    later = RingKey(run="a", generation=1, attempt=1)
    assert KEY.turn < later.turn < RingKey(run="a", generation=2, attempt=0).turn
    assert str(later) == "merge 1 (attempt 1) of run a"
