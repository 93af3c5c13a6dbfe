"""The sender's end of a link between two processes of a machine: arrays stay where they lie.

What travels is a token that says where an array is, in a pipe, and a byte back when it has been
read, over the socket that the two were connected by. An array of a few kilobytes is in its token.
One that is no shared array is copied into memory that is, which serves again once it was read.

What has been sent and not read must not change. A receiver that leaves a token lying cannot hold up
the sender for long: after `STALL_S` the sender takes the token back, copies the array, and puts a
token of the copy in its place. When one end dies, the kernel closes its pipe and its socket, which
the other end sees.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from daskxml.runtime.link_protocol import STALL_S
from daskxml.runtime.payloads import Payload
from daskxml.runtime.shared_arrays import place_of, shared_zeros
from daskxml.runtime.token_pipe import TokenPipe
from daskxml.runtime.tokens import INSIDE_BYTES, Told, pack, unpack
from daskxml.types import Array


@dataclass(slots=True)
class _Sent:
    """An array that is read where it lies: the program's own, or a spare one's copy."""

    number: int
    lent: memoryview | None
    spare: Array | None = None


class SharedOut:
    """The end that sends.

    Parameters
    ----------
    connection
        A socket to the receiver, which the link owns from now on.
    pipe
        The sender's; the receiver has opened it.
    patience_s
        How long the receiver may read nothing, in seconds.
    """

    quick_bytes = 1 << 62  # what is sent at once is only told

    def __init__(self, connection: socket.socket, pipe: TokenPipe, patience_s: float) -> None:
        connection.setblocking(False)
        self._socket, self._pipe, self._patience_s = connection, pipe, patience_s
        self._lock = threading.Lock()  # an outbox's thread sends while the program's flushes
        self._unread: deque[_Sent] = deque()
        self._spares: list[Array] = []
        self._count = 0

    def send(self, data: Payload) -> int:
        """Tell the receiver where these bytes are."""
        return self.send_now(data) if self._pipe.has_room(STALL_S) else 0

    def send_now(self, data: Payload) -> int:
        """Tell the receiver where these bytes are, if there is room to tell."""
        if not len(data):
            return 0
        with self._lock:
            self._hear()
            if not self._pipe.has_room(0):
                return 0
            token = self._token(memoryview(data))
            self._pipe.put(token)
        return len(data)

    def flush(self) -> None:
        """Wait until all has been read; what is left lying is copied."""
        until_s = time.monotonic() + self._patience_s
        while not self._wait_for_lent(STALL_S):
            if time.monotonic() > until_s:
                raise TimeoutError
            with self._lock:
                self._pipe.recall(self._moved)

    def drain(self) -> None:
        """Wait until all has been read: this process's memory may be gone afterwards."""
        left = len(self._unread)
        while left:
            self._listen(self._patience_s)
            if len(self._unread) == left:
                raise TimeoutError
            left = len(self._unread)

    def abort(self) -> None:
        """Shut the connection down, which wakes whoever waits at either end."""
        with suppress(OSError):  # broken or closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def rest(self) -> bool:
        """Let go of the copies."""
        self._spares.clear()
        return True

    async def close(self) -> None:
        """Close the pipe, in which what was told stays, and then the socket."""
        self._pipe.close()
        self._socket.close()

    def _token(self, data: memoryview) -> bytes:
        if len(data) <= INSIDE_BYTES:
            return pack(bytes(data))
        self._count += 1
        place = place_of(data)
        if place is not None:
            self._unread.append(_Sent(self._count, data))
            return pack(Told(self._count, *place, len(data), lasts=True))
        spare = self._copied(data)
        self._unread.append(_Sent(self._count, None, spare))
        return pack(_told(self._count, spare, len(data)))

    def _copied(self, data: memoryview) -> Array:
        """Copy bytes into a spare array, the smallest that is long enough."""
        floats = -(-len(data) // 4)
        fitting = [at for at, spare in enumerate(self._spares) if spare.size >= floats]
        best = min(fitting, key=lambda at: self._spares[at].size, default=None)
        spare = shared_zeros(floats) if best is None else self._spares.pop(best)
        np.copyto(spare.view(np.uint8)[: len(data)], np.frombuffer(data, np.uint8))
        return spare

    def _moved(self, token: bytes) -> bytes:
        """Copy what a token tells of, if it is the program's own, and tell of the copy."""
        told = unpack(token)
        if isinstance(told, bytes):
            return token
        sent = next(sent for sent in self._unread if sent.number == told.number)
        if sent.lent is None:
            return token
        spare = self._copied(sent.lent)
        sent.lent, sent.spare = None, spare
        return pack(_told(told.number, spare, told.length))

    def _wait_for_lent(self, patience_s: float) -> bool:
        """Wait until none of the program's own arrays is unread; False if nothing moves."""
        while True:
            with self._lock:
                left = sum(sent.lent is not None for sent in self._unread)
            if not left:
                return True
            before = len(self._unread)
            self._listen(patience_s)
            if len(self._unread) == before:
                return False

    def _listen(self, patience_s: float) -> None:
        """Wait for the receiver to have read something."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.poll(patience_s * 1000)
        with self._lock:
            self._hear()

    def _hear(self) -> None:
        """Book what the receiver has read."""
        try:
            answers = self._socket.recv(1 << 12)
        except BlockingIOError:
            return
        if not answers:
            raise ConnectionResetError("the connection was closed")
        for _ in answers:
            spare = self._unread.popleft().spare
            if spare is not None:
                self._spares.append(spare)


def _told(number: int, spare: Array, length: int) -> Told:
    place = place_of(memoryview(spare).cast("B"))
    if place is None:
        raise ConnectionError("there is no memory that processes can share any more")
    return Told(number, *place, length, lasts=False)
