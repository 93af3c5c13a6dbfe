"""A shared model on another machine: pulled by messages, and changes pushed back.

A worker on the model host adds the pushes that it receives one after the other, off its event loop;
they race with other writers, as those do with each other. If it dies, the next worker on that host
is asked: a change that the first had begun to add may then count twice, but is never lost.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any

import numpy as np
from distributed.protocol import to_serialize

from daskxml.core.arrays import Array
from daskxml.core.errors import ClusterError

PULL, PUSH, HOLDERS = "daskxml_pull", "daskxml_push", "daskxml_holders"
RETRY_S = 0.25
POLL_S = 0.5  # between checks that a worker that has not answered yet is still in the cluster
TIMEOUT_S = 120.0  # the scheduler ends the run, or restarts it, long before


class RemoteStore:
    """A `daskxml.worker.shared_model.ModelStore` for a worker on another machine.

    Its methods block the thread of a task, never the worker's event loop.

    Parameters
    ----------
    worker
        The ``distributed.Worker`` of this process.
    run
        Name of the run.

    Examples
    --------
    Created with the `TrainingWorker`, and closed with it::

        store = RemoteStore(get_worker(), run)
        worker = TrainingWorker(settings, None, store)
    """

    def __init__(self, worker: Any, run: str) -> None:
        self._worker, self._run = worker, run
        self._holder = ""  # address of the worker that answered last
        self._name, self._pushes = secrets.token_hex(8), 0
        self._call: Future[Any] | None = None
        self._is_closed = False

    def pull(self, out: Array) -> None:
        """Copy the shared model into ``(size,)`` float32 on the host.

        Raises
        ------
        ClusterError
            If the run is over here, or no worker on the model host answers in time.
        """
        np.copyto(out, self._wait(self._ask(PULL))["model"])

    def push(self, delta: Array) -> None:
        """Add ``(size,)`` float32 on the host to the shared model; it may be changed afterwards.

        Raises
        ------
        ClusterError
            If the run is over here, or no worker on the model host answers in time.
        """
        self._pushes += 1
        numbered = {"pusher": self._name, "number": self._pushes}
        self._wait(self._ask(PUSH, delta=to_serialize(delta), **numbered))

    def close(self) -> None:
        """Make a call under way fail; callable from any thread."""
        self._is_closed = True
        if self._call is not None:
            self._call.cancel()

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        call = self._call = asyncio.run_coroutine_threadsafe(work, self._worker.loop.asyncio_loop)
        if self._is_closed:  # checked after it is set: close() misses no call
            call.cancel()
        try:
            return call.result()
        except CancelledError:
            raise ClusterError("the run is over on this worker") from None

    async def _ask(self, handler: str, **values: Any) -> dict[str, Any]:
        """Call a handler of the workers on the model host until one that has the model answers."""
        for _ in range(int(TIMEOUT_S / RETRY_S)):
            for address in [self._holder] if self._holder else await self._holders():
                answer = await self._try(address, handler, values)
                if answer.get("is_here"):
                    self._holder = address
                    return answer
            self._holder = ""
            await asyncio.sleep(RETRY_S)
        raise ClusterError("no worker on the machine of the shared model answers; resume the run")

    async def _holders(self) -> list[str]:
        try:
            return list(await self._worker.scheduler.daskxml_holders(run=self._run))
        except OSError:  # the scheduler is gone, or will answer later
            return []

    async def _try(self, address: str, handler: str, values: dict[str, Any]) -> dict[str, Any]:
        """Call one worker; stop once it has left, as Dask retries a dead one for half a minute."""
        remote = getattr(self._worker.rpc(address), handler)
        call = asyncio.ensure_future(remote(run=self._run, **values))
        try:
            while not call.done():
                await asyncio.wait({call}, timeout=POLL_S)
                if not call.done() and address not in await self._holders():
                    return {}
            return dict(call.result())
        except OSError:  # the worker is gone; the scheduler notices it soon
            return {}
        finally:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
