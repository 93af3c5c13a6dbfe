"""What every kind of channel does, and the payloads that it moves.

A channel moves arrays one way, from a `Sender` to a `Receiver`: a TCP connection that is used both
ways at once is slower than two of them. A thread drives it at each end (``send`` and
``receive_into`` block), so the workers' event loops stay free for heartbeats. Every method raises
OSError when the channel is broken; one that is silent for longer than its timeout is.

A payload is an array's bytes in host memory, or the device array itself, which is recognised by
CUDA's array interface. Over UCX it goes from device to device. Any other channel takes it through
host memory: in `payload_of` and `write_payload`, and nowhere else.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import Any, TypeAlias

import numpy as np

from daskxml.core.arrays import Array
from daskxml.kernels.cuda.device import CAPTURING

Payload: TypeAlias = "memoryview | Array"  # bytes, on the host or on a device; sliced alike
Read = Future[Any]
Signal: TypeAlias = "socket.socket | Read"


class Channel(ABC):
    """Either end."""

    @abstractmethod
    def abort(self) -> None:
        """Make blocked calls fail now; callable from any thread."""

    def prepare_reuse(self) -> None:
        """Free memory until the next collective: all that was sent has been received."""
        return

    @abstractmethod
    async def close(self) -> None:
        """Close the channel, when no thread uses it any more; what was sent still arrives."""


class Sender(Channel):
    """The end that sends.

    Attributes
    ----------
    inline_bytes
        Up to how many bytes `send_now` costs the program less than waking another thread.
    """

    inline_bytes = 0

    @abstractmethod
    def send(self, data: Payload) -> None:
        """Send these bytes, which may be overwritten after `flush`; it may wait for the receiver.

        Raises
        ------
        TimeoutError
            When the receiver takes nothing for too long.
        """

    def send_now(self, data: Payload) -> int:
        """Send as many of these bytes as are taken without waiting; return their number."""
        return 0

    def flush(self) -> None:
        """Wait until what was sent may be overwritten: by default it has been copied."""
        return


class Receiver(Channel):
    """The end that receives."""

    @abstractmethod
    def receive_into(self, array: Array) -> None:
        """Receive exactly one array into the one given, blocking."""

    def borrow(self, into: Array) -> Array:
        """Receive one array; return it where it is: in the sender's memory, by default in ``into``.

        It is read-only, and valid until `release`.
        """
        self.receive_into(into)
        return into

    def release(self) -> None:
        """Return what was borrowed to its sender."""
        return

    @abstractmethod
    def signal(self) -> Signal:
        """Return what becomes readable, or done, at the next message or at the end."""

    @abstractmethod
    def is_at_end(self) -> bool:
        """Whether the sender has closed the channel, once `signal` is readable or done."""


# --------------------------------------------------------------------------------- payloads


def host_bytes(array: Array) -> memoryview:
    """View an array in host memory as bytes.

    Examples
    --------
    >>> host_bytes(np.zeros(2, "f4")).nbytes
    8
    """
    return memoryview(array).cast("B")


def is_on_device(array: Any) -> bool:
    """Whether an array is in the memory of a GPU."""
    return hasattr(array, "__cuda_array_interface__")


def payload_of(array: Array, is_direct: bool) -> Payload:
    """Return an array's bytes as a channel sends them.

    Parameters
    ----------
    is_direct
        Whether the channel takes device memory; else this waits for the device, and copies to the
        host.
    """
    if not is_on_device(array):
        return host_bytes(array)
    _wait_for_device(array)  # what computes it may run on any stream
    if not is_direct:
        return host_bytes(_on_host(array))
    return array.reshape(-1).view("uint8")


def _wait_for_device(array: Any) -> None:
    """Wait for all streams of an array's device, but not while a step is captured there."""
    with CAPTURING:
        array.device.synchronize()


def _on_host(array: Any) -> Any:
    if type(array).__module__.partition(".")[0] != "cupy":
        return array.get()
    from daskxml.kernels.cuda.cupy_device import to_pinned

    return to_pinned(array)


def new_on_device(nbytes: int) -> Array:
    """Return bytes on this process's GPU, which nothing queued there uses any more."""
    from daskxml.kernels.cuda.cupy_device import new_bytes

    made = new_bytes(nbytes)
    _wait_for_device(made)
    return made


def copy_payload(payload: Payload) -> Any:
    """Copy a payload in its memory: to ``bytes``, or to a new array on its device.

    Examples
    --------
    >>> copy_payload(memoryview(b"abc")[1:])
    b'bc'
    """
    if not is_on_device(payload):
        return bytes(payload)
    copied: Any = payload.copy()  # type: ignore[union-attr]
    _wait_for_device(copied)
    return copied


def write_payload(payload: Any, into: Array) -> None:
    """Write bytes that have arrived, on the host or on a device, into an array of either.

    Examples
    --------
    >>> array = np.empty(2, "u1")
    >>> write_payload(b"ab", array)
    >>> array
    array([97, 98], dtype=uint8)
    """
    if is_on_device(into):
        _wait_for_device(into)  # what still reads it may run on any stream
    if is_on_device(payload) and is_on_device(into):
        into[...] = payload.view(into.dtype).reshape(into.shape)
        _wait_for_device(into)
        return
    source = np.frombuffer(_on_host(payload) if is_on_device(payload) else payload, np.uint8)
    if is_on_device(into):
        into.set(source.view(into.dtype).reshape(into.shape))
        _wait_for_device(into)
    else:  # releases the GIL, which an assignment of bytes would not
        np.copyto(np.frombuffer(host_bytes(into), np.uint8), source)
