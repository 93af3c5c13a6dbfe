"""A channel between two processes of a machine: arrays stay where they are.

What travels over the socket is a descriptor of each array, and a byte back when it has been read.
An array of a few kilobytes is inside its descriptor. One that is not in shared memory is copied
into a buffer that is, which is reused once the copy was read. What has been sent and not read must
not change. When one end dies, the kernel closes its socket, which the other end notices.
"""

from __future__ import annotations

import select
import socket
import struct
from collections import deque

import numpy as np

from daskxml.core.arrays import Array
from daskxml.core.errors import ClusterError
from daskxml.transport.channels import protocol
from daskxml.transport.channels.shm_arrays import MappingCache, locate, shared_zeros
from daskxml.transport.channels.tcp import SocketEnd
from daskxml.worker.shared_model import SharedHandle

INLINE_BYTES = 4095  # of an array that its descriptor can hold
_ACKNOWLEDGEMENT = b"\0"
_HEADER = struct.Struct("<H?")  # bytes that follow; whether they refer to an array, or are it
_REFERENCE = struct.Struct("<5q?")  # and then the name of the memory


class ShmSender(SocketEnd, protocol.Sender):
    """The end that sends.

    Parameters
    ----------
    connection
        A socket to the receiver; the channel owns it.
    timeout_s
        How long the receiver may read nothing, in seconds.
    """

    inline_bytes = 1 << 62  # to send an array only writes its descriptor

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        super().__init__(connection, timeout_s)
        # What must stay until it was read, and the copy of it that is read, if it is one.
        self._unread: deque[tuple[memoryview, Array | None]] = deque()
        self._buffers: list[Array] = []  # of copies that were read

    def send(self, data: protocol.Payload) -> None:
        """Write the descriptor of these bytes."""
        if len(data):
            self._note_read(socket.MSG_DONTWAIT)
            self.write(self._describe(memoryview(data)))

    def send_now(self, data: protocol.Payload) -> int:
        """Write the descriptor of these bytes, if the socket has room for it."""
        poll = select.poll()
        poll.register(self.socket, select.POLLOUT)
        if not poll.poll(0):
            return 0
        self.send(data)
        return len(data)

    def flush(self) -> None:
        """Wait until all has been read."""
        while self._unread:
            self._note_read()

    def prepare_reuse(self) -> None:
        """Free the buffers."""
        self._buffers.clear()

    def _describe(self, data: memoryview) -> bytes:
        if len(data) <= INLINE_BYTES:
            return _HEADER.pack(len(data), False) + data
        copy, place = None, locate(data)
        if place is None:
            copy = self._copy(data)
            place = locate(memoryview(copy).cast("B"))
        if place is None:
            raise ConnectionError("there is no memory that processes can share any more")
        self._unread.append((data, copy))
        handle, offset = place
        numbers = (handle.pid, handle.fd, handle.size, offset, len(data), copy is None)
        reference = _REFERENCE.pack(*numbers) + handle.name.encode()
        return _HEADER.pack(len(reference), True) + reference

    def _copy(self, data: memoryview) -> Array:
        """Copy bytes into the smallest buffer that is long enough."""
        floats = -(-len(data) // 4)
        fitting = [at for at, buffer in enumerate(self._buffers) if buffer.size >= floats]
        best = min(fitting, key=lambda at: self._buffers[at].size, default=None)
        buffer = shared_zeros(floats) if best is None else self._buffers.pop(best)
        np.copyto(buffer.view(np.uint8)[: len(data)], np.frombuffer(data, np.uint8))
        return buffer

    def _note_read(self, flags: int = 0) -> None:
        """Take the acknowledgements that have come, or wait for one."""
        try:
            acknowledgements = self.socket.recv(1 << 12, flags)
        except BlockingIOError:
            if not flags:
                raise TimeoutError from None
            return
        if not acknowledgements:
            raise ConnectionResetError("the connection was closed")
        for _ in acknowledgements:
            _, copy = self._unread.popleft()
            if copy is not None:
                self._buffers.append(copy)


class ShmReceiver(SocketEnd, protocol.Receiver):
    """The end that receives.

    Parameters
    ----------
    connection
        A socket to the sender; the channel owns it.
    timeout_s
        How long to wait for the next array, in seconds.
    mappings
        Keeps the sender's memory mapped when the channel is closed.
    """

    def __init__(self, connection: socket.socket, timeout_s: float, mappings: MappingCache) -> None:
        super().__init__(connection, timeout_s)
        self._lasting, self._copies = mappings, MappingCache()
        self._is_borrowing = False

    def receive_into(self, array: Array) -> None:
        """Copy one array out of the sender's memory."""
        if array.nbytes:
            arrived, is_reference = self._next(array)
            protocol.write_payload(memoryview(arrived), array)
            if is_reference:
                self.write(_ACKNOWLEDGEMENT)

    def borrow(self, into: Array) -> Array:
        """Return one array in the sender's memory; a small one in ``into``."""
        if not into.nbytes or protocol.is_on_device(into):
            self.receive_into(into)
            return into
        arrived, self._is_borrowing = self._next(into)
        if self._is_borrowing:
            return arrived.view(into.dtype).reshape(into.shape)
        protocol.write_payload(memoryview(arrived), into)
        return into

    def release(self) -> None:
        """Allow the sender to overwrite what was borrowed."""
        if self._is_borrowing:
            self._is_borrowing = False
            self.write(_ACKNOWLEDGEMENT)

    def prepare_reuse(self) -> None:
        """Unmap the sender's copies; its own arrays may be read again in later collectives."""
        self._copies.clear()

    async def close(self) -> None:
        """Unmap the sender's copies, and close the connection."""
        self._copies.clear()
        await super().close()

    def _next(self, like: Array) -> tuple[Array, bool]:
        """Return the next array's bytes ``(nbytes,)``, and whether they are in shared memory."""
        nbytes, is_reference = _HEADER.unpack(self._read(_HEADER.size))
        content = self._read(nbytes)
        arrived = self._map(content) if is_reference else np.frombuffer(content, np.uint8)
        if arrived.size != like.nbytes:
            raise ConnectionError(f"{arrived.size} bytes came where {like.nbytes} were expected")
        return arrived, is_reference

    def _read(self, nbytes: int) -> bytearray:
        content = bytearray(nbytes)
        self.read_into(memoryview(content))
        return content

    def _map(self, reference: bytearray) -> Array:
        """Return the bytes that are referred to."""
        pid, fd, size, offset, length, lasts = _REFERENCE.unpack_from(reference)
        handle = SharedHandle(pid, fd, size, reference[_REFERENCE.size :].decode())
        try:
            model = (self._lasting if lasts else self._copies).find(handle)
        except ClusterError as error:
            raise ConnectionError(error.message) from None
        return model.flat.view(np.uint8)[offset : offset + length]
