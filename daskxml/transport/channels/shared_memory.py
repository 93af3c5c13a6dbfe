"""A channel between two processes of a machine: arrays stay where they are.

What travels is a descriptor of each array, in a pipe, and an acknowledgement when it has been read,
a byte over the socket of the comm by which the two were connected. An array of a few kilobytes is
inside its descriptor. One that is not in shared memory is copied into a buffer that is, which is
reused once the copy was read.

What has been sent and not read must not change. A receiver that does not read cannot block the
sender for long: `ShmSender.flush` rewrites the descriptors that are still in the pipe after
`STALL_S`, so that they refer to copies. When one end dies, the kernel closes its pipe and its
socket, which the other end notices.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from daskxml.core.arrays import Array
from daskxml.core.errors import ClusterError
from daskxml.transport.channels.descriptor_pipe import (
    INLINE_BYTES,
    ArrayRef,
    DescriptorPipe,
    pack,
    take_packet,
    unpack,
)
from daskxml.transport.channels.protocol import (
    STALL_S,
    Payload,
    Receiver,
    Sender,
    is_on_device,
    write_payload,
)
from daskxml.transport.channels.shm_arrays import MappingCache, locate, shared_zeros
from daskxml.transport.channels.tcp import SocketEnd

_ACKNOWLEDGEMENT = b"\0"


@dataclass(slots=True)
class _Unread:
    """An array that the receiver reads in place: the program's own, or a copy of it."""

    number: int
    own: memoryview | None
    copy: Array | None = None


