"""Rows that runs share: read once, or by the next one where the first fails."""

import asyncio
from typing import Any

import pytest

from daskxml.cluster.data_loading import SharedRows


class Rows:
    def __init__(self, parts: int = 1) -> None:
        self.parts, self.is_intact, self.released = parts, True, 0

    def release(self) -> None:
        self.released += 1


class Reader:
    """Reads when it is told to; counts how often."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes, self.reads, self.go_on = list(outcomes), 0, asyncio.Semaphore(0)

    async def __call__(self) -> Rows:
        self.reads += 1
        outcome = self.outcomes.pop(0)
        await self.go_on.acquire()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


async def start(shared: SharedRows, run: str, read: Reader, parts: int = 1) -> asyncio.Task[Any]:
    task = asyncio.create_task(shared.acquire("x", run, read, lambda rows: rows.parts >= parts))
    for _ in range(5):
        await asyncio.sleep(0)
    return task


def test_runs_side_by_side_read_once_and_the_last_one_releases() -> None:
    async def work() -> None:
        shared, rows = SharedRows(), Rows()
        read = Reader(rows)
        tasks = [await start(shared, run, read) for run in ("a", "b", "c")]
        read.go_on.release()
        assert [await task for task in tasks] == [(rows, False), (rows, True), (rows, True)]
        for run in ("a", "b", "nobody"):
            shared.release(run)
        assert (read.reads, rows.released) == (1, 0)
        shared.release("c")
        shared.release("c")
        assert rows.released == 1

    asyncio.run(work())


def test_where_the_first_fails_or_is_cancelled_the_next_one_reads() -> None:
    async def work() -> None:
        shared, rows = SharedRows(), Rows()
        read = Reader(ValueError("bad row"), None, rows)
        first, second, third = [await start(shared, run, read) for run in "abc"]
        read.go_on.release()
        with pytest.raises(ValueError, match="bad row"):
            await first
        for _ in range(5):
            await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        read.go_on.release()
        assert await third == (rows, False)
        assert read.reads == 3
        shared.release("c")
        assert (rows.released, shared._entries) == (1, {})

    asyncio.run(work())


def test_rows_that_do_not_fit_or_were_cancelled_are_read_again_beside_the_others() -> None:
    async def work() -> None:
        shared = SharedRows()
        few, many, again = Rows(1), Rows(4), Rows(4)
        read = Reader(few, many, again)
        for _ in range(3):
            read.go_on.release()
        assert await (await start(shared, "a", read)) == (few, False)
        assert await (await start(shared, "b", read, parts=4)) == (many, False)
        assert await (await start(shared, "c", read)) == (few, True)
        few.is_intact = False
        assert await (await start(shared, "d", read)) == (again, False)
        for run in "abcd":
            shared.release(run)
        assert [rows.released for rows in (few, many, again)] == [1, 1, 1]

    asyncio.run(work())
