"""What the two ends of a link do; arrays travel one way.

One way, since a TCP connection that is used both ways at once is slower than two of them. A link
is driven by a thread at each end (``send`` and ``receive_into`` block), so the workers' event loops
stay free for heartbeats.

A link that stays silent for longer than its patience is broken.
"""

from __future__ import annotations

import socket
from concurrent.futures import Future
from select import epoll
from typing import Any, Protocol, TypeAlias

from daskxml.runtime.payloads import Payload
from daskxml.types import Array

DIRECT = ("ucx://", "ucxx://")  # comms that take device memory
STALL_S = 0.05  # how long a receiver may take nothing before its sender looks up
Read = Future[Any]
Signal: TypeAlias = "socket.socket | epoll | Read"  # becomes readable, or done


class Link(Protocol):
    """Either end; every method raises OSError when the link is broken."""

    def abort(self) -> None:
        """Make blocked calls fail now; callable from any thread."""

    def rest(self) -> bool:
        """Let go of memory until the next round; False if this kind must be closed instead.

        All that was sent has been received.
        """

    async def close(self) -> None:
        """Release the link, when no thread uses it any more; what was sent still arrives."""


class OutLink(Link, Protocol):
    """The end that sends.

    ``quick_bytes`` is up to how many bytes `send_now` costs the program less than another thread.
    """

    quick_bytes: int

    def send(self, data: Payload) -> int:
        """Send these bytes, or as many of them as go before nothing moves for a moment.

        Returns how many; those may be overwritten after `flush`.
        """

    def send_now(self, data: Payload) -> int:
        """Send as many of these bytes as go without waiting; return how many."""

    def flush(self) -> None:
        """Wait until what was sent may be overwritten; what nobody reads is copied."""

    def drain(self) -> None:
        """Wait until what was sent is out of this process's hands."""


class InLink(Link, Protocol):
    """The end that receives."""

    def receive_into(self, array: Array) -> None:
        """Receive exactly one array into the one given, blocking."""

    def borrow(self, into: Array) -> Array:
        """Receive one array and return it where it lies: ``into``, or the sender's own memory.

        It must not be changed, and is there until `release`.
        """

    def release(self) -> None:
        """Give back what was borrowed."""

    def listen(self) -> Signal:
        """Return what becomes readable, or done, when the next message or the end is there."""

    def is_at_end(self) -> bool:
        """Whether the other end has closed the link, once `listen` says that something is there."""