class ShmSender(SocketEnd, Sender):
    """The end that sends.

    Parameters
    ----------
    connection
        A socket to the receiver; the channel owns it.
    pipe
        The sender's ends; the receiver has opened it.
    timeout_s
        How long the receiver may read nothing, in seconds.
    """

    inline_bytes = 1 << 62  # to send an array only writes its descriptor

    def __init__(self, connection: socket.socket, pipe: DescriptorPipe, timeout_s: float) -> None:
        connection.setblocking(False)
        self._socket, self._pipe, self._timeout_s = connection, pipe, timeout_s
        self._lock = threading.Lock()  # the queue's thread sends while the program's flushes
        self._unread: deque[_Unread] = deque()
        self._buffers: list[Array] = []  # of copies that were read
        self._count = 0

    def send(self, data: Payload) -> int:
        """Write the descriptor of these bytes."""
        return self.send_now(data) if self._pipe.has_room(STALL_S) else 0

    def send_now(self, data: Payload) -> int:
        """Write the descriptor of these bytes, if the pipe has room for it."""
        if not len(data):
            return 0
        with self._lock:
            self._read_acknowledgements()
            if not self._pipe.has_room(0):
                return 0
            self._pipe.put(self._describe(memoryview(data)))
        return len(data)

    def flush(self) -> None:
        """Wait until all has been read; what is not read in time is copied."""
        until_s = time.monotonic() + self._timeout_s
        while not self._wait_until(self._is_own_read, STALL_S):
            if time.monotonic() > until_s:
                raise TimeoutError
            with self._lock:
                self._pipe.rewrite(self._refer_to_copy)

    def drain(self) -> None:
        """Wait until all has been read: this process's memory may be gone afterwards."""
        if not self._wait_until(lambda: not self._unread, self._timeout_s):
            raise TimeoutError

    def prepare_reuse(self) -> bool:
        """Free the buffers."""
        self._buffers.clear()
        return True

    async def close(self) -> None:
        """Close the pipe, in which descriptors stay, and then the socket."""
        self._pipe.close()
        self._socket.close()

    def _describe(self, data: memoryview) -> bytes:
        if len(data) <= INLINE_BYTES:
            return pack(bytes(data))
        self._count += 1
        place = locate(data)
        if place is not None:
            self._unread.append(_Unread(self._count, data))
            return pack(ArrayRef(self._count, *place, len(data), lasts=True))
        copy = self._copy(data)
        self._unread.append(_Unread(self._count, None, copy))
        return _describe_copy(self._count, copy, len(data))

    def _copy(self, data: memoryview) -> Array:
        """Copy bytes into the smallest buffer that is long enough."""
        floats = -(-len(data) // 4)
        fitting = [at for at, buffer in enumerate(self._buffers) if buffer.size >= floats]
        best = min(fitting, key=lambda at: self._buffers[at].size, default=None)
        buffer = shared_zeros(floats) if best is None else self._buffers.pop(best)
        np.copyto(buffer.view(np.uint8)[: len(data)], np.frombuffer(data, np.uint8))
        return buffer

    def _refer_to_copy(self, descriptor: bytes) -> bytes:
        """Return the descriptor of a copy, if this one refers to the program's own array."""
        ref = unpack(descriptor)
        if isinstance(ref, bytes):
            return descriptor
        unread = next(unread for unread in self._unread if unread.number == ref.number)
        if unread.own is None:
            return descriptor
        copy = self._copy(unread.own)
        unread.own, unread.copy = None, copy
        return _describe_copy(ref.number, copy, ref.length)

    def _is_own_read(self) -> bool:
        with self._lock:
            return all(unread.own is None for unread in self._unread)

    def _wait_until(self, is_done: Callable[[], bool], timeout_s: float) -> bool:
        """Read acknowledgements until a condition holds; False if none comes for so long."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while not is_done():
            before = len(self._unread)
            poll.poll(timeout_s * 1000)
            with self._lock:
                self._read_acknowledgements()
            if len(self._unread) == before:
                return False
        return True

    def _read_acknowledgements(self) -> None:
        try:
            acknowledgements = self._socket.recv(1 << 12)
        except BlockingIOError:
            return
        if not acknowledgements:
            raise ConnectionResetError("the connection was closed")
        for _ in acknowledgements:
            copy = self._unread.popleft().copy
            if copy is not None:
                self._buffers.append(copy)


def _describe_copy(number: int, copy: Array, length: int) -> bytes:
    place = locate(memoryview(copy).cast("B"))
    if place is None:
        raise ConnectionError("there is no memory that processes can share any more")
    return pack(ArrayRef(number, *place, length, lasts=False))


class ShmReceiver(SocketEnd, Receiver):
    """The end that receives.

    Parameters
    ----------
    connection
        A socket to the sender; the channel owns it.
    pipe_fd
        The receiver's end of the sender's pipe; the channel owns it as well.
    timeout_s
        How long to wait for the next array, in seconds.
    mappings
        Keeps the sender's memory mapped when the channel is closed.
    """

    def __init__(
        self, connection: socket.socket, pipe_fd: int, timeout_s: float, mappings: MappingCache
    ) -> None:
        connection.setblocking(False)
        self._socket, self._pipe_fd, self._timeout_s = connection, pipe_fd, timeout_s
        self._signal = select.epoll()
        self._signal.register(pipe_fd, select.EPOLLIN)
        self._signal.register(connection, select.EPOLLIN)
        self._lasting, self._copies = mappings, MappingCache()
        self._is_borrowing = False

    def receive_into(self, array: Array) -> None:
        """Copy one array out of the sender's memory."""
        if not array.nbytes:
            return
        arrived, is_reference = self._next(array)
        write_payload(memoryview(arrived), array)
        if is_reference:
            self._acknowledge()

    def borrow(self, into: Array) -> Array:
        """Return one array in the sender's memory; a small one in ``into``."""
        if not into.nbytes or is_on_device(into):
            self.receive_into(into)
            return into
        arrived, self._is_borrowing = self._next(into)
        if self._is_borrowing:
            return arrived.view(into.dtype).reshape(into.shape)
        write_payload(memoryview(arrived), into)
        return into

    def release(self) -> None:
        """Allow the sender to overwrite what was borrowed."""
        if self._is_borrowing:
            self._is_borrowing = False
            self._acknowledge()

    def signal(self) -> select.epoll:
        """Return what becomes readable with the pipe or the socket."""
        return self._signal

    def is_at_end(self) -> bool:
        """Whether the pipe is empty, and the sender has closed it."""
        poll = select.poll()
        poll.register(self._pipe_fd, select.POLLIN)
        events = dict(poll.poll(0)).get(self._pipe_fd, 0)
        return not events & select.POLLIN and (bool(events) or self._is_closed())

    def prepare_reuse(self) -> bool:
        """Unmap the sender's copies; its own arrays may be read again in later collectives."""
        self._copies.clear()
        return True

    async def close(self) -> None:
        """Unmap the sender's copies, and close the connection."""
        self._signal.close()
        os.close(self._pipe_fd)
        self._socket.close()
        self._copies.clear()

    def _next(self, like: Array) -> tuple[Array, bool]:
        """Return the next array's bytes ``(nbytes,)``, and whether they are in shared memory."""
        content = unpack(self._next_packet())
        if is_reference := isinstance(content, ArrayRef):
            arrived = self._map(content)
        else:
            arrived = np.frombuffer(content, np.uint8)
        if arrived.size != like.nbytes:
            raise ConnectionError(f"{arrived.size} bytes came where {like.nbytes} were expected")
        return arrived, is_reference

    def _next_packet(self) -> bytes:
        until_s = time.monotonic() + self._timeout_s
        while (packet := take_packet(self._pipe_fd)) is None:
            if self._is_closed():
                packet = take_packet(self._pipe_fd)  # it may have come just before
                break
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._signal.poll(left_s)
        if not packet:
            raise ConnectionResetError("the connection was closed")
        return packet

    def _is_closed(self) -> bool:
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _map(self, ref: ArrayRef) -> Array:
        """Return the bytes that are referred to."""
        try:
            model = (self._lasting if ref.lasts else self._copies).find(ref.handle)
        except ClusterError as error:
            raise ConnectionError(error.message) from None
        return model.flat.view(np.uint8)[ref.offset : ref.offset + ref.length]

    def _acknowledge(self) -> None:
        self._socket.send(_ACKNOWLEDGEMENT)
