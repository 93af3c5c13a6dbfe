"""A link over any Dask comm (``tls://``, ``ucx://``, ``inproc://``): each array is a message.

Several messages may be on their way, each a copy, which is where its array is: over UCX a device
array's never leaves the device, and what arrives is on the receiver's.

UCX forgets what is still under way when an endpoint is closed. So a sender waits there until its
receiver, which has got all that it wants, has closed its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

from distributed.comm import Comm
from distributed.protocol import to_serialize

from daskxml.runtime.link_protocol import DIRECT, STALL_S, Read
from daskxml.runtime.payloads import Payload, duplicate, land
from daskxml.types import Array

AHEAD = 4  # messages on their way before a sender waits


class CommLink:
    """Either end of a link over a Dask comm.

    Parameters
    ----------
    comm
        An established comm that nobody else reads or writes.
    loop
        The event loop on which the comm lives.
    patience_s
        How long to wait for a message, in seconds.
    """

    quick_bytes = 0  # messages always go through the event loop

    def __init__(self, comm: Comm, loop: asyncio.AbstractEventLoop, patience_s: float) -> None:
        # Floats do not compress, so the attempt would only cost time.
        comm.handshake_options = {**comm.handshake_options, "compression": None}
        self._comm, self._loop, self._patience_s = comm, loop, patience_s
        self._pending: set[Future[Any]] = set()
        self._reading: Read | None = None
        self._writing: deque[Future[Any]] = deque()
        self._turn = asyncio.Lock()  # a comm takes one message after the other
        self._has_sent = self._aborted = False

    def send(self, data: Payload) -> int:
        """Send a copy: some comms return before the bytes have left, or pass by reference."""
        try:
            while len(self._writing) >= AHEAD:
                self._result(self._writing[0], STALL_S)
                self._writing.popleft()
        except TimeoutError:
            return 0
        self._has_sent = True
        self._writing.append(self._start(self._write(duplicate(data))))
        return len(data)

    def send_now(self, data: Payload) -> int:
        """Send nothing."""
        return 0

    def flush(self) -> None:
        """Nothing to wait for: what is on its way are copies."""

    def drain(self) -> None:
        """Nothing to wait for: `close` sees them off."""

    def receive_into(self, array: Array) -> None:
        """Receive one message and copy its array."""
        reading, self._reading = self.listen(), None
        land(self._result(reading, self._patience_s)["array"], array)

    def borrow(self, into: Array) -> Array:
        """Receive one message and copy its array."""
        self.receive_into(into)
        return into

    def release(self) -> None:
        """Nothing was borrowed."""

    def listen(self) -> Read:
        """Return the next message, as a future."""
        if self._reading is None:
            self._reading = self._start(self._comm.read())
        return self._reading

    def is_at_end(self) -> bool:
        """Whether there will be no next message."""
        reading = self.listen()
        return not reading.cancelled() and isinstance(reading.exception(0), OSError)

    def abort(self) -> None:
        """Cancel what threads wait for."""
        self._aborted = True
        for pending in tuple(self._pending):
            pending.cancel()

    def rest(self) -> bool:
        """Not here: `close` is what sees the last messages off."""
        return False

    async def close(self) -> None:
        """Close the comm once its messages have left."""
        with suppress(OSError, CancelledError, asyncio.CancelledError):
            for writing in self._writing:
                await asyncio.wrap_future(writing)
            if self._has_sent and self._comm.peer_address.startswith(DIRECT):
                await asyncio.wait_for(asyncio.wrap_future(self.listen()), self._patience_s)
        self.abort()
        with suppress(OSError):
            await self._comm.close()

    async def _write(self, copied: Any) -> None:
        async with self._turn:
            await self._comm.write({"array": to_serialize(copied)})

    def _start(self, action: Coroutine[Any, Any, Any]) -> Future[Any]:
        future = asyncio.run_coroutine_threadsafe(action, self._loop)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        if self._aborted:  # checked after adding: abort() misses no future
            future.cancel()
        return future

    def _result(self, future: Future[Any], patience_s: float) -> Any:
        try:
            return future.result(patience_s)
        except CancelledError:
            raise ConnectionAbortedError("the link was aborted") from None
