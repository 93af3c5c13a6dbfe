"""What travels between two processes that share memory: an array, or where it lies."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from daskxml.runtime.token_pipe import PACKET_BYTES
from daskxml.training.shared import SharedHandle

INSIDE_BYTES = PACKET_BYTES - 1  # of an array that its token can hold
_INSIDE, _ELSEWHERE = b"\0", b"\1"  # how a token begins
_NUMBERS = struct.Struct("<6q?")


@dataclass(frozen=True, slots=True)
class Told:
    """Where an array lies.

    Attributes
    ----------
    number
        Of the array, among those of its link that are told of.
    handle
        The memory.
    offset, length
        Bytes.
    lasts
        Whether the sender keeps this memory, and is likely to send from it in later rounds.
    """

    number: int
    handle: SharedHandle
    offset: int
    length: int
    lasts: bool


def pack(content: bytes | Told) -> bytes:
    """Return the token of a small array's bytes, or of where an array lies.

    Examples
    --------
    >>> told = Told(7, SharedHandle(1, 2, 3, "name"), 4, 8, True)
    >>> unpack(pack(told)) == told, unpack(pack(b"small"))
    (True, b'small')
    """
    if isinstance(content, bytes):
        return _INSIDE + content
    handle = content.handle
    numbers = (content.number, handle.pid, handle.fd, handle.size, content.offset, content.length)
    return _ELSEWHERE + _NUMBERS.pack(*numbers, content.lasts) + handle.name.encode()


def unpack(token: bytes) -> bytes | Told:
    """Return what `pack` was given."""
    if token[:1] == _INSIDE:
        return token[1:]
    number, pid, fd, size, offset, length, lasts = _NUMBERS.unpack_from(token, 1)
    handle = SharedHandle(pid, fd, size, token[1 + _NUMBERS.size :].decode())
    return Told(number, handle, offset, length, lasts)
