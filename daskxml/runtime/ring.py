"""The ring all-reduce between Dask workers: each worker's port, through which it takes part.

A worker dials the next rank, whose server hands the comm to that worker's port; the port keeps it
in the mailbox until its own side of the ring has started, and then answers "ready" (nothing is
sent before). Rings are told apart by (run, generation, attempt), and one that is over, aborted,
or older than the latest refuses its callers. Whatever goes wrong between two neighbours closes
both their links, so the failure travels round the ring and every survivor raises ClusterError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from distributed.comm import Comm

from daskxml.combine import MergeKernels
from daskxml.errors import ClusterError
from daskxml.runtime.ring_mailbox import Caller, Mailbox, RingKey
from daskxml.runtime.ring_reduce import FLOAT_BYTES, RingTerm
from daskxml.runtime.ring_round import HANDLER, RingLine, RingOptions, RingRound, RingStats
from daskxml.types import Array

__all__ = ["RingOptions", "RingPort", "RingStats"]


class RingPort:
    """A worker's end of every ring that it takes part in; all methods run on its event loop.

    Parameters
    ----------
    worker
        The ``distributed.Worker`` on which the port registers its handler.
    options
        Sizes and time limits.

    Examples
    --------
    Made where the worker's plugin is set up, and closed where it is torn down::

        self.port = RingPort(worker)
        ...
        await self.port.close()
    """

    def __init__(self, worker: Any, options: RingOptions | None = None) -> None:
        self.options = options or RingOptions()
        self._handlers: dict[str, Any] = worker.handlers
        self._connection_args: dict[str, Any] = worker.connection_args
        self._mailbox = Mailbox()
        self._jobs: dict[RingKey, asyncio.Task[RingStats]] = {}
        self._floors: dict[str, tuple[int, int]] = {}
        self._callers: set[Caller] = set()
        self._closed = False
        self._handlers[HANDLER] = self.answer

    @property
    def is_idle(self) -> bool:
        """Whether no ring runs here and no neighbour waits for one."""
        return not self._jobs and not self._callers and not len(self._mailbox)

    async def all_reduce(
        self,
        run: str,
        generation: int,
        attempt: int,
        rank: int,
        addresses: Sequence[str],
        weights: Sequence[float],
        replica: Array,
        global_: Array,
        previous: Array,
        scratch: Array,
        gamma: float,
        kernels: MergeKernels,
    ) -> RingStats:
        """Merge the replicas of all ranks into every rank's ``scratch``, bit for bit the same.

        ``scratch = sum_i weights[i] * replica_i + gamma * (global_ - previous)``; nothing else
        is written. Every rank calls this with the same run, generation, attempt, addresses,
        weights and gamma. The arithmetic runs in threads of the ring's own.

        Parameters
        ----------
        run, generation, attempt
            Which ring; attempts of a generation, and generations of a run, only ever grow.
        rank, addresses
            This worker's place in the ring, and every rank's worker address.
        weights
            One factor per rank.
        replica, global_, previous
            ``(size,)`` float32, read while the ring runs.
        scratch
            ``(size,)`` float32, overwritten; undefined after a failure.
        gamma
            Momentum; the global models are the same on all ranks.
        kernels
            The arithmetic.

        Returns
        -------
        RingStats
            Bytes sent, seconds waited, seconds in all.

        Raises
        ------
        ClusterError
            When a neighbour dies, cannot be reached, or is silent for too long; when the ring
            is aborted; when the attempt is stale.
        """
        key = RingKey(run=run, generation=generation, attempt=attempt)
        term = RingTerm(
            rank=rank,
            ranks=len(addresses),
            weight=float(weights[rank]),
            gamma=float(gamma),
            replica=replica,
            global_=global_,
            previous=previous,
            scratch=scratch,
            kernels=kernels,
            piece_size=self.options.piece_bytes // FLOAT_BYTES,
        )
        line = RingLine(
            key=key,
            addresses=tuple(addresses),
            mailbox=self._mailbox,
            connection_args=self._connection_args,
            options=self.options,
        )
        return await self._perform(key, RingRound(line, term))

    def abort(self, run: str, generation: int, attempt: int) -> None:
        """Fail this ring, and earlier ones of the run, now; later calls for it are refused."""
        self._refuse_before(RingKey(run=run, generation=generation, attempt=attempt + 1))

    def forget(self, run: str) -> None:
        """Abort the run's rings and forget it, so that its generations may start anew."""
        self._dismiss(lambda key: key.run == run)
        self._floors.pop(run, None)

    async def close(self) -> None:
        """Abort every ring, send away every caller, and take no more."""
        self._closed = True
        self._handlers.pop(HANDLER, None)
        self._dismiss(lambda key: True)
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)

    async def answer(self, comm: Comm, run: str, generation: int, attempt: int, rank: int) -> None:
        """Handle a neighbour's call: keep its comm for the ring, or refuse it.

        The server reads from the comm again when this returns, so it stays until the ring is
        over, or nobody has come for the comm in time.
        """
        key = RingKey(run=run, generation=generation, attempt=attempt)
        caller = Caller(comm=comm, key=key, rank=rank)
        if self._is_over(key) or not self._mailbox.put(caller):
            await comm.write({"status": "refused"})
            await comm.close()
            return
        self._callers.add(caller)
        try:
            await caller.until_released(self.options.idle_timeout_s)
        finally:
            self._callers.discard(caller)
            self._mailbox.withdraw(caller)
            comm.abort()

    async def _perform(self, key: RingKey, ring: RingRound) -> RingStats:
        if self._is_over(key) or key in self._jobs:
            raise ClusterError(f"{key} is over here: start a new attempt")
        self._refuse_before(key)
        job = self._jobs[key] = asyncio.create_task(ring.run())
        try:
            return await job
        except asyncio.CancelledError:
            if _is_being_cancelled():
                raise
            raise ClusterError(f"{key} was aborted: start a new attempt") from None
        except OSError as error:
            raise ClusterError(f"{key} failed, {error}: start a new attempt") from error
        finally:
            del self._jobs[key]
            self.abort(key.run, key.generation, key.attempt)

    def _is_over(self, key: RingKey) -> bool:
        return self._closed or key.turn < self._floors.get(key.run, key.turn)

    def _refuse_before(self, key: RingKey) -> None:
        floor = self._floors[key.run] = max(key.turn, self._floors.get(key.run, key.turn))
        self._dismiss(lambda other: other.run == key.run and other.turn < floor)

    def _dismiss(self, matches: Callable[[RingKey], bool]) -> None:
        for key, job in self._jobs.items():
            if matches(key):
                job.cancel()
        for caller in self._callers:
            if matches(caller.key):
                caller.released.set()


def _is_being_cancelled() -> bool:
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0
