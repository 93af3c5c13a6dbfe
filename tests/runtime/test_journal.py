"""What clients read of a run: every event once, at their own pace."""

from __future__ import annotations

import asyncio

import pytest

from daskxml.errors import ClusterError, InputError, TrainingError
from daskxml.runtime.journal import Journal, revive


def test_a_late_reader_gets_the_whole_story() -> None:
    async def work() -> None:
        journal = Journal()
        journal.event("started", workers=["0"])
        journal.event("megabatch", row={"rows": 5})
        journal.state("training", rows=7)
        news = await journal.read(0, -1, 0.0)
        assert [event["kind"] for event in news["events"]] == ["started", "megabatch"]
        assert news["status"] == {"kind": "status", "state": "training", "rows": 7}
        later = await journal.read(2, news["version"], 0.01)
        assert later["events"] == []

    asyncio.run(work())


def test_a_reader_that_waits_is_woken() -> None:
    async def work() -> None:
        journal = Journal()
        reading = asyncio.create_task(journal.read(0, 0, 60.0))
        await asyncio.sleep(0)
        journal.event("started")
        news = await asyncio.wait_for(reading, 5.0)
        assert [event["kind"] for event in news["events"]] == ["started"]

    asyncio.run(work())


@pytest.mark.parametrize(
    "error",
    [InputError("bad row", "a.txt", 7), ClusterError("nobody there"), TrainingError("too fast")],
    ids=lambda error: type(error).__name__,
)
def test_errors_come_back_as_they_were(error: Exception) -> None:
    async def work() -> Journal:
        journal = Journal()
        journal.end_badly(error)
        return journal

    journal = asyncio.run(work())
    assert journal.is_over
    assert journal.has_failed
    back = revive(journal.events[-1]["error"])
    assert type(back) is type(error)
    assert str(back) == str(error)


def test_other_errors_name_their_kind() -> None:
    async def work() -> Journal:
        journal = Journal()
        journal.end_badly(KeyError("x"), "the traceback")
        return journal

    event = asyncio.run(work()).events[-1]
    assert event["details"] == "the traceback"
    assert "KeyError" in str(revive(event["error"]))
