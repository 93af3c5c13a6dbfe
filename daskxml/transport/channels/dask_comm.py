"""A channel over any Dask comm (``tls://``, ``ucx://``, ``inproc://``): each array is a message.

Several messages may be in flight, each a copy in the memory of its array: over UCX that of a device
array stays on devices all the way.

UCX drops what is in flight when an endpoint is closed. So its sender waits in `CommChannel.close`
until the receiver, which has received all that it wants, has closed its own end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

from distributed.comm import Comm
from distributed.protocol import to_serialize

from daskxml.core.arrays import Array
from daskxml.transport.channels.protocol import (
    Payload,
    Read,
    Receiver,
    Sender,
    copy_payload,
    payload_of,
    write_payload,
)
from daskxml.transport.ucx import takes_device_arrays

IN_FLIGHT = 4  # messages on their way before a sender waits


class CommChannel(Sender, Receiver):
    """Either end of a channel over a Dask comm.

    Parameters
    ----------
    comm
        An established comm; the channel owns it.
    loop
        The event loop of the comm.
    timeout_s
        How long to wait for a message, in seconds.
    takes_device
        Whether the other end takes device arrays as they are: a worker without a GPU does not.
    on_close
        Called when the channel has been closed.
    """

    def __init__(
        self,
        comm: Comm,
        loop: asyncio.AbstractEventLoop,
        timeout_s: float,
        *,
        takes_device: bool = True,
        on_close: Callable[[], object] = bool,
    ) -> None:
        # Floats do not compress, so the attempt would only cost time.
        comm.handshake_options = {**comm.handshake_options, "compression": None}
        self._comm, self._loop, self._timeout_s = comm, loop, timeout_s
        self._takes_device, self._on_close = takes_device, on_close
        self._pending: dict[Future[Any], None] = {}
        self._reading: Read | None = None
        self._writing: deque[Future[Any]] = deque()
        self._turn = asyncio.Lock()  # a comm takes one message after the other
        self._has_sent = self._aborted = False

    def send(self, data: Payload) -> None:
        """Send a copy: some comms return before the bytes have left, or pass by reference."""
        if len(self._writing) >= IN_FLIGHT:
            self._result(self._writing.popleft(), self._timeout_s)
        self._has_sent = True
        copied = copy_payload(data) if self._takes_device else bytes(payload_of(data, False))
        self._writing.append(self._start(self._write(copied)))

    def receive_into(self, array: Array) -> None:
        """Receive one message and copy its array."""
        reading, self._reading = self.signal(), None
        write_payload(self._result(reading, self._timeout_s)["array"], array)

    def signal(self) -> Read:
        """Return the next message, as a future."""
        if self._reading is None:
            self._reading = self._start(self._comm.read())
        return self._reading

    def is_at_end(self) -> bool:
        """Whether there will be no next message."""
        reading = self.signal()
        return not reading.cancelled() and isinstance(reading.exception(0), OSError)

    def abort(self) -> None:
        """Cancel the futures that threads wait for."""
        self._aborted = True
        for pending in tuple(self._pending):
            pending.cancel()

    def prepare_reuse(self) -> None:
        """Forget what was sent, for which `close` would wait."""
        self._has_sent = False

    async def close(self) -> None:
        """Close the comm once its messages have left."""
        with suppress(OSError, CancelledError, asyncio.CancelledError):
            for writing in self._writing:
                await asyncio.wrap_future(writing)
            if self._has_sent and takes_device_arrays(self._comm.peer_address):
                await asyncio.wait_for(asyncio.wrap_future(self.signal()), self._timeout_s)
        self.abort()
        with suppress(OSError):
            await self._comm.close()
        self._on_close()

    async def _write(self, copied: Any) -> None:
        async with self._turn:
            await self._comm.write({"array": to_serialize(copied)})

    def _start(self, action: Coroutine[Any, Any, Any]) -> Future[Any]:
        future = asyncio.run_coroutine_threadsafe(action, self._loop)
        self._pending[future] = None
        future.add_done_callback(self._pending.pop)
        if self._aborted:  # checked after adding: abort() misses no future
            future.cancel()
        return future

    def _result(self, future: Future[Any], timeout_s: float) -> Any:
        try:
            return future.result(timeout_s)
        except CancelledError:
            raise ConnectionAbortedError("the link was aborted") from None
