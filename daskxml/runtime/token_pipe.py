"""A pipe of short messages between two processes of a machine, whose sender may take them back.

Each write is a packet, which arrives whole. The receiver opens the pipe by way of /proc, as the
same user; what was written stays there when the sender has closed its ends, or is gone. Whoever
takes packets out holds a lock, which the kernel releases when its holder dies.
"""

from __future__ import annotations

import fcntl
import os
import select
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

PACKET_BYTES = select.PIPE_BUF  # at most, so that a write is never split
_ROOM_BYTES = 1 << 20  # 256 packets; what an ordinary user may ask for


class TokenPipe:
    """The sender's ends.

    Examples
    --------
    >>> pipe = TokenPipe()
    >>> there = open_offered(pipe.offer)
    >>> pipe.put(b"one"), pipe.put(b"two")
    (True, True)
    >>> take(there)
    b'one'
    >>> pipe.recall(bytes.upper)  # what nobody has taken
    >>> pipe.close()
    >>> take(there), take(there)
    (b'TWO', b'')
    >>> os.close(there)
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC | os.O_DIRECT)
        with suppress(OSError):  # this user has many pipes: it keeps its usual room
            fcntl.fcntl(self._write, fcntl.F_SETPIPE_SZ, _ROOM_BYTES)

    @property
    def offer(self) -> dict[str, Any]:
        """What another process must know to open it; of plain values."""
        inode = os.fstat(self._read).st_ino
        return {"pid": os.getpid(), "fd": self._read, "inode": inode, "boot": boot_id()}

    def has_room(self, patience_s: float) -> bool:
        """Wait until a packet may be put."""
        poll = select.poll()
        poll.register(self._write, select.POLLOUT)
        return bool(poll.poll(patience_s * 1000))

    def put(self, packet: bytes) -> bool:
        """Put a packet, of at most `PACKET_BYTES`; whether there was room."""
        try:
            os.write(self._write, packet)
        except BlockingIOError:
            return False
        return True

    def recall(self, change: Callable[[bytes], bytes]) -> None:
        """Change every packet that was not taken yet."""
        with _locked(self._read) as is_mine:
            if not is_mine:
                return  # the receiver is just taking one
            for packet in [change(packet) for packet in _everything(self._read)]:
                os.write(self._write, packet)

    def close(self) -> None:
        """Close both ends; once is enough."""
        for fd in (self._write, self._read):
            if fd >= 0:
                os.close(fd)
        self._write = self._read = -1


def open_offered(offer: Mapping[str, Any]) -> int | None:
    """Open the receiver's end of a pipe, not blocking; None where that is impossible.

    Another machine, another container and another user are impossible.
    """
    if offer["boot"] != boot_id():
        return None
    try:
        fd = os.open(
            f"/proc/{offer['pid']}/fd/{offer['fd']}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except OSError:
        return None
    if os.fstat(fd).st_ino != offer["inode"]:  # containers number processes anew
        os.close(fd)
        return None
    return fd


def take(fd: int) -> bytes | None:
    """Take the next packet; None if there is none now, b"" if there will be none."""
    with _locked(fd) as is_mine:
        if not is_mine:
            return None  # the sender is just changing them
        try:
            return os.read(fd, PACKET_BYTES)
        except BlockingIOError:
            return None


@cache
def boot_id() -> str:
    """Tell this machine, as it runs, from every other.

    Examples
    --------
    >>> len(boot_id())
    36
    """
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@contextmanager
def _locked(fd: int) -> Iterator[bool]:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
        return
    try:
        yield True
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def _everything(fd: int) -> Iterator[bytes]:
    with suppress(BlockingIOError):
        while True:
            yield os.read(fd, PACKET_BYTES)
