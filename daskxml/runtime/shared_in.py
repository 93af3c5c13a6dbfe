"""The receiver's end of a link between two processes of a machine: see `shared_out`."""

from __future__ import annotations

import os
import select
import socket
import time
from contextlib import suppress

import numpy as np

from daskxml.errors import ClusterError
from daskxml.runtime.mappings import Mappings
from daskxml.runtime.payloads import is_on_device, land
from daskxml.runtime.token_pipe import take
from daskxml.runtime.tokens import Told, unpack
from daskxml.types import Array

READ = b"\0"  # the answer for each array that was read where it lies


class SharedIn:
    """The end that receives.

    Parameters
    ----------
    connection
        A socket to the sender, which the link owns from now on.
    pipe_fd
        The receiver's end of the sender's pipe, which the link owns as well.
    patience_s
        How long to wait for the next array, in seconds.
    mappings
        Where the sender's memory stays mapped when the link is closed.
    """

    def __init__(
        self, connection: socket.socket, pipe_fd: int, patience_s: float, mappings: Mappings
    ) -> None:
        connection.setblocking(False)
        self._socket, self._pipe_fd, self._patience_s = connection, pipe_fd, patience_s
        self._signal = select.epoll()
        self._signal.register(pipe_fd, select.EPOLLIN)
        self._signal.register(connection, select.EPOLLIN)
        self._lasting, self._passing = mappings, Mappings()
        self._is_borrowing = False

    def receive_into(self, array: Array) -> None:
        """Copy one array out of the sender's memory."""
        if not array.nbytes:
            return
        arrived, is_elsewhere = self._next(array)
        land(memoryview(arrived), array)
        if is_elsewhere:
            self._answer()

    def borrow(self, into: Array) -> Array:
        """Return one array where it lies in the sender's memory; a small one in ``into``."""
        if not into.nbytes or is_on_device(into):
            self.receive_into(into)
            return into
        arrived, self._is_borrowing = self._next(into)
        if self._is_borrowing:
            return arrived.view(into.dtype).reshape(into.shape)
        land(memoryview(arrived), into)
        return into

    def release(self) -> None:
        """Let the sender change what was borrowed."""
        if self._is_borrowing:
            self._is_borrowing = False
            self._answer()

    def listen(self) -> select.epoll:
        """Return what becomes readable with the pipe or the socket."""
        return self._signal

    def is_at_end(self) -> bool:
        """Whether the pipe is empty, and the sender has closed it."""
        poll = select.poll()
        poll.register(self._pipe_fd, select.POLLIN)
        events = dict(poll.poll(0)).get(self._pipe_fd, 0)
        return not events & select.POLLIN and (bool(events) or self._is_cut())

    def abort(self) -> None:
        """Shut the connection down, which wakes whoever waits at either end."""
        with suppress(OSError):  # broken or closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def rest(self) -> bool:
        """Let go of the sender's memory, but for what may be read again in later rounds."""
        self._passing.clear()
        return True

    async def close(self) -> None:
        """Let go of the sender's memory as `rest` does, and of the connection."""
        self._signal.close()
        os.close(self._pipe_fd)
        self._socket.close()
        self._passing.clear()

    def _next(self, like: Array) -> tuple[Array, bool]:
        """Return the next array's bytes ``(nbytes,)``, and whether they are elsewhere."""
        content = unpack(self._take())
        if isinstance(content, Told):
            arrived, is_elsewhere = self._look(content), True
        else:
            arrived, is_elsewhere = np.frombuffer(content, np.uint8), False
        if arrived.size != like.nbytes:
            raise ConnectionError(f"{arrived.size} bytes came where {like.nbytes} were expected")
        return arrived, is_elsewhere

    def _take(self) -> bytes:
        until_s = time.monotonic() + self._patience_s
        while (token := take(self._pipe_fd)) is None:
            if self._is_cut():
                token = take(self._pipe_fd)  # it may have come just before
                break
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._signal.poll(left_s)
        if not token:
            raise ConnectionResetError("the connection was closed")
        return token

    def _is_cut(self) -> bool:
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _look(self, told: Told) -> Array:
        """Return the bytes that a token tells of, where they lie."""
        try:
            model = (self._lasting if told.lasts else self._passing).find(told.handle)
        except ClusterError as error:
            raise ConnectionError(error.message) from None
        return model.flat.view(np.uint8)[told.offset : told.offset + told.length]

    def _answer(self) -> None:
        self._socket.send(READ)
