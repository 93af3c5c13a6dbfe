"""Channels over any Dask comm (``tls://``, ``ucx://``, ``inproc://``): each array is a message.

Several messages may be in flight. Dask sends a copy of each array. UCX takes arrays where they are,
those of a device too; Dask's own message would be six of UCX's, one after the other, each of which
wakes the event loops of both ends.

UCX drops what is in flight when an endpoint is closed. So its sender waits in `UcxChannel.close`
until the receiver, which has received all that it wants, has closed its own end.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from distributed.comm import Comm, CommClosedError
from distributed.protocol import to_serialize

from daskxml.core.arrays import Array
from daskxml.transport.channels import protocol

IN_FLIGHT = 4  # messages on their way before a sender waits
_HEADER = struct.Struct("??Q")  # whether Dask closes the comm; whether on a device; bytes


class CommChannel(protocol.Sender, protocol.Receiver):
    """Either end of a channel over a Dask comm.

    Parameters
    ----------
    comm
        An established comm; the channel owns it.
    loop
        The event loop of the comm.
    timeout_s
        How long to wait for a message, in seconds.
    on_close
        Called when the channel has been closed.
    """

    awaits_peer = False  # before it is closed

    def __init__(
        self,
        comm: Comm,
        loop: asyncio.AbstractEventLoop,
        timeout_s: float,
        on_close: Callable[[], object] = bool,
    ) -> None:
        # Floats do not compress, so the attempt would only cost time.
        comm.handshake_options = {**comm.handshake_options, "compression": None}
        self._comm, self._loop, self._timeout_s = comm, loop, timeout_s
        self._on_close = on_close
        self._pending: dict[Future[Any], None] = {}
        self._reading: protocol.Read | None = None
        self._writing: deque[Future[Any]] = deque()
        self._turn = asyncio.Lock()  # a comm takes one message after the other
        self._has_sent = self._aborted = False

    def send(self, data: protocol.Payload) -> None:
        """Send these bytes, or a copy."""
        if len(self._writing) >= IN_FLIGHT:
            self._result(self._writing.popleft(), self._timeout_s)
        self._has_sent = True
        self._writing.append(self._start(self._write(self._kept(data))))

    def receive_into(self, array: Array) -> None:
        """Receive one message and copy its array."""
        reading, self._reading = self.signal(), None
        protocol.write_payload(self._result(reading, self._timeout_s), array)

    def signal(self) -> protocol.Read:
        """Return the next message, as a future."""
        if self._reading is None:
            self._reading = self._start(self._read())
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
            if self._has_sent and self.awaits_peer:
                await asyncio.wait_for(asyncio.wrap_future(self.signal()), self._timeout_s)
        self.abort()
        with suppress(OSError):
            await self._comm.close()
        self._on_close()

    def _kept(self, data: protocol.Payload) -> Any:
        """Return a copy: some comms return before the bytes have left, or pass by reference."""
        return bytes(data)

    async def _write(self, payload: Any) -> None:
        async with self._turn:
            await self._comm.write({"array": to_serialize(payload)})

    async def _read(self) -> Any:
        return (await self._comm.read())["array"]

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


class UcxChannel(CommChannel):
    """Either end of a channel over a Dask comm of UCX, which sends arrays of a device as they are.

    Attributes
    ----------
    takes_device
        Whether the other end takes them: a worker without a GPU does not.
    """

    takes_device = awaits_peer = True

    def flush(self) -> None:
        """Wait until what was sent has left."""
        while self._writing:
            self._result(self._writing.popleft(), self._timeout_s)

    def _kept(self, data: protocol.Payload) -> Any:
        return data if self.takes_device else protocol.payload_of(data, False)

    async def _write(self, payload: Any) -> None:
        header = _HEADER.pack(False, protocol.is_on_device(payload), len(payload))
        async with self._turn:
            with self._breaking():
                parts = (header, payload) if len(payload) else (header,)
                await asyncio.gather(*(self._comm.ep.send(part) for part in parts))

    async def _read(self) -> Any:
        header = bytearray(_HEADER.size)
        with self._breaking():
            await self._comm.ep.recv(header)
            is_closed, is_device, size = _HEADER.unpack(header)
            payload = protocol.new_on_device(size) if is_device else np.empty(size, np.uint8)
            if size:
                await self._comm.ep.recv(payload)
            if is_closed or self._comm.closed():  # what is cancelled then returns as if it had come
                raise CommClosedError("the connection was closed")
        return payload

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """Close the comm if anything is cancelled or fails: its messages would be out of step."""
        try:
            yield
        except BaseException as error:
            self._comm.abort()
            if isinstance(error, (OSError, asyncio.CancelledError)):
                raise
            raise CommClosedError(f"the connection was closed: {error}") from error
