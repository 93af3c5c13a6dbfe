"""Sockets and shared memory of virtual processes: real ones, which a thread waits for.

All processes of a simulation are one process of the system, which does not close what a dead one
has left open. So each `Files` knows what its process has opened, and closes it with the process.
"""

from __future__ import annotations

import select
import socket
import struct
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from daskxml.transport.channels import shm_arrays
from daskxml.worker.shared_model import SharedModel
from harness.faults.loop import PROCESS, this_thread

_TIMEOUTS = (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO)
_forget_array, _open_shared = shm_arrays._forget, SharedModel.__init__
_owners: dict[int, Files] = {}  # of arrays that others find, by address
shm_arrays.own_memory()  # of no virtual process, with which it would be closed


class Files:
    """What a process has open."""

    def __init__(self) -> None:
        self.sockets: weakref.WeakSet[VirtualSocket] = weakref.WeakSet()
        self.shared: weakref.WeakSet[SharedModel] = weakref.WeakSet()

    @property
    def is_any_open(self) -> bool:
        """Whether there are connections."""
        return any(it.is_open for it in self.sockets)

    def cut(self) -> None:
        """Break all connections."""
        for each in list(self.sockets):
            each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close everything, as the system does for a dead process."""
        for each in (*self.sockets, *self.shared):
            each.close()
        for start in [start for start, owner in _owners.items() if owner is self]:
            forget_array(start)


def files() -> Files:
    """Return what the process of the caller has open."""
    process: Any = PROCESS.get()
    found: Files = process.files
    return found


# ------------------------------------------------------------------------ waiting


def wait_until(ask: Callable[[], Any], timeout_s: float | None) -> Any:
    """Return what ``ask`` returns once that is true, or when time is up."""
    thread, found = this_thread(), ask()
    if found or thread is None or (timeout_s is not None and timeout_s <= 0.0):
        return found
    thread.watch(ask, timeout_s)
    return ask()


class VirtualPoll:
    """``select.poll``."""

    def __init__(self) -> None:
        self._poll = select.poll()

    def register(self, what: Any, events: int) -> None:
        """Wait for this too."""
        self._poll.register(what, events)

    def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
        """Wait, and return what is ready."""
        timeout_s = None if timeout_ms is None else timeout_ms / 1000.0
        found: list[tuple[int, int]] = wait_until(lambda: self._poll.poll(0), timeout_s)
        return found


class VirtualSelect:
    """The module ``select``."""

    poll = VirtualPoll

    def __getattr__(self, name: str) -> Any:
        return getattr(select, name)


# ------------------------------------------------------------------- what is opened


class VirtualSocket:
    """A connected socket; messages take virtual time."""

    def __init__(self, end: socket.socket, delay_s: Callable[[], float], owner: Files) -> None:
        end.setblocking(False)
        self._end, self._delay_s = end, delay_s
        self._limits_s: dict[int, float | None] = dict.fromkeys(_TIMEOUTS)
        self._is_blocking, self.is_open, self.is_taken = True, True, False
        owner.sockets.add(self)
        self.fileno = end.fileno

    def setblocking(self, flag: bool) -> None:
        """Let calls wait, or not."""
        self._is_blocking = flag

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        """Limit the time that calls wait."""
        if option in _TIMEOUTS:
            seconds, micros = struct.unpack("ll", value)
            self._limits_s[option] = seconds + micros * 1e-6

    def dup(self) -> VirtualSocket:
        """Return this socket, which its comm gives away."""
        self.is_taken = True
        return self

    def send(self, data: Any, flags: int = 0) -> int:
        """Send what there is room for."""
        waits = self._is_blocking and not flags & socket.MSG_DONTWAIT
        if waits:
            self._wait(select.POLLOUT, self._delay_s())
            self._wait(select.POLLOUT, self._limits_s[socket.SO_SNDTIMEO])
        return self._end.send(data)

    def sendall(self, data: Any) -> None:
        """Send all, as the other end makes room."""
        while data:
            data = data[self.send(data) :]

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return what has come."""
        if self._is_blocking and not flags & socket.MSG_DONTWAIT:
            self._wait(select.POLLIN, self._limits_s[socket.SO_RCVTIMEO])
        return self._end.recv(size, flags)

    def recv_into(self, view: Any, size: int, flags: int) -> int:
        """Fill a view, unless the other end has closed."""
        at = 0
        while at < len(view):
            self._wait(select.POLLIN, self._limits_s[socket.SO_RCVTIMEO])
            received = self._end.recv_into(view[at:])
            if not received:
                break
            at += received
        return at

    def _wait(self, event: int, timeout_s: float | None) -> None:
        poll = VirtualPoll()
        poll.register(self._end, event)
        poll.poll(None if timeout_s is None else timeout_s * 1000.0)

    def shutdown(self, how: int) -> None:
        """Break the connection at both ends."""
        if self.is_open:
            with suppress(OSError):
                self._end.shutdown(how)

    def close(self) -> None:
        """Close it; what was sent arrives."""
        self.is_open = False
        self._end.close()


def shared_zeros(size: int) -> Any:
    """Return an array that other processes find, as long as this one lives."""
    flat = shm_arrays.shared_zeros(size)
    if PROCESS.get() is not None:
        _owners[int(flat.ctypes.data)] = files()
    return flat


def forget_array(start: int) -> None:
    """Close an array that others find, unless its process was closed before."""
    if _owners.pop(start, None) is not None:
        _forget_array(start)


def note_shared(model: SharedModel, *args: Any) -> None:
    """Note a model that a process shares."""
    _open_shared(model, *args)
    process: Any = PROCESS.get()
    if process is not None and hasattr(process, "files"):
        process.files.shared.add(model)
