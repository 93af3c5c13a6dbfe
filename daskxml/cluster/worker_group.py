"""The workers of a run as the scheduler sees them, and how tasks and messages reach them.

The states of a worker, of which each has one `WorkerHandle`:

===========  ======================================  =============================================
state        known by                                how it is left
===========  ======================================  =============================================
candidate    `WorkerGroup.candidates`                it has the global model: `RunLoop.admit`
taking part  `WorkerGroup.workers`                   it is lost, or the session is over
unreachable  a broken connection (`is_unreachable`)  lost within `NOTICE_S` (`wait_for_loss`), as a
                                                     peer notices that first; else the call, the
                                                     merge or the gang is tried again
lost         `WorkerHandle.is_lost`, once the        the run driver takes `HandleLost` from its
             scheduler has removed it; who waits     events, after those before it, and tells the
             for an answer gets `LostBeforeAnswer`   session: `RunLoop.lose`
forgotten    in neither (`WorkerGroup.forget`); its  never: who comes to its address, or with its
             rows are given out again                name, has another handle
===========  ======================================  =============================================
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from distributed import Client, Future

from daskxml.cluster.timeline import Timeline
from daskxml.cluster.worker_info import Capabilities, WorkerInfo
from daskxml.core.errors import ClusterError
from daskxml.strategies.protocol import WorkerDevice
from daskxml.worker.shared_model import SharedHandle

Created = tuple[float, str, SharedHandle | None]  # speed, memory, shared model
CALLS = 3
LOOK_S = 0.5  # between looks at who is silent
NOTICE_S = 3.0  # the scheduler notices a lost worker that much later than a peer


class LostBeforeAnswer(Exception):  # noqa: N818 - an event, not an error
    """The worker was lost before it answered, or has gone silent."""


@dataclass(eq=False)
class WorkerHandle:
    """One worker process.

    Attributes
    ----------
    info
        Its name in the history, its address, and its device.
    lost, silent
        Set once the scheduler has lost it; while it has not been heard of for long.
    is_created
        It has a `TrainingWorker` of the run.
    turns
        Leases submitted to it so far; they run in this order.
    generation, overtaken
        Generation of its global model, -1 before it has one; merges committed while it copied a
        model to join with.
    uncommitted
        The merge whose result it has, but was not told to commit; 0: none.
    squared_norm
        Of its replica after its last lease, if it is known and no merge has changed it since.
    speed, memory, shared
        Rows a second in the warm-up, its memory plan in words, and where others on its machine
        find the shared model.
    keeps_change
        Whether it brings what it changed when it was late.
    train_shards, test_shards
        The shards that it holds; all of them where the rows are replicated.
    loading
        Held while it loads shards.
    """

    info: WorkerInfo
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    silent: asyncio.Event = field(default_factory=asyncio.Event)
    is_created: bool = False
    turns: int = 0
    generation: int = -1
    overtaken: int = 0
    uncommitted: int = 0
    squared_norm: float | None = None
    speed: float = 0.0
    memory: str = ""
    shared: SharedHandle | None = None
    keeps_change: bool = True
    train_shards: set[int] = field(default_factory=set)
    test_shards: set[int] = field(default_factory=set)
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def name(self) -> str:
        """Its name in the history."""
        return self.info.name

    @property
    def address(self) -> str:
        """Its Dask address."""
        return self.info.address

    @property
    def host(self) -> str:
        """Its machine."""
        return self.info.host

    @property
    def device(self) -> WorkerDevice:
        """Whether it is a replica or a pool of threads."""
        return replace(self.info.device, rows_per_s=self.speed)

    @property
    def is_lost(self) -> bool:
        """Whether the scheduler has lost it."""
        return self.lost.is_set()

    @property
    def is_away(self) -> bool:
        """Whether it is lost or silent: nobody waits for its answers."""
        return self.is_lost or self.silent.is_set()

    def created(self, answer: Created) -> None:
        """Note what its `TrainingWorker` said of itself."""
        self.speed, self.memory, self.shared = answer
        self.is_created = True


class WorkerGroup:
    """The workers of one run.

    Parameters
    ----------
    client
        Asynchronous client on the scheduler's loop.
    run
        Name of the run; part of every key.
    publish
        Called with the kind and the values of events.

    Attributes
    ----------
    send
        Sends a message to the worker at an address, in the order of its tasks and as reliably; set
        by `RunSchedulerPlugin`, whose scheduler does it.
    """

    send: Callable[[str, dict[str, Any]], None]

    def __init__(
        self, client: Client, run: str, publish: Callable[..., None] = lambda kind, **values: None
    ) -> None:
        self.client, self.run, self.publish = client, run, publish
        self.timeline = Timeline()
        self.workers: dict[str, WorkerHandle] = {}  # by name: taking part
        self.candidates: dict[str, WorkerHandle] = {}  # by address: preparing to join
        self.capabilities: dict[str, Capabilities] = {}  # by address, once probed
        self.model_host = ""  # the machine of a shared model; "": each worker has its own
        self._task_numbers = itertools.count()
        self.collective_numbers = itertools.count(1)  # one for each attempt at a merge or a gang

    def warn(self, text: str) -> None:
        """Publish a warning: one line for the user."""
        self.publish("warning", text=text)

    def at(self, address: str) -> WorkerHandle | None:
        """Return the worker at an address, not one that was lost there before."""
        found = (worker for worker in remaining(self.workers.values()) if worker.address == address)
        return self.candidates.get(address) or next(found, None)

    def worker(self, name: str) -> WorkerHandle:
        """Return a worker that takes part.

        Raises
        ------
        LostBeforeAnswer
            If it was lost.
        """
        if name not in self.workers:
            raise LostBeforeAnswer(name)
        return self.workers[name]

    def model_holders(self) -> list[WorkerHandle]:
        """Return the workers with the shared model in memory, in the order in which they joined."""
        workers = remaining(self.workers.values())
        return [worker for worker in workers if worker.is_created and self.model_host]

    def forget(self, worker: WorkerHandle) -> None:
        """Remove a lost worker, not a later one with its address or name."""
        if self.candidates.get(worker.address) is worker:
            del self.candidates[worker.address]
        if self.workers.get(worker.name) is worker:
            del self.workers[worker.name]

    def submit(
        self,
        worker: WorkerHandle,
        what: str,
        task: Callable[..., Any],
        *args: Any,
        priority: int = 0,
        is_pinned: bool = True,
    ) -> Future:
        """Submit a task to a worker, and to no other if it is pinned.

        ``what`` is its name on the dashboard.
        """
        return self.client.submit(
            task,
            *args,
            key=f"daskxml-{what}-{self.run}-{next(self._task_numbers)}",
            workers=[worker.address],
            allow_other_workers=not is_pinned,
            pure=False,
            retries=0,
            priority=priority,
        )

    async def ask(
        self, worker: WorkerHandle, what: str, task: Callable[..., Any], *args: Any
    ) -> Any:
        """Run a task on this worker and return its result.

        Raises
        ------
        LostBeforeAnswer
            If the worker is lost first.
        """
        if worker.is_away:
            raise LostBeforeAnswer(worker.name)
        if what != "end":  # else nobody needs the model
            await self.commit(worker)
        with self.timeline.doing(what, worker.name):
            return await self.result(worker, self.submit(worker, what, task, *args))

    async def result(self, worker: WorkerHandle, future: Future) -> Any:
        """Return the result of a worker's task, and release its future.

        Raises
        ------
        LostBeforeAnswer
            If the worker is lost first.
        """
        try:
            return await self._unless_lost(worker, asyncio.ensure_future(result_of(future)))
        finally:
            future.release()

    async def commit(self, worker: WorkerHandle) -> None:
        """Let a worker commit the last merge, unless it was told to with a lease."""
        if generation := worker.uncommitted:
            await self.call(worker, "daskxml_commit", generation=generation)
            if worker.uncommitted == generation:
                worker.uncommitted = 0

    async def call(self, worker: WorkerHandle, handler: str, **values: Any) -> Any:
        """Call a message handler of the worker: quicker than a task, and answered while tasks run.

        A handler may be called twice, if the connection breaks before the answer arrives. No
        handler returns None: Dask answers None for a worker that is closing and has removed its
        handlers.

        Raises
        ------
        LostBeforeAnswer
            If the worker is lost first.
        ClusterError
            If the worker cannot be reached, and is not lost either.
        """
        for _ in range(CALLS):
            if worker.is_away:
                raise LostBeforeAnswer(worker.name)
            remote = getattr(self.client.rpc(worker.address), handler)
            answer = asyncio.ensure_future(remote(run=self.run, **values))
            try:
                if (result := await self._unless_lost(worker, answer)) is not None:
                    return result
            except OSError:  # the connection broke; a peer notices a loss before the scheduler
                pass
            if await wait_for_loss([worker]):  # also after the last attempt
                raise LostBeforeAnswer(worker.name)
        raise ClusterError(f"worker {worker.name} at {worker.address} does not answer")

    async def call_all(
        self, workers: Iterable[WorkerHandle], handler: str, **values: Any
    ) -> Answers:
        """Call a handler of several workers; return results or exceptions by name."""
        workers = list(workers)
        calls = [self.call(worker, handler, **values) for worker in workers]
        return await Answers.of(workers, calls)

    @staticmethod
    async def _unless_lost(worker: WorkerHandle, answer: asyncio.Future[Any]) -> Any:
        """Wait for a worker's answer, or for its loss."""
        lost = asyncio.ensure_future(worker.lost.wait())
        silent = asyncio.ensure_future(worker.silent.wait())
        try:
            await asyncio.wait({answer, lost, silent}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise LostBeforeAnswer(worker.name)
            if answer.cancelled():  # by Dask: a CancelledError would look like a cancellation here
                raise ClusterError(f"Dask gave up what worker {worker.name} was asked")
            return await answer
        finally:
            for waiting in (answer, lost, silent):
                waiting.cancel()
            await asyncio.gather(answer, lost, silent, return_exceptions=True)

    async def ask_all(
        self, workers: Iterable[WorkerHandle], what: str, task: Callable[..., Any], *args: Any
    ) -> Answers:
        """Run a task on several workers at once; return results or exceptions by name."""
        workers = list(workers)
        return await self.ask_each(workers, what, task, [args] * len(workers))

    async def ask_each(
        self,
        workers: Sequence[WorkerHandle],
        what: str,
        task: Callable[..., Any],
        args: Sequence[Any],
    ) -> Answers:
        """Run a task on several workers at once, each with its own tuple of arguments."""
        asked = [self.ask(h, what, task, *own) for h, own in zip(workers, args, strict=True)]
        return await Answers.of(workers, asked)


class BackgroundTasks:
    """Coroutines that run in the background until they end or all are cancelled.

    Parameters
    ----------
    guard
        Awaits a coroutine, and handles its exceptions.
    """

    def __init__(self, guard: Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, None]]):
        self._guard = guard
        self._running: dict[asyncio.Task[None], None] = {}  # asyncio itself keeps weak references

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[None]:
        """Start a coroutine."""
        task = asyncio.create_task(self._guard(work))
        self._running[task] = None
        task.add_done_callback(self._running.pop)
        task.add_done_callback(lambda _: work.close())  # it may be cancelled before it begins
        return task

    async def cancel(self) -> None:
        """Cancel all, and wait until they have ended."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class Answers(dict[str, Any]):
    """Results or exceptions of several workers, by their names."""

    @classmethod
    async def of(cls, workers: Sequence[WorkerHandle], calls: Iterable[Awaitable[Any]]) -> Answers:
        """Wait for one call for each worker."""
        found = await asyncio.gather(*calls, return_exceptions=True)
        return cls(zip((worker.name for worker in workers), found, strict=True))

    @property
    def failure(self) -> BaseException | None:
        """An exception that is not the loss of a worker.

        A broken connection is one only if there is no other, as it may be the effect of another.
        """
        failures = (answer for answer in self.values() if isinstance(answer, BaseException))
        others = (each for each in failures if not isinstance(each, LostBeforeAnswer))
        return min(others, key=is_unreachable, default=None)

    def raise_failure(self) -> None:
        """Raise `failure`, if there is one."""
        if self.failure is not None:
            raise self.failure

    @property
    def any_lost(self) -> bool:
        """Whether a worker was lost before it answered."""
        return any(isinstance(answer, LostBeforeAnswer) for answer in self.values())


async def result_of(future: Future) -> Any:
    """Wait for a future's result, shielded from a cancellation of this call.

    Dask's client requests the results of several futures at once; cancelling one of those that wait
    would cancel the request for all.
    """
    result = asyncio.ensure_future(future.result())
    result.add_done_callback(lambda done: done.cancelled() or done.exception())  # mark as retrieved
    return await asyncio.shield(result)


def remaining(workers: Iterable[WorkerHandle]) -> list[WorkerHandle]:
    """Return the workers that are not lost."""
    return [worker for worker in workers if not worker.is_lost]


def heard(workers: Iterable[WorkerHandle]) -> list[WorkerHandle]:
    """Return the workers that are neither lost nor silent."""
    return [worker for worker in workers if not worker.is_away]


async def wait_for_loss(workers: Sequence[WorkerHandle]) -> bool:
    """Wait until the scheduler loses one of the workers; return whether it did in `NOTICE_S`."""
    waits = [asyncio.ensure_future(worker.lost.wait()) for worker in workers]
    done, _ = await asyncio.wait(waits, timeout=NOTICE_S, return_when=asyncio.FIRST_COMPLETED)
    for waiting in waits:
        waiting.cancel()
    return bool(done)


def is_unreachable(failure: BaseException) -> bool:
    """Return whether a merge or a gang failed because a worker could not be reached."""
    return isinstance(failure, ClusterError)
