"""Callers that come before they are waited for, and after, and never."""

import asyncio

import pytest

from daskxml.runtime.mailbox import Caller, Line, Mailbox, RoundKey

KEY = RoundKey(run="a", number=1)


def line(caller=0, key=KEY):
    return Line(key, caller, callee=3)


def caller(number=0, key=KEY):
    return Caller(comm=object(), line=line(number, key))


def test_taker_who_comes_first_waits_for_its_own_caller():
    async def run():
        mailbox = Mailbox()
        taking = asyncio.create_task(mailbox.take(line(2)))
        await asyncio.sleep(0)
        mailbox.put(caller(1))
        mailbox.put(caller(2, RoundKey(run="b", number=1)))
        wanted = caller(2)
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
            await asyncio.wait_for(mailbox.take(line(0)), 0.001)
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


def test_a_round_is_known_by_its_number_whatever_it_is_called():
    named = RoundKey(run="a", number=1, what="merge 3")
    assert named == KEY
    assert str(named) == "merge 3 (round 1) of run a"
