"""A worker's communicator: through it the worker takes part in collectives (merges and gangs).

It accepts the connections of other workers' endpoints, and refuses those for a collective that is
over, aborted, or older than the run's latest: collectives of a run are numbered. A failure at one
endpoint closes its channels, so those at their other ends fail as well, and raise ClusterError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from distributed.comm import Comm

from daskxml.collectives.messages import Program, ProgramResult, Result
from daskxml.collectives.ring import PIECE_FLOATS
from daskxml.core.errors import ClusterError
from daskxml.transport.channels.shm_arrays import MappingCache
from daskxml.transport.endpoint import NO_CHANNELS, Channels, Endpoint
from daskxml.transport.handshake import (
    HANDLER,
    REFUSED,
    ChannelId,
    Collective,
    CollectiveId,
    PendingConnection,
    Rendezvous,
    Timeouts,
)
from daskxml.transport.ucx import takes_device_arrays

__all__ = ["CollectiveId", "Communicator", "ProcessGroup", "Timeouts"]
PROGRAMS = 1 << 10  # at a time, at most
UCX_PIECE_FLOATS = 1 << 24  # 64 MiB: benchmarks/results/gpu_cluster.json


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The workers of a collective by rank.

    Attributes
    ----------
    id
        Its numbers only ever grow within a run.
    addresses, hosts
        Those of each worker, and their machines.
    follows
        None: channels are opened for this collective and closed with it. A number: they are kept,
        and those of the collective of this number are reused, which had the same ranks and
        succeeded on all workers; 0: there was none. All that is sent in such a collective must be
        received in it.
    """

    id: CollectiveId
    addresses: tuple[str, ...]
    hosts: tuple[str, ...]
    follows: int | None = None

    @property
    def piece_floats(self) -> int:
        """The most elements of a merge's message, the same on all ranks.

        Over UCX, Dask sends each in several messages of its own, and both ends wait for their GPUs:
        few large ones are sent.
        """
        is_ucx = any(map(takes_device_arrays, self.addresses))
        return UCX_PIECE_FLOATS if is_ucx else PIECE_FLOATS


@dataclass(frozen=True, slots=True)
class _CachedChannels:
    """The channels of a collective that succeeded, by rank."""

    number: int
    channels: Mapping[int, Channels]


