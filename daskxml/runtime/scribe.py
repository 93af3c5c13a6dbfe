"""Who writes down a run that nobody follows: the scheduler, by the hand of one worker.

The worker locks the run's directory, so that it has one owner at any time. If it is lost, so is
its lock, and the next worker takes the directory. What it had begun to write is written again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from daskxml.config import RunConfig
from daskxml.errors import ClusterError, DaskxmlError, ModelError
from daskxml.runtime import keeping
from daskxml.runtime.crew import Crew, WorkerGone
from daskxml.runtime.hand import Hand
from daskxml.runtime.journal import Journal
from daskxml.runtime.machines import Arrival

PATIENCE_S = 60.0  # for a worker to come
LOCK_S = 10.0  # for the lock of whoever had the directory before
RETRY_S = 0.25
NEWS_S = 3600.0  # the journal is read on this loop: waiting costs nothing


class Scribe:
    """Writes a run's directory as its journal tells.

    Parameters
    ----------
    crew
        Of the run, for its client.
    journal
        What is written down.
    config, run_dir, checkpoint
        The run, where it is written, and what it goes on from.
    arrivals
        Returns the workers that are there now.
    failed
        Called once with what went wrong; nothing is written afterwards.
    """

    def __init__(
        self,
        crew: Crew,
        journal: Journal,
        config: RunConfig,
        run_dir: str,
        checkpoint: str | None,
        arrivals: Callable[[], Sequence[Arrival]],
        failed: Callable[[Exception], None],
    ) -> None:
        self._crew, self._journal, self._config = crew, journal, config
        self._run_dir, self._checkpoint = run_dir, checkpoint
        self._arrivals, self._failed = arrivals, failed
        self._hand: Hand | None = None
        self._ends: list[int] = []  # the byte behind each row
        self._seen = 0  # events
        self._task: asyncio.Task[None] | None = None

    def worker_removed(self, address: str) -> None:
        """Hear that a worker is gone."""
        if self._hand is not None and self._hand.address == address:
            self._hand.lost.set()

    async def open(self) -> None:
        """Take the directory, where the client lets go of it.

        Raises
        ------
        ModelError
            If somebody else has it, or it cannot be written to.
        ClusterError
            If no worker is there to do it.
        """
        await self._keeper()

    def write_on(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Write down, from now on, what the journal tells.

        ``history`` is that of a run that goes on, whose directory says from now on what it does.
        """
        self._task = asyncio.create_task(self._write(list(history)))

    async def close(self, has_failed: bool) -> None:
        """Write what is left to write, and let go of the directory."""
        if self._task is not None:
            while not self._task.done() and self._seen < len(self._journal.events):
                await asyncio.wait({self._task}, timeout=RETRY_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._hand is not None and not self._hand.is_lost:
            leave = self._crew.ask(
                self._hand, "write", keeping.leave_directory, self._crew.run, has_failed
            )
            with contextlib.suppress(WorkerGone, DaskxmlError):  # a lock ends with its process
                await leave
        self._hand = None

    def cancel(self) -> None:
        """Write nothing more: the scheduler ends."""
        if self._task is not None:
            self._task.cancel()

    async def _write(self, history: list[Mapping[str, Any]]) -> None:
        try:
            if history:
                self._ends = await self._ask(keeping.begin_directory, self._config, history)
            while True:
                news = await self._journal.read(self._seen, None, NEWS_S)
                for event in news["events"]:
                    await self._write_down(event)
                    self._seen += 1
        except Exception as error:
            self._failed(error)

    async def _write_down(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "rewound":
            del self._ends[event["megabatch"] :]
            await self._write_rows([])
        elif event["kind"] == "megabatch":
            await self._write_rows([event["row"]])
        elif event["kind"] == "equipment":
            await self._ask(keeping.note_workers, event["workers"])

    async def _write_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        offset = self._ends[-1] if self._ends else 0
        self._ends += await self._ask(keeping.write_rows, offset, rows)

    async def _ask(self, task: Callable[..., Any], *args: Any) -> Any:
        """Have the keeper do something; if it is lost, the next one."""
        while True:
            hand = await self._keeper()
            with contextlib.suppress(WorkerGone):
                return await self._crew.ask(hand, "write", task, self._crew.run, *args)

    async def _keeper(self) -> Hand:
        """Return the worker that has the directory, after it has taken it."""
        deadline_s = time.monotonic() + LOCK_S
        while self._hand is None or self._hand.is_lost:
            try:
                self._hand = await self._take()
            except WorkerGone:
                continue
            except ModelError:  # the client, or the worker before, still has it
                if time.monotonic() > deadline_s:
                    raise
                await asyncio.sleep(RETRY_S)
        return self._hand

    async def _take(self) -> Hand:
        hand = self._hand = Hand(await self._arrival())
        args = (self._crew.run, self._run_dir, self._checkpoint)
        try:
            await self._crew.ask(hand, "write", keeping.keep_directory, *args)
        except BaseException:
            self._hand = None
            raise
        return hand

    async def _arrival(self) -> Arrival:
        deadline_s = time.monotonic() + PATIENCE_S
        while not (arrivals := self._arrivals()):
            if time.monotonic() > deadline_s:
                raise ClusterError("no worker is there to write the run's history")
            await asyncio.sleep(RETRY_S)
        return arrivals[0]
