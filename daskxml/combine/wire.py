"""How vectors travel between ranks: as they are, or as float16 scaled to the range of a message.

A float16 message starts with the exponent of its scale, a power of two that brings its largest
magnitude to between 2**14 and 2**15, so nothing overflows and the scaling itself is exact (the
dynamic scaling of Maleki et al. 2021, section 4.4.1, whose scale here follows every message
instead of a schedule). What is smaller than 2**-39 of the largest is lost. A message that holds a
NaN or an infinity is not scaled, so that it arrives as one.

Messages wait to be sent where nothing is needed any more: so they take no memory, and nobody has
to wait until they have left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from daskxml.combine.kernels import CombineKernels
from daskxml.combine.messages import Program, Receive, Send
from daskxml.types import Array

_HEADER = 1  # float16 places in front of a message: the exponent of its scale
_GREATEST = 110  # exponent: the scale and its inverse are normal float32


class Wire(Protocol):
    """A way for arrays to travel; programs ``yield from`` its methods."""

    def send(self, to: Sequence[int], piece: Array) -> Program[None]:
        """Let a piece travel; its contents are lost."""

    def publish(self, to: Sequence[int], piece: Array, spare: Array) -> Program[None]:
        """Let a piece travel, and make it equal, bit for bit, to what arrives.

        ``spare``, of the same size, is overwritten, and may be used again after a `Flush`.
        """

    def receive(self, source: int, into: Array) -> Program[None]:
        """Wait for a piece."""


class PlainWire:
    """Pieces travel as they are."""

    def send(self, to: Sequence[int], piece: Array) -> Program[None]:
        """Let a piece travel."""
        for rank in to:
            yield Send(rank, piece)

    def publish(self, to: Sequence[int], piece: Array, spare: Array) -> Program[None]:
        """Let a piece travel."""
        yield from self.send(to, piece)

    def receive(self, source: int, into: Array) -> Program[None]:
        """Wait for a piece."""
        yield Receive(source, into)


class Float16Wire:
    """Pieces travel as float16, each message with its own scale.

    Parameters
    ----------
    kernels
        The arithmetic.
    piece_size
        Elements of a piece, at most.
    """

    def __init__(self, kernels: CombineKernels, piece_size: int) -> None:
        self._kernels = kernels
        self._packed, self._arrived = kernels.empty((2, piece_size + _HEADER), "float16")

    def send(self, to: Sequence[int], piece: Array) -> Program[None]:
        """Let a piece travel, from where it lies: half of its bytes become the message."""
        yield from self._post(to, self._pack(piece), piece)

    def publish(self, to: Sequence[int], piece: Array, spare: Array) -> Program[None]:
        """Let a piece travel, and round it as it arrives."""
        message = self._pack(piece)
        unpack(piece, message, self._kernels)
        yield from self._post(to, message, spare)

    def receive(self, source: int, into: Array) -> Program[None]:
        """Wait for a piece."""
        message = self._arrived[: into.shape[0] + _HEADER]
        yield Receive(source, message)
        unpack(into, message, self._kernels)

    def _pack(self, piece: Array) -> Array:
        message = self._packed[: piece.shape[0] + _HEADER]
        pack(message, piece, self._kernels)
        return message

    def _post(self, to: Sequence[int], message: Array, place: Array) -> Program[None]:
        waiting = place.view("float16")[: message.shape[0]]
        waiting[...] = message
        for rank in to:
            yield Send(rank, waiting)


def make_wire(transfer: str, kernels: CombineKernels, piece_size: int) -> Wire:
    """Return the wire for ``float32`` or ``float16``."""
    return Float16Wire(kernels, piece_size) if transfer == "float16" else PlainWire()


def scale_exponent(largest: float) -> int:
    """Return the power of two that brings a magnitude to between 2**14 and 2**15, if any does.

    Examples
    --------
    >>> scale_exponent(1.0), scale_exponent(3.0e38), scale_exponent(0.0)
    (14, -113, 0)
    """
    if not math.isfinite(largest) or largest == 0.0:
        return 0
    return min(15 - math.frexp(largest)[1], _GREATEST)


def pack(message: Array, piece: Array, kernels: CombineKernels) -> None:
    """Write a piece ``(n,)`` float32 and its scale into a message ``(n + 1,)`` float16."""
    exponent = scale_exponent(kernels.largest(piece))
    message[0] = exponent
    kernels.convert(message[_HEADER:], piece, math.ldexp(1.0, exponent))


def unpack(piece: Array, message: Array, kernels: CombineKernels) -> None:
    """Write into a piece ``(n,)`` float32 what a message ``(n + 1,)`` float16 says."""
    kernels.convert(piece, message[_HEADER:], math.ldexp(1.0, -int(message[0])))
