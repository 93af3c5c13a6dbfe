"""Commands for all workers of a run together: measuring norms, merges, gangs.

Merges are atomic: every worker combines into a scratch model, and commits it only when all have the
result: with what it does next (`WorkerHandle.uncommitted`). The loss of a worker before that undoes
the merge, a later one does not. Gangs are atomic as well: one loss ends the gang on every worker.
Where merges need a quorum only, workers are asked for a sign of life while one takes long.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from distributed import Future

from daskxml.cluster import worker_tasks as tasks
from daskxml.cluster.worker_group import (
    Answers,
    WorkerGroup,
    WorkerHandle,
    heard,
    is_unreachable,
    wait_for_loss,
)
from daskxml.core.work_stats import merge_means
from daskxml.session import commands
from daskxml.session.ledger import Span
from daskxml.session.run_loop import ANSWER_S, PROBE_S
from daskxml.strategies.protocol import Measure, Measured
from daskxml.transport.communicator import CollectiveId, ProcessGroup

ATTEMPTS = 4

Batches = Sequence[Sequence[Span]]
Fetch = Callable[[WorkerHandle, Batches], dict[Span, Future]]
Outcome = Answers | BaseException | None  # see `Collectives._attempt`


class Collectives:
    """Executes collective commands, one after the other.

    Each returns its result; None if a worker was lost, which undoes it.

    Parameters
    ----------
    group
        The workers.
    parameters
        Number of model parameters.
    fetch
        Fetches rows that are not resident on a worker; returns their futures.
    leave_behind
        Called with a worker that gives no sign of life; None where all are waited for.
    """

    def __init__(
        self, group: WorkerGroup, parameters: int, fetch: Fetch,
        leave_behind: Callable[[WorkerHandle], None] | None = None,
    ) -> None:  # fmt: skip
        self.group, self.parameters, self._fetch = group, parameters, fetch
        self._leave_behind = leave_behind
        self._failed = 0  # gangs in a row that failed without a loss
        # The workers of the last merge, whose channels are open, and the merge's number.
        self._connected: tuple[list[WorkerHandle], int] = [], 0

    async def measure(self, command: Measure) -> commands.Result | None:
        """Return the squared norms of replicas."""
        workers = [self.group.worker(name) for name in command.workers]
        known = {
            worker.name: norm for worker in workers if (norm := worker.squared_norm) is not None
        }
        others = [worker for worker in workers if worker.name not in known]
        await Answers.of(others, map(self.group.commit, others))
        asked = [asyncio.ensure_future(self.group.call(h, "daskxml_norm")) for h in others]
        await self._end(asked, others)
        answers = await Answers.of(others, asked)
        if answers.any_lost:
            return None
        answers.raise_failure()
        return Measured(known | answers, self.parameters)

    # ---------------------------------------------------------------- merging

    async def merge(self, command: commands.MergeReplicas) -> commands.Result | None:
        """Merge replicas."""
        workers = [self.group.worker(name) for name in command.weights]
        answers = await self._combine(command, workers)
        if answers is None:
            return None
        for worker in workers:  # not undone from here on
            worker.generation = worker.uncommitted = command.generation
            worker.squared_norm = None
        sent_bytes = sum(part.sent_bytes for part in answers.values())
        return commands.MergeResult(
            sent_bytes, merge_means(part.result for part in answers.values())
        )

    async def _combine(
        self, command: commands.MergeReplicas, workers: list[WorkerHandle]
    ) -> dict[str, Any] | None:
        """Return the results of all workers; None if one was lost before all had the model."""
        failure: BaseException | None = None
        for _ in range(ATTEMPTS):
            connected, number = self._connected
            follows = number if connected == workers else 0
            peers = self._peers(f"merge {command.generation}", workers, follows)
            self._connected = [], 0
            merge = pickle.dumps((peers, command))  # as are answers: quicker than by Dask
            parts = [self._merge_on(worker, merge, rank) for rank, worker in enumerate(workers)]
            answers = await self._attempt(peers, workers, parts)
            if isinstance(answers, dict):
                self._connected = workers, peers.id.number
            if not isinstance(answers, BaseException):
                return answers
            failure = answers
            self.group.warn(f"merge {command.generation} is tried again: {failure}")
        assert failure is not None
        raise failure

    async def _merge_on(self, worker: WorkerHandle, merge: bytes, rank: int) -> Any:
        """Let a worker take part."""
        with self.group.timeline.doing("merge", worker.name):
            answer = await self.group.call(worker, "daskxml_merge", merge=merge, rank=rank)
            return pickle.loads(answer)

    # ------------------------------------------------------------------ gangs

    async def work_together(self, command: commands.RunWork) -> commands.Result | None:
        """Let workers step together."""
        workers = [self.group.worker(name) for name in command.workers]
        peers = self._peers(f"gang {command.number}", workers)
        parts = []
        for rank, worker in enumerate(workers):
            fetched = self._fetch(worker, command.batches[rank])
            args = (peers, command, rank, fetched)
            parts.append(self.group.ask(worker, "gang", tasks.run_gang, *args))
        answers = await self._attempt(peers, workers, parts)
        if answers is None:
            return None
        if isinstance(answers, dict):
            self._failed = 0
            return commands.WorkResult(command.number, tuple(answers.values()))
        self._failed += 1
        if self._failed >= ATTEMPTS:
            raise answers
        return commands.WorkFailed(command.number)

    # -------------------------------------------------------------------- all

    def _peers(
        self, what: str, workers: Sequence[WorkerHandle], follows: int | None = None
    ) -> ProcessGroup:
        number = next(self.group.collective_numbers)
        return ProcessGroup(
            id=CollectiveId(run=self.group.run, number=number, what=what),
            addresses=tuple(worker.address for worker in workers),
            hosts=tuple(worker.host for worker in workers),
            follows=follows,
        )

    async def _attempt(
        self, peers: ProcessGroup, workers: Sequence[WorkerHandle],
        parts: Iterable[Coroutine[Any, Any, Any]],
    ) -> Outcome:  # fmt: skip
        """Let all workers take part; the first failure aborts the collective on all of them.

        Returns
        -------
        dict, BaseException or None
            Their results by name; how their connections broke, where none of them was lost, so that
            another attempt may succeed; None if one was lost.

        Raises
        ------
        BaseException
            Any other failure.
        """
        running = [asyncio.ensure_future(part) for part in parts]
        try:
            if not await self._end(running, workers):  # tasks outlive their futures
                handler, number = "daskxml_abort", peers.id.number
                await self.group.call_all(heard(workers), handler, number=number)
        except asyncio.CancelledError:
            for part in running:
                part.cancel()
            raise
        finally:
            answers = await Answers.of(workers, running)
        failure = answers.failure
        if failure is not None and not is_unreachable(failure):
            raise failure
        if answers.any_lost or (failure is not None and await wait_for_loss(workers)):
            return None
        return answers if failure is None else failure

    async def _end(
        self, running: Sequence[asyncio.Future[Any]], workers: Sequence[WorkerHandle]
    ) -> bool:
        """Wait for all parts, or for the first that fails; return whether all have succeeded."""
        timeout_s = None if self._leave_behind is None else PROBE_S
        while pending := [part for part in running if not part.done()]:
            if any(part.exception() for part in running if part.done()):
                return False
            done, _ = await asyncio.wait(
                pending, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION
            )
            if not done:
                await self._probe(running, workers)
        return not any(part.exception() for part in running)

    async def _probe(
        self, running: Sequence[asyncio.Future[Any]], workers: Sequence[WorkerHandle]
    ) -> None:
        """Leave those behind that give no sign of life while others do, and wait for them."""
        asked = {
            asyncio.ensure_future(self.group.call(worker, "daskxml_here")): worker
            for worker in heard(workers)
        }
        answered, silent = await asyncio.wait(asked, timeout=ANSWER_S)
        heard_of = [call for call in answered if call.exception() is None]
        for call in silent:
            call.cancel()
            if heard_of and self._leave_behind and not all(part.done() for part in running):
                self._leave_behind(asked[call])
