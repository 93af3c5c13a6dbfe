"""Clients read every event of a run once, at their own pace."""

import asyncio

import pytest

from daskxml.cluster.event_log import EventLog, revive
from daskxml.core.errors import ClusterError, InputError, TrainingError


def test_a_late_reader_gets_the_whole_story() -> None:
    async def work() -> None:
        event_log = EventLog()
        event_log.event("started", workers=["0"])
        event_log.event("megabatch", row={"rows": 5})
        event_log.state("training", rows=7)
        answer = await event_log.read(0, -1, 0.0)
        assert [event["kind"] for event in answer["events"]] == ["started", "megabatch"]
        assert answer["status"] == {"kind": "status", "state": "training", "rows": 7}
        later = await event_log.read(2, answer["version"], 0.01)
        assert later["events"] == []

    asyncio.run(work())


def test_a_reader_that_waits_is_woken() -> None:
    async def work() -> None:
        event_log = EventLog()
        reading = asyncio.create_task(event_log.read(0, 0, 60.0))
        await asyncio.sleep(0)
        event_log.event("started")
        answer = await asyncio.wait_for(reading, 5.0)
        assert [event["kind"] for event in answer["events"]] == ["started"]
        reading = asyncio.create_task(event_log.read(1, answer["version"], 60.0))
        await asyncio.sleep(0)
        event_log.state("training")
        answer = await asyncio.wait_for(reading, 5.0)
        assert answer["status"]["state"] == "training"

    asyncio.run(work())


@pytest.mark.parametrize(
    "error",
    [InputError("bad row", "a.txt", 7), ClusterError("nobody there"), TrainingError("too fast")],
    ids=lambda error: type(error).__name__,
)
def test_errors_come_back_as_they_were(error: Exception) -> None:
    async def work() -> EventLog:
        event_log = EventLog()
        event_log.end_badly(error)
        event_log.event("warning", text="no checkpoint: the disk is full")
        return event_log

    event_log = asyncio.run(work())
    assert event_log.is_over
    assert event_log.has_failed
    assert event_log.summary()["state"] == f"failed: {error}"
    back = revive(event_log.events[0]["error"])
    assert type(back) is type(error)
    assert str(back) == str(error)


def test_other_errors_name_their_kind() -> None:
    async def work() -> EventLog:
        event_log = EventLog()
        event_log.end_badly(KeyError("x"), "the traceback")
        return event_log

    event = asyncio.run(work()).events[-1]
    assert event["details"] == "the traceback"
    assert "KeyError" in str(revive(event["error"]))