class Communicator:
    """A worker's part in all collectives; its methods run on the worker's event loop.

    Parameters
    ----------
    worker
        The ``distributed.Worker`` on which the communicator registers its handler.
    timeouts
        How long to wait for others.
    shares_memory
        Whether processes of this machine read each other's arrays in place, where they can; else
        they are connected by sockets, like machines.

    Examples
    --------
    Created where the worker's plugin is set up, and closed where it is torn down::

        self.communicator = Communicator(worker)
        ...
        await self.communicator.close()
    """

    def __init__(
        self, worker: Any, timeouts: Timeouts | None = None, *, shares_memory: bool = True
    ) -> None:
        self.timeouts, self.shares_memory = timeouts or Timeouts(), shares_memory
        self._handlers: dict[str, Any] = worker.handlers
        self._connection_args: dict[str, Any] = worker.connection_args
        self._rendezvous, self._mappings = Rendezvous(), MappingCache()
        # A thread for each program under way; starting one would hold up the event loop.
        self._threads = ThreadPoolExecutor(PROGRAMS, "daskxml-program")
        # Collectives under way: their endpoints here, and what is set at their end.
        self._running: dict[CollectiveId, tuple[list[Endpoint], asyncio.Event]] = {}
        self._cache: dict[str, _CachedChannels] = {}  # by run
        self._lowest: dict[str, int] = {}  # by run: the lowest number that is not refused
        self._pending: dict[PendingConnection, None] = {}
        self._is_closed = False
        self._handlers[HANDLER] = self.accept

    async def run_programs(
        self,
        group: ProcessGroup,
        programs: Mapping[int, Program[Result]],
        timeouts: Timeouts | None = None,
    ) -> list[ProgramResult[Result]]:
        """Take part in a collective with one or more ranks; each program has its own thread.

        Parameters
        ----------
        group
            The same on all workers.
        programs
            Those of this worker, by rank.
        timeouts
            By default the communicator's.

        Returns
        -------
        list of ProgramResult
            In the order of ``programs``. Every program has ended then, also after a failure.

        Raises
        ------
        ClusterError
            When another endpoint dies, cannot be reached, or is silent for too long; when the
            collective is aborted; when it is stale. Else what a program raised.
        """
        collective, follows = group.id, group.follows
        run, number = collective.run, collective.number
        if follows is not None:
            await self._drop_cached(run, keep=follows)
        endpoints = self._begin(group, programs, timeouts or self.timeouts)
        parts = zip(endpoints, programs.values(), strict=True)
        jobs = [asyncio.ensure_future(endpoint.run(program)) for endpoint, program in parts]
        try:
            results = await self._wait_for_all(collective, jobs)
            if follows is not None:
                kept = {endpoint.rank: endpoint.kept for endpoint in endpoints}
                self._cache[run] = _CachedChannels(number, kept)
            return results
        except BaseException:
            for endpoint in endpoints:
                await endpoint.kept.close()
            raise
        finally:
            self._running.pop(collective)[1].set()
            self._refuse_before(run, number + 1)
            self._mappings.purge()

    def _begin(
        self, group: ProcessGroup, ranks: Iterable[int], timeouts: Timeouts
    ) -> list[Endpoint]:
        """Create a collective's endpoints, with the channels of the one that it follows."""
        collective, follows = group.id, group.follows
        if self._is_stale(collective) or collective in self._running:
            raise ClusterError(f"{collective} is over here: start a new one")
        if follows and collective.run not in self._cache:
            raise ClusterError(
                f"{collective} finds no links of round {follows} here: start a new one"
            )
        self._refuse_before(collective.run, collective.number)
        cached = self._cache.pop(collective.run).channels if follows else {}
        shared = Collective(
            id=collective,
            addresses=group.addresses,
            rendezvous=self._rendezvous,
            mappings=self._mappings,
            threads=self._threads,
            connection_args=self._connection_args,
            timeouts=timeouts,
            shares_memory=self.shares_memory,
            keeps_channels=follows is not None,
        )
        endpoints = [Endpoint(shared, rank, cached.get(rank, NO_CHANNELS)) for rank in ranks]
        self._running[collective] = endpoints, asyncio.Event()
        return endpoints

    async def _wait_for_all(
        self, collective: CollectiveId, jobs: Sequence[asyncio.Future[ProgramResult[Result]]]
    ) -> list[ProgramResult[Result]]:
        """Wait for all; the first failure ends the others, and the most specific one is raised."""
        try:
            await asyncio.wait(jobs, return_when=asyncio.FIRST_EXCEPTION)
            for job, endpoint in zip(jobs, self._running[collective][0], strict=True):
                if not job.done():
                    endpoint.abort(ConnectionAbortedError("this worker has failed elsewhere"))
        except asyncio.CancelledError:
            for job in jobs:
                job.cancel()
            raise
        finally:
            results = await asyncio.gather(*jobs, return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        for failure in sorted(failures, key=lambda failure: isinstance(failure, OSError)):
            if isinstance(failure, OSError):
                raise ClusterError(f"{collective} failed, {failure}: start a new one") from failure
            raise failure
        return [job.result() for job in jobs]

    async def abort(self, run: str, number: int) -> None:
        """Fail this collective of a run, and earlier ones; returns when their programs have ended.

        Later connections for them are refused.
        """
        self._refuse_before(run, number + 1)
        await self._wait_ended(lambda key: key.run == run and key.number <= number)

    async def forget(self, run: str) -> None:
        """Abort a run's collectives and forget it, so that its numbers may be used again."""
        self._dismiss(lambda key: key.run == run)
        await self._wait_ended(lambda key: key.run == run)
        await self._drop_cached(run)
        self._lowest.pop(run, None)
        self._mappings.clear()  # other runs map again what they read

    async def close(self) -> None:
        """Abort every collective, close every pending connection, and accept no more."""
        self._is_closed = True
        self._handlers.pop(HANDLER, None)
        self._dismiss(lambda key: True)
        await self._wait_ended(lambda key: True)
        for run in tuple(self._cache):
            await self._drop_cached(run)
        self._mappings.clear()
        self._threads.shutdown(wait=False)

    async def accept(
        self, comm: Comm, run: str, number: int, sender: int, receiver: int,
        memory: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Handle an endpoint's connection: keep its comm for the collective, or refuse it.

        The server reads from the comm again when this returns: so not before the collective is
        over, or the comm has not been accepted in time.
        """
        collective = CollectiveId(run=run, number=number)
        channel = ChannelId(collective, sender, receiver)
        pending = PendingConnection(comm=comm, channel=channel, memory=memory)
        if self._is_stale(collective) or not self._rendezvous.put(pending):
            await comm.write({"status": REFUSED})
            await comm.close()
            return
        self._pending[pending] = None
        try:
            await pending.wait_released(self.timeouts.idle_s)
        finally:
            self._pending.pop(pending, None)
            self._rendezvous.withdraw(pending)
            comm.abort()

    async def _drop_cached(self, run: str, keep: int = 0) -> None:
        """Close a run's cached channels, unless they are those of the collective ``keep``."""
        cached = self._cache.get(run)
        if cached is not None and cached.number != keep:
            del self._cache[run]
            for channels in cached.channels.values():
                await channels.close()

    async def _wait_ended(self, matches: Callable[[CollectiveId], bool]) -> None:
        for ended in [ended for key, (_, ended) in self._running.items() if matches(key)]:
            await ended.wait()

    def _is_stale(self, collective: CollectiveId) -> bool:
        lowest = self._lowest.get(collective.run, collective.number)
        return self._is_closed or collective.number < lowest

    def _refuse_before(self, run: str, number: int) -> None:
        lowest = self._lowest[run] = max(number, self._lowest.get(run, number))
        self._dismiss(lambda key: key.run == run and key.number < lowest)

    def _dismiss(self, matches: Callable[[CollectiveId], bool]) -> None:
        """Abort collectives, and release the connections that wait for them."""
        for key, (endpoints, _) in self._running.items():
            if matches(key):
                for endpoint in endpoints:
                    endpoint.abort(ConnectionAbortedError("it was aborted"))
        for pending in self._pending:
            if matches(pending.channel.collective) and not pending.is_accepted:
                pending.released.set()  # else by the channel that it has become
