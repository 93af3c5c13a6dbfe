"""Descriptors of arrays, and the pipe that carries them between two processes of a machine.

A descriptor is a packet with a small array's bytes, or a reference to an array in shared memory.
Each write to the pipe is one packet, which arrives whole. The receiver opens the pipe through
/proc, as the same user. Packets stay in it when the sender has closed its ends, or has died, and
until they are read the sender may rewrite them. The end that takes packets out holds a lock, which
the kernel releases when its holder dies.
"""

from __future__ import annotations

import fcntl
import os
import select
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from daskxml.worker.shared_model import SharedHandle

PACKET_BYTES = select.PIPE_BUF  # at most, so that a write is never split
INLINE_BYTES = PACKET_BYTES - 1  # of an array that its descriptor can hold
_CAPACITY_BYTES = 1 << 20  # 256 packets; what an ordinary user may ask for
_INLINE, _REFERENCE = b"\0", b"\1"  # the first byte of a descriptor
_NUMBERS = struct.Struct("<6q?")


@dataclass(frozen=True, slots=True)
class ArrayRef:
    """A reference to an array in shared memory.

    Attributes
    ----------
    number
        Of the array, counted by its channel.
    handle
        The memory.
    offset, length
        Bytes.
    lasts
        Whether the sender keeps this memory, and is likely to send from it in later collectives.
    """

    number: int
    handle: SharedHandle
    offset: int
    length: int
    lasts: bool


def pack(content: bytes | ArrayRef) -> bytes:
    """Return the descriptor of a small array's bytes, or of a reference.

    Examples
    --------
    >>> ref = ArrayRef(7, SharedHandle(1, 2, 3, "name"), 4, 8, True)
    >>> unpack(pack(ref)) == ref, unpack(pack(b"small"))
    (True, b'small')
    """
    if isinstance(content, bytes):
        return _INLINE + content
    handle = content.handle
    numbers = (content.number, handle.pid, handle.fd, handle.size, content.offset, content.length)
    return _REFERENCE + _NUMBERS.pack(*numbers, content.lasts) + handle.name.encode()


def unpack(descriptor: bytes) -> bytes | ArrayRef:
    """Return what `pack` was given."""
    if descriptor[:1] == _INLINE:
        return descriptor[1:]
    number, pid, fd, size, offset, length, lasts = _NUMBERS.unpack_from(descriptor, 1)
    handle = SharedHandle(pid, fd, size, descriptor[1 + _NUMBERS.size :].decode())
    return ArrayRef(number, handle, offset, length, lasts)


class DescriptorPipe:
    """The sender's ends of the pipe.

    Examples
    --------
    >>> pipe = DescriptorPipe()
    >>> there = open_pipe(pipe.offer)
    >>> pipe.put(b"one"), pipe.put(b"two")
    (True, True)
    >>> take_packet(there)
    b'one'
    >>> pipe.rewrite(bytes.upper)  # packets that were not taken
    >>> pipe.close()
    >>> take_packet(there), take_packet(there)
    (b'TWO', b'')
    >>> os.close(there)
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC | os.O_DIRECT)
        with suppress(OSError):  # this user has many pipes: it keeps its usual capacity
            fcntl.fcntl(self._write, fcntl.F_SETPIPE_SZ, _CAPACITY_BYTES)

    @property
    def offer(self) -> dict[str, Any]:
        """What another process needs to open it; plain values."""
        inode = os.fstat(self._read).st_ino
        return {"pid": os.getpid(), "fd": self._read, "inode": inode, "boot": boot_id()}

    def has_room(self, timeout_s: float) -> bool:
        """Wait until a packet may be put; return whether one may."""
        poll = select.poll()
        poll.register(self._write, select.POLLOUT)
        return bool(poll.poll(timeout_s * 1000))

    def put(self, packet: bytes) -> bool:
        """Write a packet of at most `PACKET_BYTES`; return whether there was room."""
        try:
            os.write(self._write, packet)
        except BlockingIOError:
            return False
        return True

    def rewrite(self, change: Callable[[bytes], bytes]) -> None:
        """Change every packet that was not taken yet."""
        with _locked(self._read) as is_locked:
            if not is_locked:
                return  # the receiver is taking one
            for packet in [change(packet) for packet in _packets(self._read)]:
                os.write(self._write, packet)

    def close(self) -> None:
        """Close both ends; a second call does nothing."""
        for fd in (self._write, self._read):
            if fd >= 0:
                os.close(fd)
        self._write = self._read = -1


def open_pipe(offer: Mapping[str, Any]) -> int | None:
    """Open the receiver's end of a pipe, not blocking; return its descriptor.

    None if that is impossible: on another machine, in another container, or as another user; or if
    the offer is no pipe's.
    """
    if offer["boot"] != boot_id() or not all(
        type(offer[name]) is int and offer[name] >= 0 for name in ("pid", "fd", "inode")
    ):
        return None
    try:
        fd = os.open(
            f"/proc/{offer['pid']}/fd/{offer['fd']}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except OSError:
        return None
    found = os.fstat(fd)
    if found.st_ino != offer["inode"] or not stat.S_ISFIFO(found.st_mode):
        # containers reuse process numbers, and a number may be of any file by now
        os.close(fd)
        return None
    return fd


def take_packet(fd: int) -> bytes | None:
    """Take the next packet; None if there is none now, b"" if there will be none."""
    with _locked(fd) as is_locked:
        if not is_locked:
            return None  # the sender is rewriting them
        try:
            return os.read(fd, PACKET_BYTES)
        except BlockingIOError:
            return None


@cache
def boot_id() -> str:
    """Return an identifier of this machine since it was booted.

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


def _packets(fd: int) -> Iterator[bytes]:
    with suppress(BlockingIOError):
        while True:
            yield os.read(fd, PACKET_BYTES)
